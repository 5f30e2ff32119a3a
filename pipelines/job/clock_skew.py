"""This machine's clock compared with the broker's and the lake's, at each start, then every hour.

The broker's clock is the timestamp that it gives a PING of ours in the admin topic. A lake whose
newest `epoch_at` is later than both clocks is ahead: they were wrong once.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from confluent_kafka import KafkaException, Producer

from pipelines.epoch.clock import CLOCKS_APART_MS, EpochClock
from pipelines.epoch.own_pings import OwnPings
from pipelines.errors import ClockError, KafkaAwayError
from pipelines.health.conditions import LAKE_AHEAD_MS, lake_ahead_text
from pipelines.kafka_client.connection import produce_sync, producer_config
from pipelines.settings import Settings
from storage.rows import instant
from txlake import protocol as p

log = logging.getLogger("txlake.driver")

_INTERVAL_S = 3_600.0


@dataclass(frozen=True)
class _Reading:
    """The broker's clock between two looks at the local one. Units: epoch ms."""

    local_before_ms: int
    broker_ms: int
    local_after_ms: int

    @property
    def difference_ms(self) -> int:
        """Returns how far apart the clocks are at least.

        The local time between the two looks counts for nothing: a process can be suspended there.
        """
        behind_ms = self.local_before_ms - self.broker_ms
        ahead_ms = self.broker_ms - self.local_after_ms
        return max(behind_ms, ahead_ms, 0)


class ClockSkewCheck:
    """Compares the local clock with the broker's, by PINGs in the name of an owner.

    Input: `is_tolerant`: any difference is accepted.
    """

    def __init__(
        self, settings: Settings, owner: str, local_clock: EpochClock, *, is_tolerant: bool
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._local_clock = local_clock
        self._is_tolerant = is_tolerant
        self._producer: Producer | None = None
        self._compared_at = 0.0  # monotonic s

    def is_due(self) -> bool:
        """Returns whether the last comparison is an hour ago."""
        return time.monotonic() - self._compared_at > _INTERVAL_S

    def compare(self, pings: OwnPings) -> None:
        """Reads the broker's clock by a PING, which `pings` gets; warns of a lake that is ahead.

        Where the two are far apart the local clock is read anew: a machine can have slept, or its
        clock was set, and then it is not the machine's clock that is wrong.
        Errors: ClockError if the clocks are too far apart; KafkaAwayError.
        """
        reading = self._read(pings)
        if self._is_tolerant:
            return

        if reading.difference_ms > CLOCKS_APART_MS:
            self._local_clock.start()  # it missed a sleep, or a step
            reading = self._read(pings)

        local_ms, broker_ms = reading.local_after_ms, reading.broker_ms
        if reading.difference_ms > CLOCKS_APART_MS:
            raise ClockError(
                f"this machine's clock says {_text(local_ms)} and the broker's {_text(broker_ms)}: "
                f"more than {CLOCKS_APART_MS // 1000} s apart; set the one that is wrong"
            )

        lake_ms = self._local_clock.last_ms
        ahead_ms = lake_ms - max(local_ms, broker_ms)
        if ahead_ms > LAKE_AHEAD_MS:
            log.warning("lake_ahead: %s", lake_ahead_text(lake_ms, ahead_ms))

    def _read(self, pings: OwnPings) -> _Reading:
        local_before_ms = self._local_clock.raw_ms()
        offset, broker_ms = self._ping()
        local_after_ms = self._local_clock.raw_ms()

        pings[offset] = broker_ms
        self._compared_at = time.monotonic()
        return _Reading(local_before_ms, broker_ms, local_after_ms)

    def _ping(self) -> tuple[int, int]:
        """Writes a PING; returns its offset, and the broker's clock in ms."""
        kafka = self._settings.kafka
        if self._producer is None:
            bytes_max = self._settings.transaction.message_bytes_max
            config = producer_config(kafka.bootstrap_servers, kafka.client, bytes_max)
            self._producer = Producer({**config, "linger.ms": 0})

        headers = [(p.COMMAND, p.PING.encode()), (p.ACTOR, self._owner.encode())]
        try:
            message, failure = produce_sync(
                self._producer, kafka.admin_topic, partition=0, headers=headers
            )
        except KafkaException as error:
            raise KafkaAwayError(f"the broker's clock could not be asked: {error}") from error

        if failure is not None:
            raise KafkaAwayError(f"the broker's clock could not be asked: {failure}")
        return message.offset(), message.timestamp()[1]


def _text(ms: int) -> str:
    return instant(ms).isoformat(timespec="seconds")

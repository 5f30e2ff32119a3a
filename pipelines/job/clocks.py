"""This machine's clock compared with the broker's, at each start and then every hour."""

from __future__ import annotations

import time

from pipelines.epoch.clock import EpochClock
from pipelines.epoch.pings import OwnPings
from pipelines.errors import ClockError
from pipelines.kafka_log.broker_clock import BrokerClock
from storage.rows import instant

DIFFERENCE_MS_MAX = 60_000
_INTERVAL_S = 3_600.0


class Clocks:
    """Our clock and the broker's. `is_tolerant`: any difference is accepted."""

    def __init__(self, ours: EpochClock, broker: BrokerClock, *, is_tolerant: bool) -> None:
        self._ours, self._broker, self._is_tolerant = ours, broker, is_tolerant
        self._compared = 0.0

    def is_due(self) -> bool:
        """Returns whether the last comparison is an hour ago."""
        return time.monotonic() - self._compared > _INTERVAL_S

    def compare(self, pings: OwnPings) -> None:
        """Asks the broker for its time and notes the PING.

        Errors: ClockError if the clocks are too far apart; KafkaAwayError.
        """
        offset, broker_ms = self._broker.ping()
        pings[offset] = broker_ms
        self._compared = time.monotonic()
        ours_ms = self._ours.raw_ms()
        if not self._is_tolerant and abs(ours_ms - broker_ms) > DIFFERENCE_MS_MAX:
            raise ClockError(
                f"this machine's clock says {_text(ours_ms)} and the broker's {_text(broker_ms)}: "
                f"more than {DIFFERENCE_MS_MAX // 1000} s apart; set the one that is wrong"
            )


def _text(ms: int) -> str:
    return instant(ms).isoformat(timespec="seconds")

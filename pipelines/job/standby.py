"""The wait for an election: Kafka elects one of a lake's drivers, and a standby waits for it.

A driver that is no standby is refused when another one is active. Kafka counts a dead driver until
its session ends, so the refusal waits as long as that can take; on a local disk the lake's lock
refuses at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pipelines.job.election import Election
from pipelines.job.leadership import ANOTHER, DECIDED_S, fenced_error
from storage.errors import LakeLockedError

log = logging.getLogger("txlake.driver")

_LOOK_S = 1.0
_POLL_S = 0.1
_OWNER_LOOK_S = 10.0  # between two looks for the active owner: a request to the lake's store
# Spark ends a Python worker that was idle for a minute.
_REHEARSAL_S = 30.0


class StandbyWait:
    """One driver's waits for its elections.

    Input: `active_owner`: returns the owner that is active in the place of this one;
    `on_kafka_reply`: called when Kafka has answered; `rehearse`: called now and then while a
    standby waits.
    """

    def __init__(
        self,
        lake_path: str,
        owner: str,
        election: Election,
        active_owner: Callable[[], str],
        stop: threading.Event,
        on_kafka_reply: Callable[[], None],
        rehearse: Callable[[], None],
        *,
        is_standby: bool,
    ) -> None:
        self._lake_path = lake_path
        self._owner = owner
        self._election = election
        self._active_owner = active_owner
        self._stop = stop
        self._on_kafka_reply = on_kafka_reply
        self._rehearse = rehearse
        self._is_standby = is_standby

        self._was_active = False
        self._announced_owner: str | None = None
        self._rehearse_at = 0.0  # monotonic s, as are the next two
        self._announce_at = 0.0
        self._refuse_at: float | None = None

    def wait(self) -> bool:
        """Waits until Kafka has elected this driver. Output: whether it has; else `stop` is set.

        Errors: LakeLockedError if another is active and this one does not stand by; OwnerError if
        another was elected in the place of this one; KafkaAwayError; StartError.
        """
        look_at = time.monotonic() + _LOOK_S

        while not self._stop.is_set():
            if self._election.wait(_POLL_S):
                self._on_elected()
                return True

            if self._election.is_waiting and time.monotonic() > look_at:
                self._on_kafka_reply()
                self._on_other_leader()
                look_at = time.monotonic() + _LOOK_S
        return False

    def _on_elected(self) -> None:
        if not self._was_active or self._announced_owner is not None:
            log.info("active: Kafka has elected this driver; owner %s", self._owner)

        self._was_active = True
        self._announced_owner = None
        self._refuse_at = None

    def _on_other_leader(self) -> None:
        if self._was_active:
            raise fenced_error(self._lake_path, self._active_owner())

        self._announce_owner()
        if self._is_standby:
            if time.monotonic() > self._rehearse_at:
                self._rehearse()
                self._rehearse_at = time.monotonic() + _REHEARSAL_S
            return

        self._refuse_at = self._refuse_at or time.monotonic() + DECIDED_S
        if time.monotonic() > self._refuse_at:
            raise LakeLockedError(
                f"the lake {self._lake_path} is written by {self._announced_owner}: "
                "one driver at a time; stop it first, or start this one with --standby"
            )

    def _announce_owner(self) -> None:
        """Logs the active owner: at once, and whenever it is another, or its name is known."""
        now = time.monotonic()
        if now < self._announce_at:
            return
        self._announce_at = now + (_OWNER_LOOK_S if self._is_standby else _LOOK_S)

        owner = self._active_owner()
        if self._announced_owner is None or owner not in (self._announced_owner, ANOTHER):
            self._announced_owner = owner
            log.info("%s: %s is active", "standby" if self._is_standby else "waiting", owner)

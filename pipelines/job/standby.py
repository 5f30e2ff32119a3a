"""Waiting for one's turn: Kafka elects one of a lake's drivers, and a standby waits until it does.

A driver that does not stand by is refused when another one is active. Kafka counts a dead driver
until its session ends, so the refusal waits as long as that can take; on a local disk the lake's
lock refuses at once.
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
_ASK_S = 10.0  # between two looks at who is active: a request to the lake's store
# Spark ends a Python worker that was idle for a minute.
_REHEARSAL_S = 30.0


class StandbyWait:
    """One driver's turns at a lake.

    Input: `other`: says who is active in the place of this one; `heard`: called when Kafka has
    answered; `rehearse`: called now and then while a standby waits.
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
        self._lake_path, self._owner = lake_path, owner
        self._election, self._other, self._stop = election, active_owner, stop
        self._on_kafka_reply, self._rehearse = on_kafka_reply, rehearse
        self._rehearse_at = 0.0
        self._is_standby = is_standby
        self._was_active = False
        self._announced_owner: str | None = None
        self._ask_at = 0.0
        self._refuse_at: float | None = None

    def wait(self) -> bool:
        """Waits until Kafka has elected this driver. Output: whether it has; else `stop` is set.

        Errors: LakeLockedError if another is active and this one does not stand by; OwnerError if
        another was elected in the place of this one; KafkaAwayError; StartError.
        """
        look_at = time.monotonic() + _LOOK_S
        while not self._stop.is_set():
            if self._election.wait(_POLL_S):
                if not self._was_active or self._announced_owner is not None:
                    log.info("active: Kafka has elected this driver; owner %s", self._owner)
                self._was_active, self._announced_owner, self._refuse_at = True, None, None
                return True
            if self._election.is_waiting and time.monotonic() > look_at:
                self._on_kafka_reply()
                self._on_other_leader()
                look_at = time.monotonic() + _LOOK_S
        return False

    def _on_other_leader(self) -> None:
        if self._was_active:
            raise fenced_error(self._lake_path, self._other())
        self._tell_who()
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

    def _tell_who(self) -> None:
        """Says who is active: at once, and whenever that is another, or is known better."""
        now = time.monotonic()
        if now < self._ask_at:
            return
        self._ask_at = now + (_ASK_S if self._is_standby else _LOOK_S)

        name = self._other()
        if self._announced_owner is None or name not in (self._announced_owner, ANOTHER):
            self._announced_owner = name
            log.info("%s: %s is active", "standby" if self._is_standby else "waiting", name)

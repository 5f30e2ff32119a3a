"""Checks that the lake is still this driver's: before each plan, and before maintenance's commits.

Delta's transaction identifiers keep the rows of a lake right whichever driver writes. These checks
are added to them: a driver that was replaced stops before it plans, and it merges and deletes no
file.
"""

from __future__ import annotations

import threading
import time

import pyarrow.compute as pc

from pipelines.errors import KafkaAwayError, StartError
from pipelines.job.election import Election
from pipelines.kafka_client.group_member import SESSION_TIMEOUT_MS
from storage.errors import LakeError, OwnerError
from storage.lake.epochs import PLANNED
from storage.lake.lake import Lake
from storage.lake.lock import lock_holder
from storage.lake.pruned import read_rows

ANOTHER = "another driver"
_PAUSE_S = 0.1
# Kafka has decided when the sessions of all that do not answer have ended.
DECIDED_S = 2 * SESSION_TIMEOUT_MS / 1000


class Leadership:
    """One driver's claim to its lake, from `begin` on. `term`: of the election that gave it."""

    def __init__(
        self,
        lake: Lake,
        owner: str,
        election: Election,
        stop: threading.Event,
    ) -> None:
        self._owner = owner
        self._lake = Lake(lake.location)  # a driver's own may trust what it has read
        self._election = election
        self._stop = stop
        self.term = 0
        self._first_epoch: int | None = None  # the newest one when this driver came, or began
        self._term_epoch: int | None = None  # the newest one when its term began

    def begin(self) -> None:
        """Takes the present election as the one by which the lake is this driver's.

        Errors: LakeError: it has not begun.
        """
        term = self._election.term
        newest = self._newest_epoch()

        self.term = term
        self._first_epoch = newest
        self._term_epoch = newest

    def require(self) -> None:
        """Checks that this driver is the active one, by Kafka's last word to it.

        Errors: OwnerError if another is; KafkaAwayError if Kafka cannot tell, or had not heard from
        this driver for a while and elected it again: it must read the lake anew.
        """
        deadline = time.monotonic() + DECIDED_S

        while not (self._is_same_term() and self._election.is_confirmed_leader):
            if self._election.is_waiting:
                raise fenced_error(self._lake.path, self.active_owner())

            if self._election.is_active and not self._is_same_term():
                raise KafkaAwayError("Kafka had not heard from this driver, and elected it again")

            if time.monotonic() > deadline or self._stop.wait(_PAUSE_S):
                raise KafkaAwayError("Kafka has elected no driver yet")

    def active_owner(self) -> str:
        """Returns the owner that is active in the place of this driver, as far as the lake says.

        That is the one that has planned an epoch since this driver came, or began; else the holder
        of the lake's lock. The driver that planned the newest epoch before can be gone.
        """
        owners = (*self._new_owners(), lock_holder(self._lake.location))
        return next((owner for owner in owners if owner and owner != self._owner), ANOTHER)

    def _new_owners(self) -> list[str]:
        """Returns the owner of the newest planned epoch, if it is newer than at the first look."""
        try:
            newest = self._newest_epoch()
            if self._first_epoch is None:
                self._first_epoch = newest
            return self._newest_owners() if newest > self._first_epoch else []
        except LakeError:
            return []

    def _is_same_term(self) -> bool:
        return self._election.is_active and self._election.term == self.term

    def require_newest_plan_is_ours(self) -> None:
        """Checks that nobody else has planned an epoch in the term of this driver.

        The newest epoch from before its term can be of any driver: one that starts and has no
        records plans none. Errors: OwnerError if another has planned a newer one.
        """
        if self._term_epoch is not None and self._newest_epoch() == self._term_epoch:
            return

        owners = self._newest_owners()
        if owners != [self._owner]:
            raise fenced_error(self._lake.path, ", ".join(owners) or ANOTHER)

    def _newest_epoch(self) -> int:
        """Returns the newest epoch; 0 of a lake that is not made yet, or has none."""
        if not self._lake.exists():
            return 0
        return self._lake.max_value("epochs", "epoch") or 0

    def _newest_owners(self) -> list[str]:
        newest = self._lake.max_value("epochs", "epoch")
        is_plan = pc.field("state") == PLANNED
        rows = read_rows(self._lake, "epochs", ["owner"], {"epoch": [newest]}, is_plan)

        owners: list[str] = rows["owner"].to_pylist()
        return owners

    def fencing_error(self) -> OwnerError | None:
        """Returns the error of a driver that another has replaced; None if none has."""
        try:
            self.require()
        except OwnerError as error:
            return error
        except (KafkaAwayError, StartError):
            return None
        return None


def fenced_error(lake_path: str, active: str) -> OwnerError:
    """Returns the error of a driver whose lake another has taken over."""
    return OwnerError(
        f"{active} is the active driver of the lake {lake_path} now: Kafka had not heard from this "
        "one for too long, and it stops; nothing is lost"
    )

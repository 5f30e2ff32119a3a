"""How long the lake keeps what consumer groups have given up: as long as topics keep messages.

A message that has been dead for `[topics] retention_ms` is dropped, as an operator drops one: its
row says so, and a line of the log. The row itself goes after as long again. A dead letter goes when
its message died so long ago, unless an operator has resumed the message and it still waits.

Dead letters stand in files of many: what stays in a file is written anew. So they go when an eighth
of the retention more has passed, not one by one.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pipelines.explain.rows import Row
from pipelines.health.consumer_retries import find_old, read_letter_ages
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.maintenance.limits import StepResult
from storage.rows import instant
from txlake._counted import counted
from txlake._dead_letters import TABLE as DEAD_LETTERS
from txlake._dead_letters import DeadLetters
from txlake._retries import DEAD, DROPPED, ConsumerRetries, Key, Retry, dropped, forgotten
from txlake._retries import TABLE as RETRIES
from txlake.protocol import FOREVER

log = logging.getLogger("txlake.maintain")

ACTOR: Final = "txlake"
_SPANS: Final = 8  # parts of the retention: a dead letter is kept for one more
_LOOKS: Final = 100  # in the time of the retention
_LOOK_S_MIN: Final = 60.0
_NAMED_MAX: Final = 10  # messages that one line of the log names


class RefusedRetention:
    """The retention of one lake's `consumer_retries` and `consumer_dead_letters`.

    Input: `retention_ms`: FOREVER: nothing goes; `before_writing`: called before each write, an
    error of it stops that.
    Errors: LakeError: the step was not taken and can be tried again.
    """

    def __init__(
        self,
        lake: Lake,
        retention_ms: int,
        before_writing: Callable[[], None] = lambda: None,
    ) -> None:
        self._location = lake.location
        self._retention_ms = retention_ms
        self._before_writing = before_writing
        self._at_ms = 0
        self._look_at = 0.0

    def resume_from(self, plan: Plan) -> None:
        """Takes a committed plan: what is old by its clock goes."""
        self._at_ms = plan.epoch_at

    def steps(self, *, is_full: bool = False) -> Iterator[StepResult]:
        """Takes the steps that are needed, one each time the next is asked for.

        Input: `is_full`: now, and every dead letter that is old.
        Errors: as of the class; it looks again in the first round after `_LOOK_S_MIN`.
        """
        now = time.monotonic()
        if (
            self._retention_ms == FOREVER
            or not self._at_ms
            or (now < self._look_at and not is_full)
        ):
            return

        self._look_at = now + _LOOK_S_MIN  # unless all steps succeed
        lake = Lake(self._location)  # consumers have written since the last look
        before_ms = self._at_ms - self._retention_ms

        old = find_old(lake, before_ms)
        if old:
            self._before_writing()
            yield StepResult(rows_expired=self._drop(lake, old, instant(before_ms)))

        yield from self._delete_letters(lake, before_ms, 0 if is_full else self._slack_ms)
        self._look_at = now + max(_LOOK_S_MIN, self._retention_ms / 1_000 / _LOOKS)

    @property
    def _slack_ms(self) -> int:
        return self._retention_ms // _SPANS

    def _drop(self, lake: Lake, old: Sequence[Row], before: dt.datetime) -> int:
        """Drops what was dead for too long, and forgets what was dropped so long ago."""
        keys: list[Key] = [
            (row["consumer_group"], row["topic"], row["queue_id"], row["queue_offset"])
            for row in old
        ]
        reason = f"dead for longer than [topics] retention_ms = {self._retention_ms}"

        def decide(newest: Mapping[Key, Retry], now: dt.datetime) -> list[Retry]:
            rows = [newest[key] for key in keys if key in newest]
            return [
                dropped(row, ACTOR, reason, now) if row.state == DEAD else forgotten(row, now)
                for row in rows
                if row.state in (DEAD, DROPPED) and row.committed_at < before
            ]

        table = ConsumerRetries(
            lake.table_path(RETRIES), lake.location.storage_options, lake.lake_id()
        )
        written = table.write(decide)
        _log_dropped([row for row in written if row.state == DROPPED], reason)
        return len(written)

    def _delete_letters(self, lake: Lake, before_ms: int, slack_ms: int) -> Iterator[StepResult]:
        """Deletes the dead letters that are old, and the files that were replaced for it."""
        if not lake.is_table(DEAD_LETTERS):
            return

        until = {}
        for row in read_letter_ages(lake):
            until_ms = min(before_ms, row["held_at"] or before_ms)
            if row["oldest_at"] + slack_ms < until_ms:
                until[row["consumer_group"]] = instant(until_ms)

        letters = DeadLetters(
            lake.table_path(DEAD_LETTERS), lake.location.storage_options, lake.lake_id()
        )

        self._before_writing()
        if until:
            yield StepResult(rows_expired=letters.delete(until))
            self._before_writing()  # epochs can have passed since
        letters.delete_stale_files()


def _log_dropped(rows: Sequence[Retry], reason: str) -> None:
    """Names what was dropped, a line a group: nobody has looked at it."""
    for group, of_group in itertools.groupby(rows, key=lambda row: row.consumer_group):
        messages = list(of_group)
        names = [f"{row.topic}:{row.queue_id}-{row.queue_offset}" for row in messages[:_NAMED_MAX]]
        if len(messages) > len(names):
            names.append("...")

        log.warning(
            "%s of consumer group %s dropped, %s: %s; `txlake consumer dead list --dropped` names "
            "them",
            counted(len(messages), "dead message"),
            group,
            reason,
            ", ".join(names),
        )

"""An epoch as lines of the job's log: one of its own, and one for each thing that went wrong.

Of the warnings of one kind there are at most `lines_max` a minute; then one line says how many were
left out. What producers send is escaped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

from checker.frames import COMMITTED, ROLLED_BACK
from pipelines.metrics.epoch_counts import EpochCounts
from pipelines.output import printable
from pipelines.settings import LogSettings
from storage.lake.epochs import Plan

log = logging.getLogger("txlake.epoch")

_WINDOW_S: Final = 60.0
_WAITING: Final = ("wait",)  # for the epoch before, which has lines of its own


class RateLimited:
    """Warnings of one kind, at most so many a minute."""

    def __init__(self, kind: str, lines_max: int, now_s: Callable[[], float]) -> None:
        self._kind, self._lines_max, self._now_s = kind, lines_max, now_s
        self._began_s, self._said, self._left_out = now_s(), 0, 0

    def log(self, lines: Iterable[tuple[str, Mapping[str, Any]]], count: int) -> None:
        """Logs lines with their fields, as far as they are not too many.

        Input: how many there are; `lines` are the first of them.
        """
        self.flush()
        shown = list(islice(lines, self._lines_max - self._said))
        for text, fields in shown:
            told = {"kind": self._kind.replace(" ", "_"), **fields}
            log.warning("%s: %s", self._kind, printable(text), extra={"fields": told})
        self._said += len(shown)
        self._left_out += count - len(shown)

    def flush(self, *, is_over: bool = False) -> None:
        """Begins another minute when one is over, and says how many lines that one left out."""
        if not is_over and self._now_s() - self._began_s < _WINDOW_S:
            return
        if self._left_out:
            fields = {"kind": self._kind.replace(" ", "_"), "left_out": self._left_out}
            log.warning(
                "%s: %d more are not shown; a minute has at most %d such lines",
                self._kind, self._left_out, self._lines_max, extra={"fields": fields},
            )  # fmt: skip
        self._began_s, self._said, self._left_out = self._now_s(), 0, 0


class EpochLogger:
    """The lines of one driver's epochs."""

    def __init__(self, settings: LogSettings, now_s: Callable[[], float] = time.monotonic) -> None:
        self._slow_step_ms = settings.slow_step_ms
        self._given_up, self._stuck, self._slow = (
            RateLimited(kind, settings.lines_max, now_s)
            for kind in ("given up", "undeliverable", "slow step")
        )

    def committed(
        self, plan: Plan, tally: EpochCounts, counts: Mapping[str, int], step_ms: Mapping[str, int],
        behind: int, behind_ms: int,
    ) -> None:  # fmt: skip
        """Tells of a committed epoch. Input: how many records are behind it, and for how long."""
        fields = {
            "epoch": plan.epoch,
            "records": sum(r.to_offset - r.from_offset for r in plan.ranges),
            "committed": tally.ended(COMMITTED),
            "rolled_back": tally.ended(ROLLED_BACK),
            "given_up": sum(tally.causes.values()),
            "checks": counts.get("checks", 0),
            "delivered": sum(tally.delivered.values()),
            "lag_records": behind,
            "lag_s": behind_ms / 1000,
            "seconds": sum(step_ms.values()) / 1000,
        }
        log.info(_EPOCH, fields, extra={"fields": {**fields, "step_ms": dict(step_ms)}})
        self._given_up.log(map(_given_up, tally.discards), sum(tally.causes.values()))
        self._stuck.log(map(_stuck, tally.undeliverable), tally.stuck_count)
        slow = [
            (f"{step} of epoch {plan.epoch} took {ms / 1000:.1f} s",
             {"epoch": plan.epoch, "step": step, "seconds": ms / 1000})
            for step, ms in step_ms.items() if ms > self._slow_step_ms and step not in _WAITING
        ]  # fmt: skip
        self._slow.log(slow, len(slow))

    def flush(self, *, is_over: bool = False) -> None:
        """Says what was left out, once a minute and at the end."""
        for lines in (self._given_up, self._stuck, self._slow):
            lines.flush(is_over=is_over)


_EPOCH: Final = (
    "epoch %(epoch)d: %(records)d records landed, %(committed)d halves committed, "
    "%(rolled_back)d rolled back, %(given_up)d given up, %(checks)d checks, "
    "%(delivered)d delivered, %(lag_records)d records behind (%(lag_s).1f s), %(seconds).2f s"
)


def _given_up(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    text = (
        f"half {row['queue_id']}-{row['queue_offset']} of topic {row['real_topic']}, group "
        f"{row['producer_group']}, transaction {row['transaction_id']}: {row['cause']}"
    )
    return text, row


def _stuck(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    names = ("source", "queue_id", "queue_offset", "real_topic", "reason")
    fields = {name: row[name] for name in names}
    place = f"{row['source']} {row['queue_id']}-{row['queue_offset']}"
    return f"{place} for topic {row['real_topic']}: {row['reason']}", fields

"""The log lines of an epoch: one of its own, and one for each thing that went wrong.

A minute has at most `lines_max` warnings of one kind, and then one line with the number of those
left out. Texts from producers are escaped.
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
from txlake._counted import counted

log = logging.getLogger("txlake.epoch")

_WINDOW_S: Final = 60.0
_WAITING: Final = ("wait",)  # steps that wait for the epoch before, which has lines of its own


class RateLimited:
    """Warnings of one kind, at most `lines_max` a minute."""

    def __init__(self, kind: str, lines_max: int, now_s: Callable[[], float]) -> None:
        self._kind = kind
        self._lines_max = lines_max
        self._now_s = now_s
        self._began_s = now_s()
        self._logged = 0
        self._left_out = 0

    def log(self, lines: Iterable[tuple[str, Mapping[str, Any]]], count: int) -> None:
        """Logs lines with their fields, up to the limit of this minute.

        Input: `lines`: the first lines; `count`: how many there are in all.
        """
        self.flush()
        shown = list(islice(lines, self._lines_max - self._logged))
        for text, fields in shown:
            all_fields = {"kind": self._kind.replace(" ", "_"), **fields}
            log.warning("%s: %s", self._kind, printable(text), extra={"fields": all_fields})

        self._logged += len(shown)
        self._left_out += count - len(shown)

    def flush(self, *, is_over: bool = False) -> None:
        """Begins the next minute if this one is over, and logs how many lines it left out."""
        if not is_over and self._now_s() - self._began_s < _WINDOW_S:
            return

        if self._left_out:
            fields = {"kind": self._kind.replace(" ", "_"), "left_out": self._left_out}
            log.warning(
                "%s: %d more are not shown; a minute has at most %d such lines",
                self._kind,
                self._left_out,
                self._lines_max,
                extra={"fields": fields},
            )

        self._began_s = self._now_s()
        self._logged = 0
        self._left_out = 0


class EpochLogger:
    """The lines of one driver's epochs."""

    def __init__(self, settings: LogSettings, now_s: Callable[[], float] = time.monotonic) -> None:
        self._slow_step_ms = settings.slow_step_ms
        self._given_up = RateLimited("given up", settings.lines_max, now_s)
        self._undeliverable_lines = RateLimited("undeliverable", settings.lines_max, now_s)
        self._slow = RateLimited("slow step", settings.lines_max, now_s)

    def log_epoch(
        self,
        plan: Plan,
        tally: EpochCounts,
        counts: Mapping[str, int],
        step_ms: Mapping[str, int],
        behind: int,
        behind_ms: int,
    ) -> None:
        """Logs a committed epoch. Input: how many records wait behind it, and for how long."""
        fields = {
            "epoch": plan.epoch,
            "records": sum(r.to_offset - r.from_offset for r in plan.ranges),
            "committed": tally.count_ended(COMMITTED),
            "rolled_back": tally.count_ended(ROLLED_BACK),
            "given_up": sum(tally.causes.values()),
            "checks": counts.get("checks", 0),
            "delivered": sum(tally.delivered.values()),
            "lag_records": behind,
            "lag_s": behind_ms / 1000,
            "seconds": sum(step_ms.values()) / 1000,
        }
        all_fields = {**fields, "step_ms": dict(step_ms)}
        log.info("%s", _epoch(fields), extra={"fields": all_fields})

        self._given_up.log(map(_given_up, tally.discards), sum(tally.causes.values()))
        self._undeliverable_lines.log(
            map(_undeliverable, tally.undeliverable), tally.undeliverable_count
        )

        slow = [
            (
                f"{step} of epoch {plan.epoch} took {ms / 1000:.1f} s",
                {"epoch": plan.epoch, "step": step, "seconds": ms / 1000},
            )
            for step, ms in step_ms.items()
            if ms > self._slow_step_ms and step not in _WAITING
        ]
        self._slow.log(slow, len(slow))

    def flush(self, *, is_over: bool = False) -> None:
        """Logs how many lines were left out, once a minute and at the end."""
        for lines in (self._given_up, self._undeliverable_lines, self._slow):
            lines.flush(is_over=is_over)


def _epoch(fields: Mapping[str, Any]) -> str:
    return (
        f"epoch {fields['epoch']}: {counted(fields['records'], 'record')} landed, "
        f"{counted(fields['committed'], 'half', 'halves')} committed, "
        f"{fields['rolled_back']} rolled back, {fields['given_up']} given up, "
        f"{counted(fields['checks'], 'check')}, {fields['delivered']} delivered, "
        f"{counted(fields['lag_records'], 'record')} behind ({fields['lag_s']:.1f} s), "
        f"{fields['seconds']:.2f} s"
    )


def _given_up(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    text = (
        f"half {row['queue_id']}-{row['queue_offset']} of topic {row['real_topic']}, group "
        f"{row['producer_group']}, transaction {row['transaction_id']}: {row['cause']}"
    )
    return text, row


def _undeliverable(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    names = ("source", "queue_id", "queue_offset", "real_topic", "reason")
    fields = {name: row[name] for name in names}

    place = f"{row['source']} {row['queue_id']}-{row['queue_offset']}"
    return f"{place} for topic {row['real_topic']}: {row['reason']}", fields

"""Units: a half alone, a whole set, or a schedule record, after the newest committed epoch.

Pure functions from rows to units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from checker.frames import DISCARDED
from pipelines.explain.rows import LakeRows, Row, set_key
from storage.wire.record_kinds import HALF
from txlake.protocol import OFFSETS_PATTERN, UNKNOWN, RecordTarget, matches


@dataclass(frozen=True)
class Unit:
    """Messages that are decided together: at least one, in offset order."""

    messages: tuple[Row, ...]
    lake_rows: LakeRows

    @property
    def source(self) -> str:
        """Returns `half` or `schedule`."""
        return str(self.messages[0]["source"])

    @property
    def queue_id(self) -> int:
        """Returns the half queue."""
        return int(self.messages[0]["queue_id"])

    @cached_property
    def offsets(self) -> frozenset[int]:
        """Returns the offsets of all its messages, duplicates too."""
        return frozenset(m["queue_offset"] for m in self.messages)

    @property
    def error(self) -> str | None:
        """Returns why its message cannot be read; None if it can."""
        error: str | None = self.messages[0]["error"]
        return error

    def of(self, rows: Iterable[Row]) -> list[Row]:
        """Returns the rows about this unit's messages, oldest epoch first."""
        about = filter(self.is_about, rows)
        return sorted(about, key=lambda row: (row["epoch"], row["queue_offset"]))

    def is_about(self, row: Row) -> bool:
        """Returns whether a row is about one of its messages."""
        return (
            row.get("source", HALF) == self.source
            and row["queue_id"] == self.queue_id
            and row["queue_offset"] in self.offsets
        )

    def _of_halves(self, rows: Iterable[Row], column: str) -> list[Row]:
        """Returns the rows of its queue in which a column names one of its halves."""
        return [row for row in self._of_queue(rows) if row[column] in self.offsets]

    def _of_queue(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Returns the rows about its half queue."""
        return (r for r in rows if self.source == HALF and r["queue_id"] == self.queue_id)

    def target(self, queue_offset: int) -> RecordTarget:
        """Returns the command target of one of its messages."""
        return RecordTarget(self.source, self.queue_id, queue_offset)

    def name(self, queue_offset: int) -> str:
        """Returns one of its messages as people name it."""
        return f"{self.source} {self.queue_id}-{queue_offset}"

    def is_committed(self, row: Row) -> bool:
        """Returns whether a row's epoch is committed."""
        return bool(row["epoch"] <= self.lake_rows.epoch)

    @cached_property
    def outcomes(self) -> list[Row]:
        """Returns its outcomes, those of an epoch that is not committed too."""
        return self.of(self.lake_rows.outcomes)

    @cached_property
    def checks(self) -> list[Row]:
        """Returns the attempts to ask about it."""
        return self.of(self.lake_rows.checks)

    @cached_property
    def delayed(self) -> list[Row]:
        """Returns its messages that were delayed."""
        return self.of(self.lake_rows.delayed)

    @cached_property
    def deliveries(self) -> list[Row]:
        """Returns its messages' deliveries and cancellations that are not part of a commit."""
        return self.of(self.lake_rows.deliveries)

    @cached_property
    def ends(self) -> dict[int, Row]:
        """Returns the ends by offset, COMMITTED or ROLLED_BACK, of committed epochs."""
        return {
            row["queue_offset"]: row
            for row in self.outcomes
            if row["outcome"] != DISCARDED and self.is_committed(row)
        }

    @cached_property
    def open_halves(self) -> list[Row]:
        """Returns the halves that can still be ended, discarded ones too."""
        return [half for half in self._halves_without_end if not self._has_left(half)]

    @cached_property
    def left_halves(self) -> list[Row]:
        """Returns the halves below the floor that can be ended no more, though no end is known.

        The row of an end can be deleted sooner than its half. A half that was given up leaves the
        state when the floor passes it.
        """
        return [half for half in self._halves_without_end if self._has_left(half)]

    @cached_property
    def _halves_without_end(self) -> list[Row]:
        if self.source != HALF or self.error is not None:
            return []
        return [m for m in self.messages if m["queue_offset"] not in self.ends]

    def _has_left(self, half: Row) -> bool:
        """Returns whether a half without an end is not in the state, since the floor passed it."""
        offset = half["queue_offset"]
        if any(row["queue_offset"] == offset for row in self.halves):
            return False

        floor = self.lake_rows.floor
        until = floor.epoch if offset in self.discards else floor.deleted
        return bool(half["epoch"] <= until)

    @cached_property
    def discards(self) -> dict[int, Row]:
        """Returns the last discards by offset, of committed epochs."""
        return {
            row["queue_offset"]: row
            for row in self.outcomes
            if row["outcome"] == DISCARDED and self.is_committed(row)
        }

    def is_delayed(self, queue_offset: int) -> bool:
        """Returns whether one of its messages is still delayed."""
        return any(row["queue_offset"] == queue_offset for row in self.still_delayed)

    @cached_property
    def still_delayed(self) -> list[Row]:
        """Returns its messages that are still delayed, as the newest committed epoch left them."""
        rows = filter(self.is_about, self.lake_rows.still_delayed)
        return [{**row, "epoch": self.lake_rows.epoch} for row in rows]

    @cached_property
    def operations(self) -> list[Row]:
        """Returns the operations that name it, in log order."""
        ops = self._of_queue(self.lake_rows.operations)
        return [op for op in ops if self.offsets.intersection(op["half_offsets"] or ())]

    @cached_property
    def unreadable_operations(self) -> list[Row]:
        """Returns the operations that cannot be read and whose body names it."""
        ops = self._of_queue(self.lake_rows.operations)
        return [op for op in ops if op["error"] and self.offsets & _offsets_of(op["body"])]

    @cached_property
    def conflicts(self) -> list[Row]:
        """Returns the namings of it without effect."""
        return sorted(
            self._of_halves(self.lake_rows.conflicts, "half_queue_offset"),
            key=lambda row: (row["epoch"], row["op_queue_offset"], row["half_queue_offset"]),
        )

    @cached_property
    def halves(self) -> list[Row]:
        """Returns its halves that can still be ended, as the job holds them.

        Output: rows of `checker.frames.HALVES`.
        """
        return self._of_halves(self.lake_rows.halves, "queue_offset")

    @cached_property
    def waiting(self) -> list[Row]:
        """Returns the landed COMMITs and ROLLBACKs that wait to end it."""
        namings = self._of_halves(self.lake_rows.namings, "half_queue_offset")
        ends = {row["op_queue_offset"] for row in namings if row["decision"] != UNKNOWN}
        return [op for op in self.operations if op["queue_offset"] in ends]

    @cached_property
    def missing_seqs(self) -> list[int]:
        """Returns the TRAN_SEQs of its set that have not landed."""
        first = self.messages[0]
        if self.source != HALF or not set_key(first):
            return []
        return sorted(set(range(first["tran_size"])) - {m["tran_seq"] for m in self.messages})

    @cached_property
    def elsewhere(self) -> list[Row]:
        """Returns the halves that would be of its set if they were in its half queue."""
        key = set_key(self.messages[0])
        rows = (*self.lake_rows.messages, *self.lake_rows.elsewhere)
        return [
            row
            for row in rows
            if key and row["queue_id"] != self.queue_id and set_key(row)[1:] == key[1:]
        ]

    def age_from_at(self, arm: int) -> int:
        """Returns from when its age counts in an arm: after a re-arm `epoch_at` of its epoch."""
        return self._ages_from.get(arm, int(self.messages[0]["stored_at"]))

    @cached_property
    def _ages_from(self) -> dict[int, int]:
        """Returns from when its age counts by arm, as the oldest row of each has it."""
        ages: dict[int, int] = {}
        for row in self.of(self.lake_rows.pending):
            if row["age_from_at"] is not None:  # else it left
                ages.setdefault(row["arm"], int(row["age_from_at"]))
        return ages

    def is_ended_before(self, row: Row) -> bool:
        """Returns whether an earlier epoch ended another half of it in the same way."""
        first = self._first_epochs.get(_way(row), row["epoch"])
        return bool(first < row["epoch"])

    @cached_property
    def _first_epochs(self) -> dict[tuple[Any, ...], int]:
        """Returns the first epoch of each way in which its halves ended."""
        epochs: dict[tuple[Any, ...], int] = {}
        for row in self.outcomes:  # the oldest epoch first
            epochs.setdefault(_way(row), int(row["epoch"]))
        return epochs


def _way(row: Row) -> tuple[Any, ...]:
    """Returns how a half ended: by which operation, in which arm."""
    return row["outcome"], row["arm"], row["op_queue_offset"]


def _offsets_of(body: bytes | None) -> set[int]:
    text = (body or b"").decode("utf-8", "replace")
    if not matches(OFFSETS_PATTERN, text):
        return set()
    return {int(offset) for offset in text.split(",") if offset}


def only_target(rows: Iterable[Row]) -> RecordTarget | None:
    """Returns a target of the only unit of these messages; None if there are several units."""
    units = units_of(LakeRows(messages=tuple(rows)))
    if len(units) != 1:
        return None
    return units[0].target(units[0].messages[0]["queue_offset"])


def units_of(lake_rows: LakeRows) -> list[Unit]:
    """Returns messages as units: whole sets, and all others alone."""
    units: dict[tuple[object, ...], list[Row]] = {}
    for row in lake_rows.messages:
        key: tuple[object, ...] = (row["source"], row["queue_id"], row["queue_offset"])
        if row["source"] == HALF:
            key = set_key(row) or key
        units.setdefault(key, []).append(row)

    return [
        Unit(tuple(sorted(rows, key=lambda row: row["queue_offset"])), lake_rows)
        for rows in units.values()
    ]

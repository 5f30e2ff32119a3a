"""What belongs together, and how it stands after the newest committed epoch.

Pure functions from rows to a unit: a half alone, a whole set, or a schedule record. What the job
holds in memory of a unit is what every epoch recorded of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from checker.frames import DISCARDED
from pipelines.explain.rows import Found, Row, is_in_set
from pipelines.explain.target import HALF
from storage.schemas import LEFT
from txlake.protocol import OFFSETS_PATTERN, UNKNOWN, matches


@dataclass(frozen=True)
class Unit:
    """What is decided at once, with its rows. `messages` are in offset order, at least one."""

    messages: tuple[Row, ...]
    found: Found

    @property
    def source(self) -> str:
        """Return `half` or `schedule`."""
        return str(self.messages[0]["source"])

    @property
    def queue_id(self) -> int:
        """Return the half queue."""
        return int(self.messages[0]["queue_id"])

    @cached_property
    def offsets(self) -> frozenset[int]:
        """Return the offsets of all its messages, duplicates too."""
        return frozenset(m["queue_offset"] for m in self.messages)

    @property
    def error(self) -> str | None:
        """Say why its message cannot be read."""
        error: str | None = self.messages[0]["error"]
        return error

    def of(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows about this unit's messages, oldest epoch first."""
        return sorted(
            (
                row
                for row in rows
                if row.get("source", HALF) == self.source
                and row["queue_id"] == self.queue_id
                and row["queue_offset"] in self.offsets
            ),
            key=lambda row: (row["epoch"], row["queue_offset"]),
        )

    def is_settled(self, row: Row) -> bool:
        """Return whether a row's epoch is committed."""
        return bool(row["epoch"] <= self.found.epoch)

    @cached_property
    def outcomes(self) -> list[Row]:
        """Return its outcomes, those of an epoch that is not committed too."""
        return self.of(self.found.outcomes) if self.source == HALF else []

    @cached_property
    def checks(self) -> list[Row]:
        """Return the attempts to ask about it."""
        return self.of(self.found.checks) if self.source == HALF else []

    @cached_property
    def delayed(self) -> list[Row]:
        """Return its messages that had a time to wait for."""
        return self.of(self.found.delayed)

    @cached_property
    def deliveries(self) -> list[Row]:
        """Return what became of its messages other than straight from a commit."""
        return self.of(self.found.deliveries)

    @cached_property
    def ends(self) -> dict[int, Row]:
        """Return the committed or rolled back ones by offset, of committed epochs."""
        return {
            row["queue_offset"]: row
            for row in self.outcomes
            if row["outcome"] != DISCARDED and self.is_settled(row)
        }

    @cached_property
    def live(self) -> list[Row]:
        """Return the halves that can still be ended, discarded ones too."""
        if self.source != HALF or self.error is not None:
            return []
        return [m for m in self.messages if m["queue_offset"] not in self.ends]

    @cached_property
    def operations(self) -> list[Row]:
        """Return the operations that name it, in log order."""
        return sorted(
            (
                op
                for op in self.found.operations
                if op["queue_id"] == self.queue_id
                and self.source == HALF
                and self.offsets & set(op["half_offsets"] or ())
            ),
            key=lambda op: op["queue_offset"],
        )

    @cached_property
    def unreadable_operations(self) -> list[Row]:
        """Return the operations that cannot be read and whose body names it."""
        return sorted(
            (
                op
                for op in self.found.operations
                if op["queue_id"] == self.queue_id
                and self.source == HALF
                and op["error"] is not None
                and self.offsets & _offsets_of(op["body"])
            ),
            key=lambda op: op["queue_offset"],
        )

    @cached_property
    def conflicts(self) -> list[Row]:
        """Return the namings of it without effect."""
        return sorted(
            (
                row
                for row in self.found.conflicts
                if row["queue_id"] == self.queue_id
                and self.source == HALF
                and row["half_queue_offset"] in self.offsets
            ),
            key=lambda row: (row["epoch"], row["op_queue_offset"], row["half_queue_offset"]),
        )

    @cached_property
    def recorded(self) -> list[Row]:
        """Return all that was recorded of its halves' state, the oldest first."""
        return self.of(self.found.pending) if self.source == HALF else []

    @cached_property
    def halves(self) -> list[Row]:
        """Return its halves that can still be ended, as the job holds them.

        Output: rows of `checker.frames.HALVES`.
        """
        newest = {row["queue_offset"]: row for row in self.recorded}
        return [row for _, row in sorted(newest.items()) if row["change"] != LEFT]

    @cached_property
    def namings(self) -> list[Row]:
        """Return what waits and names it, as the job holds it: rows of NAMINGS."""
        return [
            row
            for row in self.found.namings
            if row["queue_id"] == self.queue_id
            and self.source == HALF
            and row["half_queue_offset"] in self.offsets
        ]

    @cached_property
    def waiting(self) -> list[Row]:
        """Return the landed COMMITs and ROLLBACKs that wait to end it."""
        ends = {row["op_queue_offset"] for row in self.namings if row["decision"] != UNKNOWN}
        return [op for op in self.operations if op["queue_offset"] in ends]

    @cached_property
    def missing_seqs(self) -> list[int]:
        """Return the TRAN_SEQs of its set that have not landed."""
        first = self.messages[0]
        if self.source != HALF or not is_in_set(first):
            return []
        return sorted(set(range(first["tran_size"])) - {m["tran_seq"] for m in self.messages})

    def stored_at(self, arm: int) -> int:
        """Return s of an arm: after a re-arm it is T of the re-arm's epoch."""
        of_arm = [row["stored_at"] for row in self.recorded if row["arm"] == arm]
        return int(of_arm[0] if of_arm else self.messages[0]["stored_at"])


def _offsets_of(body: bytes | None) -> set[int]:
    text = (body or b"").decode("utf-8", "replace")
    if not matches(OFFSETS_PATTERN, text):
        return set()
    return {int(offset) for offset in text.split(",") if offset}


def units_of(found: Found) -> list[Unit]:
    """Put the found messages together: whole sets, and all others alone."""
    units: dict[tuple[object, ...], list[Row]] = {}
    for row in found.messages:
        key: tuple[object, ...] = (row["source"], row["queue_id"], row["queue_offset"])
        if row["source"] == HALF and is_in_set(row):
            key = ("set", row["queue_id"], row["producer_group"], row["transaction_id"],
                   row["tran_size"])  # fmt: skip
        units.setdefault(key, []).append(row)
    return [
        Unit(tuple(sorted(rows, key=lambda row: row["queue_offset"])), found)
        for rows in units.values()
    ]

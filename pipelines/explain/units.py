"""What belongs together, and how it stands after the newest committed epoch.

Pure functions from rows to a unit: a half alone, a whole set, or a schedule record. What the job
holds in memory of a unit (`checker.frames.HALVES`) is made here from the unit's own rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from checker.frames import DISCARDED
from pipelines.explain.rows import Found, Row, is_in_set
from pipelines.explain.target import HALF, plain_target
from txlake.protocol import OFFSETS_PATTERN, UNKNOWN, matches


@dataclass(frozen=True)
class Unit:
    """What is decided at once, with its rows. `messages` are in offset order, at least one."""

    messages: tuple[Row, ...]
    found: Found

    @property
    def source(self) -> str:
        """Give `half` or `schedule`."""
        return str(self.messages[0]["source"])

    @property
    def queue_id(self) -> int:
        """Give the half queue."""
        return int(self.messages[0]["queue_id"])

    @cached_property
    def offsets(self) -> frozenset[int]:
        """Give the offsets of all its messages, duplicates too."""
        return frozenset(m["queue_offset"] for m in self.messages)

    @property
    def error(self) -> str | None:
        """Say why its message cannot be read."""
        error: str | None = self.messages[0]["error"]
        return error

    def of(self, rows: Iterable[Row]) -> list[Row]:
        """Give the rows about this unit's messages, oldest epoch first."""
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
        """Say whether a row's epoch is committed."""
        return bool(row["epoch"] <= self.found.epoch)

    @cached_property
    def outcomes(self) -> list[Row]:
        """Give its outcomes, those of an epoch that is not committed too."""
        return self.of(self.found.outcomes) if self.source == HALF else []

    @cached_property
    def checks(self) -> list[Row]:
        """Give the attempts to ask about it."""
        return self.of(self.found.checks) if self.source == HALF else []

    @cached_property
    def delayed(self) -> list[Row]:
        """Give its messages that had a time to wait for."""
        return self.of(self.found.delayed)

    @cached_property
    def deliveries(self) -> list[Row]:
        """Give what became of its messages other than straight from a commit."""
        return self.of(self.found.deliveries)

    @cached_property
    def ends(self) -> dict[int, Row]:
        """Give the committed or rolled back ones by offset, of committed epochs."""
        return {
            row["queue_offset"]: row
            for row in self.outcomes
            if row["outcome"] != DISCARDED and self.is_settled(row)
        }

    @cached_property
    def live(self) -> list[Row]:
        """Give the halves that can still be ended, discarded ones too."""
        if self.source != HALF or self.error is not None:
            return []
        return [m for m in self.messages if m["queue_offset"] not in self.ends]

    @cached_property
    def rearms(self) -> list[Row]:
        """Give the commands that re-armed it."""
        targets = {f"half:{self.queue_id}-{offset}" for offset in self.offsets}
        return sorted(
            (
                row
                for row in self.found.commands
                if row["result"] == "rearmed"
                and plain_target(row["target"]) in targets
                and self.is_settled(row)
            ),
            key=lambda row: row["queue_offset"],
        )

    @cached_property
    def arm(self) -> int:
        """Give how often it was re-armed."""
        seen = [row["arm"] for row in (*self.outcomes, *self.checks)]
        return max([len(self.rearms), *map(int, seen)])

    @cached_property
    def operations(self) -> list[Row]:
        """Give the operations that name it, in log order."""
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
        """Give the operations that cannot be read and whose body names it."""
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
        """Give the namings of it without effect."""
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
    def waiting(self) -> list[Row]:
        """Give the landed COMMITs and ROLLBACKs that could still end it."""
        conflicts = {row["op_queue_offset"] for row in self.conflicts if self.is_settled(row)}
        if not self.live:
            return []
        return [
            op
            for op in self.operations
            if op["error"] is None
            and op["decision"] != UNKNOWN
            and op["queue_offset"] not in conflicts
            and self.is_settled(op)
        ]

    @cached_property
    def answers(self) -> list[Row]:
        """Give the landed UNKNOWNs that are valid."""
        conflicts = {row["op_queue_offset"] for row in self.conflicts}
        return [
            op
            for op in self.operations
            if op["decision"] == UNKNOWN
            and op["queue_offset"] not in conflicts
            and self.is_settled(op)
        ]

    @cached_property
    def missing_seqs(self) -> list[int]:
        """Give the TRAN_SEQs of its set that have not landed."""
        first = self.messages[0]
        if self.source != HALF or not is_in_set(first):
            return []
        return sorted(set(range(first["tran_size"])) - {m["tran_seq"] for m in self.messages})

    def halves(self) -> list[Row]:
        """Give its live halves as the job holds them: rows of `checker.frames.HALVES`."""
        if not self.live:
            return []
        unit_offset = min(m["queue_offset"] for m in self.live)
        attempts = [
            row
            for row in self.checks
            if row["queue_offset"] == unit_offset
            and row["arm"] == self.arm
            and self.is_settled(row)
        ]
        return [self._half(m, unit_offset, attempts) for m in self.live]

    def _half(self, message: Row, unit_offset: int, attempts: list[Row]) -> Row:
        discards = [
            row
            for row in self.outcomes
            if row["queue_offset"] == message["queue_offset"]
            and row["outcome"] == DISCARDED
            and self.is_settled(row)
        ]
        is_first = message["queue_offset"] == unit_offset
        return {
            **message,
            "unit_offset": unit_offset,
            "arm": self.arm,
            "stored_at": self.counts_from(message, self.arm),
            "check_times": sum(row["acknowledged"] for row in attempts) if is_first else 0,
            "checked_at": max((row["sent_at"] for row in attempts), default=None)
            if is_first
            else None,
            "last_answer_at": max((op["stored_at"] for op in self.answers), default=None)
            if is_first
            else None,
            "discard_cause": next(
                (row["cause"] for row in reversed(discards) if row["arm"] == self.arm), None
            ),
            "discards": len(discards),
        }

    def counts_from(self, message: Row, arm: int) -> int:
        """Give s of an arm: after a re-arm it is T of the re-arm's epoch."""
        stored_at = int(message["stored_at"])
        if not 0 < arm <= len(self.rearms) or message["epoch"] >= self.rearms[arm - 1]["epoch"]:
            return stored_at
        rearmed = self.found.epochs.get(self.rearms[arm - 1]["epoch"])
        return stored_at if rearmed is None else rearmed.epoch_at


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

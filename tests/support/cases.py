"""A rule's table: one row a case, with what is given, what is expected, and why.

What is given is a story: steps that land something in the epoch, and `later`, which begins the
next one. The decision and the plain-Python model tell it side by side and must agree on every row
and on the state; what it comes to is compared with what is expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.comparison import compared
from tests.support.comparison_rows import COLUMNS
from tests.support.history import Row
from tests.support.steps import Step, world_of

Case = Any  # what pytest.param gives: `values` are given and expected, `id` is why


def case(*, given: Sequence[Step], expected: Any, why: str) -> Case:
    """Return one row of a table."""
    return pytest.param(given, expected, id=why)


def table(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Run a test for each row of a table."""
    return pytest.mark.parametrize(("given", "expected"), cases)


class Result:
    """What a story came to: the rows of every epoch, and the state after the last."""

    def __init__(self, given: Sequence[Step]) -> None:
        self.world = world_of(given)
        self.epochs: list[dict[str, list[Row]]] = []
        self.state: dict[str, list[Any]] = {}
        for decided, by_the_rules in compared(self.world):
            assert decided == by_the_rules
            self.epochs.append({name: _as_rows(name, decided[name]) for name in COLUMNS})
            self.state = {name: rows for name, rows in decided.items() if name not in COLUMNS}

    def rows(self, frame: str) -> list[Row]:
        """Return the rows that all epochs decided."""
        return [row for epoch in self.epochs for row in epoch[frame]]

    def halves(self) -> dict[int | str, str]:
        """Return what became of each half, by its offset; of another queue by its coordinate."""
        became = {}
        for epoch in self.world["epochs"]:
            for half in epoch["halves"]:
                became[_name(half)] = "WAITS" if half["error"] is None else "UNREADABLE"

        for row in self.rows("outcomes"):
            became[_name(row)] = _end(row)

        for queue_id, offset, _, _, discard_cause in self.state["members"]:
            if discard_cause is None:
                became[_named(queue_id, offset)] = "WAITS"

        for source, queue_id, offset, *_ in self.state["still delayed"]:
            if source == "half":
                became[_named(queue_id, offset)] += ", delayed"

        for row in self.epochs[-1]["due"]:
            first, *others = row["half_offsets"]
            became[_named(row["queue_id"], first)] = f"CHECK {row['check_times']}"
            for offset in others:
                became[_named(row["queue_id"], offset)] = f"WITH {first}"

        return became

    def ends(self) -> dict[Any, Any]:
        """Return the halves and, where there are any, conflicts and operations that wait.

        A conflict is its op offset, the half's offset and the reason.
        """
        found: dict[Any, Any] = dict(self.halves())
        conflicts = [
            (row["op_queue_offset"], row["half_queue_offset"], row["reason"])
            for row in self.rows("conflicts")
        ]
        if conflicts:
            found["conflicts"] = sorted(conflicts, key=repr)
        waiting = sorted({op_offset for _, op_offset, *_ in self.state["waiting"]})
        if waiting:
            found["waiting"] = waiting
        return found

    def queues(self) -> dict[str, list[str]]:
        """Return the messages of each real queue, in order of their queue offsets, from 0."""
        queues: dict[str, dict[int, str]] = {}
        for row in self.rows("placements"):
            text = f"{row['source']} {row['queue_id']}-{row['queue_offset']}"
            text += f": {row['reason']}" if row["reason"] else ""
            queue = queues.setdefault(f"{row['topic']} {row['real_queue_id']}", {})
            assert row["real_queue_offset"] not in queue
            queue[row["real_queue_offset"]] = text
        for queue in queues.values():
            assert sorted(queue) == list(range(len(queue)))
        return {name: [queue[n] for n in sorted(queue)] for name, queue in queues.items()}

    def results(self) -> list[str]:
        """Return what the operator's commands did, in their order."""
        rows = sorted(self.rows("command_results"), key=lambda row: int(row["admin_offset"]))
        return [row["result"] for row in rows]

    def topics(self) -> dict[str, int]:
        """Return the queue count of every topic."""
        return {topic: count for topic, count, _ in self.state["topics"]}


def _as_rows(frame: str, rows: list[Any]) -> list[Row]:
    return [dict(zip(COLUMNS[frame].split(), row, strict=True)) for row in rows]


def _name(row: Row) -> int | str:
    return _named(row["queue_id"], row["queue_offset"])


def _named(queue_id: int, offset: int) -> int | str:
    return offset if queue_id == 0 else f"{queue_id}-{offset}"


def _end(row: Row) -> str:
    return row["outcome"] if row["cause"] == "operation" else f"{row['outcome']} {row['cause']}"

"""Every way in which one invariant of `storage/verify` alone can be violated, on the sound lake.

A mutation changes the sound lake's rows and says how the row is named that `verify` has to find.
Halves are called by their transaction ids, as in `tests/support/sound_lake.py`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from storage.rows import milliseconds
from tests.support.lake_rows import LakeRows
from txlake.protocol import CHECK_MAX_TOPIC

Row = dict[str, Any]
LAST = 12  # the sound lake's last epoch
ORDERS = "topics/orders"
COPIES = f"topics/{CHECK_MAX_TOPIC}"


@dataclass(frozen=True)
class Mutation:
    """What is changed, which invariant it violates, and columns of the row that is named."""

    invariant: str
    change: Callable[[LakeRows], None]
    named: Row

    @property
    def name(self) -> str:
        return f"{self.invariant}-{self.change.__name__}"


_MUTATIONS: list[Mutation] = []


def violates(invariant: str, **named: Any) -> Callable[[Callable[[LakeRows], None]], None]:
    """Add a mutation to the list."""
    return lambda change: _MUTATIONS.append(Mutation(invariant, change, named))


def all_mutations() -> list[Mutation]:
    """Return the mutations of all modules."""
    for part in ("epochs", "ends", "time", "delivery"):
        importlib.import_module(f"tests.support.mutations_of_{part}")
    return list(_MUTATIONS)


def at_ms(rows: LakeRows, epoch: int) -> int:
    return milliseconds(rows.plan(epoch)["epoch_at"])


def move(rows: LakeRows, row: Row, epoch: int) -> None:
    """Put a row into another epoch."""
    instants = {"decided_at", "stored_at", "sent_at"} & row.keys()
    row |= {"epoch": epoch, **dict.fromkeys(instants, at_ms(rows, epoch))}


def set_parameter(rows: LakeRows, epoch: int, name: str, value: Any) -> None:
    parameters = dict(rows.plan(epoch)["parameters"])
    assert name in parameters
    rows.plan(epoch)["parameters"] = sorted({**parameters, name: json.dumps(value)}.items())


def range_of(rows: LakeRows, epoch: int, topic: str, partition: int) -> Row:
    for found in rows.plan(epoch)["ranges"]:
        if (found["topic"], found["partition"]) == (topic, partition):
            return dict(found)
    raise AssertionError(f"no range of {topic} {partition}")


def set_range(rows: LakeRows, epoch: int, changed: Row) -> None:
    plan = rows.plan(epoch)
    place = changed["topic"], changed["partition"]
    plan["ranges"] = [
        changed if (r["topic"], r["partition"]) == place else r for r in plan["ranges"]
    ]


def deliver_again(rows: LakeRows, source: Row, queue_id: int, queue_offset: int) -> Row:
    """Put one more message into `orders`, in the last epoch."""
    message = {**rows.messages["orders"][0], **source, "asked_queue_id": None, "reason": None}
    message |= {"queue_id": queue_id, "queue_offset": queue_offset}
    move(rows, message, LAST)
    rows.messages["orders"].append(message)
    return message

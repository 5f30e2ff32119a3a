"""Plain rows of a lake, from which a story is told: instants in ms, epochs with their plans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from checker.frames import Parameters
from storage.lake.epochs import COMMITTED, PLANNED
from storage.lake.floor import Floor, floor_of
from storage.lake.lake import Lake
from storage.lake.pruned import read_pruned
from storage.rows import milliseconds
from txlake import protocol as p

Row = dict[str, Any]
Place = tuple[str, int, int]  # source, queue, offset

_EPOCH_COLUMNS = [
    "epoch", "state", "epoch_at", "known_at", "ranges", "cluster_id", "parameters",
]  # fmt: skip


@dataclass(frozen=True)
class EpochAt:
    """What an epoch's plan says. Units: ms. `landed` and `ends` are of (topic, partition)."""

    epoch: int
    epoch_at: int
    known_at: Mapping[int, int]
    parameters: Parameters
    topics: Mapping[str, str]
    landed: Mapping[tuple[str, int], int]
    ends: Mapping[tuple[str, int], int]
    cluster_id: str = ""
    floor: Floor = field(default_factory=Floor)

    def half_end(self, queue_id: int) -> int:
        """Returns the landed end of a half queue."""
        return self.landed.get((self.topics.get("half", p.HALF_TOPIC), queue_id), 0)


@dataclass(frozen=True)
class Found:
    """What a lake says about some messages, as plain rows; instants in ms.

    `epoch`: the newest committed one. `pending`: all that was recorded of the halves' state, up to
    it. As the job holds them after it: `halves`, `still_delayed`, and `namings`, what waits in the
    halves' queues.
    `copies`: rows of TRANS_CHECK_MAX_TIME_TOPIC; `undeliverable`: of TRANS_UNDELIVERABLE_TOPIC.
    `deleted`: by table of a topic, up to which epoch its messages are deleted.
    """

    epoch: int = 0
    epochs: Mapping[int, EpochAt] = field(default_factory=dict)
    messages: Sequence[Row] = ()
    operations: Sequence[Row] = ()
    outcomes: Sequence[Row] = ()
    conflicts: Sequence[Row] = ()
    checks: Sequence[Row] = ()
    delayed: Sequence[Row] = ()
    deliveries: Sequence[Row] = ()
    commands: Sequence[Row] = ()
    copies: Sequence[Row] = ()
    undeliverable: Sequence[Row] = ()
    table_ids: Mapping[str, int] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)
    pending: Sequence[Row] = ()
    halves: Sequence[Row] = ()
    still_delayed: Sequence[Row] = ()
    namings: Sequence[Row] = ()

    @property
    def has_early_rows(self) -> bool:
        """Returns whether some rows are of an epoch that was not committed when they were read."""
        tables = (
            self.messages, self.operations, self.outcomes, self.conflicts, self.checks,
            self.delayed, self.deliveries,
        )  # fmt: skip
        return any(row["epoch"] > self.epoch for rows in tables for row in rows)

    def is_deleted(self, table: str, epoch: int) -> bool:
        """Returns whether a topic no longer has the messages that an epoch delivered to it."""
        return epoch <= self.deleted.get(table, 0)

    @property
    def newest(self) -> EpochAt | None:
        """Returns the newest committed epoch."""
        return self.epochs.get(self.epoch)


def plain(rows: pa.Table) -> list[Row]:
    """Returns rows as dicts, instants in ms."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            ms = rows[column.name].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
            rows = rows.set_column(place, column.name, ms)
    found: list[Row] = rows.to_pylist()
    return found


def newest_epochs(lake: Lake) -> tuple[int, dict[int, EpochAt]]:
    """Returns the newest committed epoch, 0 when there is none, and the plans from there on."""
    newest = lake.last("epochs", "epoch")
    if newest is None:
        return 0, {}
    rows = epoch_rows(lake, [newest - 1, newest])
    committed = max((row["epoch"] for row in rows if row["state"] == COMMITTED), default=0)
    plans = {row["epoch"]: plan_of(row) for row in rows if row["state"] == PLANNED}
    return committed, {epoch: plan for epoch, plan in plans.items() if epoch >= committed}


def epoch_rows(lake: Lake, epochs: Iterable[int]) -> list[Row]:
    """Returns the rows of some epochs, what they landed and what was known."""
    return plain(read_pruned(lake, "epochs", _EPOCH_COLUMNS, {"epoch": sorted(set(epochs))}))


def plan_of(row: Row) -> EpochAt:
    """Returns what a planned row says."""
    values = {key: json.loads(value) for key, value in row["parameters"]}
    names = {item.name for item in fields(Parameters)}
    known: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in names
    }
    places = [((r["topic"], r["partition"]), r) for r in row["ranges"]]
    return EpochAt(
        epoch=row["epoch"],
        epoch_at=row["epoch_at"],
        known_at={queue: milliseconds(at) for queue, at in row["known_at"]},
        parameters=Parameters(**known),
        topics=values.get("wire", {}).get("topics", {}),
        landed={place: r["to_offset"] for place, r in places},
        ends={place: r["end_offset"] for place, r in places},
        cluster_id=row["cluster_id"],
        floor=floor_of(values),
    )


def set_of(half: Row) -> tuple[object, ...]:
    """Returns what names a half's set, empty for a half alone (PROTOCOL.md "Sets", line 1)."""
    if half["error"] is not None or (half["tran_size"] or 1) == 1:
        return ()
    return tuple(half[c] for c in ("queue_id", "producer_group", "transaction_id", "tran_size"))

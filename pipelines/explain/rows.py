"""Plain rows of a lake, from which a timeline is made: instants in ms; plans of epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.lake.epochs import COMMITTED, Plan
from storage.lake.floor import Floor
from storage.lake.history import read_plans
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from txlake.protocol import Target, read_target

Row = dict[str, Any]
Place = tuple[str, int, int]  # source, queue, offset


@dataclass(frozen=True)
class LakeRows:
    """The rows of a lake about some messages, as plain rows; instants in ms.

    `epoch`: the newest committed one. `pending`: all recorded rows of the halves' state, up to
    it. The state after it: `halves`, `still_delayed`, and `namings`, the operations that wait in
    the halves' queues.
    `copies`: rows of TRANS_CHECK_MAX_TIME_TOPIC; `undeliverable`: of TRANS_UNDELIVERABLE_TOPIC.
    `elsewhere`: halves of the target's transaction id that stand in other half queues.
    `losses`: if the lake has no message: the commands that accept that offsets are lost.
    `deleted`: by table of a topic, up to which epoch its messages are deleted. `floor`: the one
    that stood when the rows had been read: what is missing for it is known.
    If a message is delivered: `positions`, rows of `read_positions`, and `refusals`, those of
    `read_refusals`.
    """

    epoch: int = 0
    epochs: Mapping[int, Plan] = field(default_factory=dict)
    messages: Sequence[Row] = ()
    elsewhere: Sequence[Row] = ()
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
    floor: Floor = field(default_factory=Floor)
    pending: Sequence[Row] = ()
    halves: Sequence[Row] = ()
    still_delayed: Sequence[Row] = ()
    namings: Sequence[Row] = ()
    losses: Sequence[Row] = ()
    positions: Sequence[Row] = ()
    refusals: Mapping[tuple[str, int, int], Sequence[Row]] = field(default_factory=dict)

    @property
    def has_uncommitted_rows(self) -> bool:
        """Returns whether some rows are of an epoch that was not committed when we read them."""
        tables = (
            self.messages,
            self.operations,
            self.outcomes,
            self.conflicts,
            self.checks,
            self.delayed,
            self.deliveries,
        )
        return any(row["epoch"] > self.epoch for rows in tables for row in rows)

    def is_deleted(self, table: str, epoch: int) -> bool:
        """Returns whether a topic no longer has the messages that an epoch delivered to it."""
        return epoch <= self.deleted.get(table, 0)

    @cached_property
    def commands_by_offset(self) -> Mapping[int, Row]:
        """Returns the commands by their offsets."""
        return {row["queue_offset"]: row for row in self.commands}

    @cached_property
    def commands_by_target(self) -> Mapping[Target | None, Sequence[Row]]:
        """Returns the commands by what they name; None: by nothing that can be read."""
        by_target: dict[Target | None, list[Row]] = {}
        for row in self.commands:
            by_target.setdefault(read_target(row["target"]), []).append(row)
        return by_target

    @property
    def newest(self) -> Plan | None:
        """Returns the newest committed epoch."""
        return self.epochs.get(self.epoch)


def to_dicts(rows: pa.Table) -> list[Row]:
    """Returns rows as dicts, instants in ms."""
    for index, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            ms = rows[column.name].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
            rows = rows.set_column(index, column.name, ms)

    dicts: list[Row] = rows.to_pylist()
    return dicts


def latest_committed(lake: Lake) -> tuple[int, dict[int, Plan]]:
    """Returns the newest committed epoch, 0 when there is none, and the plans from there on."""
    newest = lake.max_value("epochs", "epoch")
    if newest is None:
        return 0, {}

    either = [newest - 1, newest]
    bounds: Bounds = {"epoch": either, "state": [COMMITTED]}
    rows = read_rows(lake, "epochs", ["epoch"], bounds)
    committed: int = pc.max(rows["epoch"]).as_py() or 0
    return committed, read_plans(lake, [epoch for epoch in either if epoch >= committed])


def latest_floor(lake: Lake) -> Floor:
    """Returns the floor of the newest committed epoch.

    Read behind other rows it covers all that was deleted while they were read.
    """
    epoch, plans = latest_committed(lake)
    return plans[epoch].floor if epoch in plans else Floor()


def has_keys(text: str | None, keys: str) -> bool:
    """Returns whether a message's KEYS are a text, or have it as one of their words."""
    return text is not None and (text == keys or keys in text.split())


def contains_keys(keys: str) -> pc.Expression:
    """Returns a filter for files: all rows that `with_keys` takes, and more."""
    return pc.match_substring(pc.field("keys"), keys)


def with_keys(rows: pa.Table, keys: str) -> pa.Table:
    """Returns the rows of messages that have these KEYS, as `has_keys` says it."""
    candidates = rows.filter(contains_keys(keys))
    is_wanted = [has_keys(text, keys) for text in candidates["keys"].to_pylist()]
    return candidates.filter(pa.array(is_wanted, pa.bool_()))


def set_key(half: Row) -> tuple[object, ...]:
    """Returns the key of a half's set, empty for a half alone.

    Source: docs/protocol/rules.md "Sets", line 1.
    """
    if half["error"] is not None or half["tran_size"] is None:
        return ()
    return tuple(half[c] for c in ("queue_id", "producer_group", "transaction_id", "tran_size"))

"""Rows that say who wrote them, for tests of two drivers at one lake."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

from storage.files.location import LakeLocation
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.schemas import CONFLICTS

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def rows(epoch: int, reason: str = "first") -> pa.Table:
    """Return the one conflict of an epoch; its reason names the writer."""
    row = {"queue_id": 0, "op_queue_offset": epoch, "reason": reason, "epoch": epoch}
    full = {name: row.get(name) for name in CONFLICTS.names}
    return pa.Table.from_pylist([full | {"decided_at": NOW}], schema=CONFLICTS)


def plan(epoch: int, owner: str) -> Plan:
    """Return the plan of an epoch that lands nothing."""
    return Plan(epoch, 1_000 * epoch, {}, {}, (), "cluster", {}, {}, owner, 2)


def reasons(location: str | LakeLocation) -> dict[int, list[str]]:
    """Return the reasons of all conflicts, by epoch."""
    found: dict[int, list[str]] = {}
    for row in Lake(location).read("conflicts").to_pylist():
        found.setdefault(row["epoch"], []).append(row["reason"])
    return found

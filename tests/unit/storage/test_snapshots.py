"""When an epoch takes a snapshot of the state: rarely enough that it costs less than changes."""

from __future__ import annotations

import pytest

from pipelines.epoch.parameters import planned_snapshot
from storage.lake.epochs import Plan
from storage.lake.snapshots import Snapshot, snapshot_of
from storage.schemas import SNAPSHOT

RETENTION_MS = 8_000
TAKEN = Snapshot(100, 50_000, changes=25)


@pytest.mark.parametrize(
    ("snapshot", "epoch_at", "rows", "expected", "why"),
    [
        (TAKEN, 50_999, 100, True, "a quarter of the state changed"),
        (TAKEN, 50_999, 101, False, "less of it changed"),
        (TAKEN, 51_000, 101, True, "an eighth of the retention has passed"),
        (Snapshot(100, 50_000), 50_999, 0, True, "nothing is there: it costs nothing"),
        (Snapshot(100, 50_000), 50_999, 1, False, "nothing changed"),
        (Snapshot(), 50_999, 1_000_000, True, "there was none"),
    ],
)
def test_a_snapshot_is_due(
    snapshot: Snapshot, epoch_at: int, rows: int, expected: bool, why: str
) -> None:
    assert snapshot.is_due(epoch_at, rows, RETENTION_MS) is expected, why


def test_a_plan_without_one_has_none() -> None:
    assert snapshot_of({"snapshot_epochs": 7}) == Snapshot(0, 0, 0)


@pytest.mark.parametrize(
    ("parameters", "expected", "why"),
    [
        ({"snapshot_epochs": 4, SNAPSHOT: {"epoch": 8, "at": 1, "changes": 0}}, 1, "its own"),
        ({"snapshot_epochs": 4, SNAPSHOT: {"epoch": 4, "at": 1, "changes": 9}}, 0, "an older one"),
        ({"snapshot_epochs": 5, SNAPSHOT: {"epoch": 5, "at": 1, "changes": 9}}, None, "no fifth"),
        ({}, None, "a backfill from files"),
    ],
)
def test_an_epoch_counts_its_snapshot(
    parameters: dict[str, object], expected: int | None, why: str
) -> None:
    plan = Plan(8, 60_000, {}, {}, (), "cluster", {}, parameters, "test", 1)
    assert planned_snapshot(plan) == expected, why

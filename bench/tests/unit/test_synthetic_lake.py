"""A synthetic lake is whole, and its snapshots say what its changes say."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from bench import synthetic_lake
from pipelines.epoch.recorded_state import latest_rows, read_state, read_state_log
from pipelines.health.facts import lake_facts
from storage.lake.aging import snapshot_before
from storage.lake.integrity import require_readable
from storage.schemas import SNAPSHOT


def test_snapshots_of_a_synthetic_lake_hold_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthetic_lake, "EPOCH_ROWS", 100)
    lake = synthetic_lake.make(str(tmp_path / "lake"), 15_000, 5)
    require_readable(lake)
    assert snapshot_before(lake, 150) == synthetic_lake.SNAPSHOT_EPOCHS
    for table in ("pending", "delayed"):
        recorded = read_state_log(lake, table, 150)
        changes = recorded.filter(pc.not_equal(recorded["change"], SNAPSHOT))
        state = read_state(lake, table, 150, 100)
        assert changes.num_rows < recorded.num_rows and state.num_rows > 0
        assert state.equals(latest_rows(table, changes)), table
    assert lake_facts(lake, synthetic_lake.START_MS).pending > 15

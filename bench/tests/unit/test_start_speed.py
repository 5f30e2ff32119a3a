"""An old lake stands where its transactions have brought it, and keeps as much as a young one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import aged_lake, start_speed, synthetic_lake
from bench.aged_lake import Age, make
from storage.lake.epochs import read_progress
from storage.lake.integrity import require_intact
from storage.lake.table import deleted_rows


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_lake, "EPOCH_ROWS", 40)
    monkeypatch.setattr(synthetic_lake, "SNAPSHOT_EPOCHS", 4)
    monkeypatch.setattr(aged_lake, "SNAPSHOT_EPOCHS", 4)
    monkeypatch.setattr(aged_lake, "_HOUR_MS", 32 * synthetic_lake.EPOCH_MS)


def test_an_old_lake_is_whole_has_old_numbers_and_what_is_not_kept_is_deleted(
    tmp_path: Path,
) -> None:
    old = make(str(tmp_path / "old"), Age(10_000, 40))
    progress = read_progress(old)
    require_intact(old, progress, is_exclusive=True)
    last = progress.last
    assert last is not None
    assert (last.epoch, last.epoch - last.floor.deleted) == (10_000, 40)
    assert set(last.queue_ends(synthetic_lake.TOPICS["half"]).values()) == {100_000}
    half = old.handle("half")
    assert half.version() > 10_000
    there = sum(half.get_add_actions()["num_records"].to_pylist())
    assert 40 * 40 <= there <= 50 * 40
    assert there + deleted_rows(half) == 10_000 * 40
    young = make(str(tmp_path / "young"), Age(40, 40))
    progress = read_progress(young)
    require_intact(young, progress, is_exclusive=True)
    assert deleted_rows(young.handle("half")) == 0


def test_both_lakes_are_started_in_turns_and_the_ratio_is_judged(tmp_path: Path) -> None:
    words = [str(tmp_path), "--behind", "40000", "--young", "1600", "--rounds", "2"]
    done = CliRunner().invoke(start_speed.main, words)
    told = json.loads(done.stdout)
    assert told["lakes"]["young"]["transactions"] == 1_600
    assert told["lakes"]["old"]["transactions"] == 40_000
    assert done.exit_code == int(any(ratio > start_speed.MUST for ratio in told["ratios"].values()))
    made = {path.name for path in tmp_path.iterdir()}
    CliRunner().invoke(start_speed.main, words)
    assert {path.name for path in tmp_path.iterdir()} == made

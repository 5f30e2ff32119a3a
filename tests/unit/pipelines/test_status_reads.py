"""What `txlake status` reads does not grow with the lake: epochs, state and the newest checks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.health import groups
from pipelines.health.facts import LakeFacts, lake_facts
from storage.lake.aging import first_epoch_of_last_rows
from storage.lake.lake import Lake
from storage.lake.table import LakeTable
from tests.support.notebook_lake import START_AT, STEP_MS, shop_rows

CHECKS = 20
# The state, and what the job records of its epochs, is all that may be read whole.
BOUNDED = {"epochs", "pending", "delayed", "catalog"}


def grown(path: Path, epochs: int) -> Lake:
    """Return a shop's lake, every table with a file for each epoch."""
    shop = shop_rows(epochs, (3, 5))
    return shop.write(path, by_epoch={*shop.tables, *shop.messages} - {"consumer_offsets"})


def facts_and_reads(
    lake: Lake, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[LakeFacts, Counter[str]]:
    """Return the facts, and how many rows the opened files of each table have."""
    opened: Counter[str] = Counter()
    dataset_of = LakeTable.dataset_of

    def counted(table: LakeTable, files: pa.Table, *others: object) -> object:
        opened[table._name] += (pc.sum(files["num_records"]).as_py() or 0) if files.num_rows else 0
        return dataset_of(table, files, *others)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "dataset_of", counted)
        patched.setattr(groups, "CHECKS_MAX", CHECKS)
        return lake_facts(lake, START_AT + epochs * STEP_MS), opened


def test_status_of_a_lake_that_has_grown_reads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    young, old = grown(tmp_path / "young", 15), grown(tmp_path / "old", 30)
    _, few = facts_and_reads(young, 15, monkeypatch)
    facts, many = facts_and_reads(old, 30, monkeypatch)
    assert facts.epoch == 30 and facts.pending and facts.undeliverable and facts.groups
    assert old.read("outcomes").num_rows > 1.5 * young.read("outcomes").num_rows
    assert not {"half", "op", "conflicts", "waiting", "schedule"} & many.keys()
    for table in ("outcomes", "checks"):
        rows = old.read(table).num_rows
        assert 0 < many[table] < rows / 2, (table, many[table], rows)
        assert many[table] <= few[table] + CHECKS


def test_the_newest_rows_of_a_table_begin_at_an_epoch(tmp_path: Path) -> None:
    lake = grown(tmp_path / "lake", 12)
    epochs = pc.value_counts(lake.read("checks")["epoch"]).to_pylist()
    by_epoch = {row["values"]: row["counts"] for row in epochs}
    for wanted in (1, 7, 25):
        first = first_epoch_of_last_rows(lake, "checks", wanted)
        assert sum(n for epoch, n in by_epoch.items() if epoch >= first) >= wanted
        assert sum(n for epoch, n in by_epoch.items() if epoch > first) < wanted
    assert first_epoch_of_last_rows(lake, "checks", 10_000) == 0

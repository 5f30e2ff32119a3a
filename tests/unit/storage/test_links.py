"""Links in a table's folder: nothing behind them is deleted."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from storage.errors import BrokenLakeError
from storage.lake.integrity import require_recorded
from storage.lake.lake import Lake
from storage.maintenance.limits import MaintenanceLimits
from storage.maintenance.maintenance import Maintenance
from storage.verify.run import verify
from tests.support.in_memory_job import InMemoryJob
from txlake import Consumer
from txlake._compare_and_set import delete_stale_files
from txlake._consumer_offsets import ConsumerOffsets

LONG_AGO = 1_000_000_000


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def make_old(folder: Path) -> None:
    for path in files_below(folder):
        os.utime(path, (LONG_AGO, LONG_AGO))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    job = InMemoryJob(tmp_path / "lake")
    for number in range(3):
        job.half(f"tx-{number}")
        job.end("COMMIT", number)
        job.run()
    return Lake(job.lake.path)


@pytest.mark.parametrize("table", ["half", "consumer_offsets", "topics/1"])
def test_maintenance_deletes_nothing_behind_a_link(lake: Lake, tmp_path: Path, table: str) -> None:
    folder = Path(lake.path, table)
    if table == "consumer_offsets":
        Consumer(lake.path, "points", ["orders"]).close()
    home = tmp_path / "home"
    shutil.copytree(Path(lake.path, "outcomes"), home)
    make_old(home)
    stray = folder / "part-00000-stray.parquet"
    stray.write_bytes(b"what a crash left")
    make_old(folder)
    (folder / "more").symlink_to(Path(lake.path, "op"))
    (folder / "home").symlink_to(home)
    (folder / "linked.parquet").symlink_to(next(home.glob("*.parquet")))
    make_old(Path(lake.path, "op"))
    before = files_below(Path(lake.path, "op")) | files_below(home)

    limits = MaintenanceLimits(16, 1 << 20, 32, 0, 0, 0)
    Maintenance(lake, limits)._vacuum(table, is_full=True)

    assert files_below(Path(lake.path, "op")) | files_below(home) == before
    assert not stray.exists()
    assert (folder / "linked.parquet").is_symlink()


def test_a_consumers_compaction_deletes_nothing_behind_a_link(lake: Lake) -> None:
    with Consumer(lake.path, "points", ["orders"]) as consumer:
        consumer.poll(5.0)
        consumer.commit()
    folder, half = Path(lake.path, "consumer_offsets"), Path(lake.path, "half")
    stray = folder / "part-00000-stray.parquet"
    stray.write_bytes(b"what a crash left")
    (folder / "more").symlink_to(half)
    make_old(folder)
    make_old(half)
    before = files_below(half)

    offsets = ConsumerOffsets(str(folder))
    offsets.newest()
    delete_stale_files(offsets._files.table, str(folder), full=True)

    assert files_below(half) == before
    assert not stray.exists()


@pytest.mark.parametrize("kind", ["outside", "link"])
def test_a_log_that_names_a_file_elsewhere_is_damaged(lake: Lake, kind: str) -> None:
    folder = Path(lake.path, "outcomes")
    file = next(folder.glob("*.parquet"))
    elsewhere = Path(lake.path, "op", file.name)
    file.rename(elsewhere)
    if kind == "link":
        file.symlink_to(elsewhere)
    else:
        for entry in (folder / "_delta_log").glob("*.json"):
            entry.write_text(entry.read_text("utf-8").replace(file.name, f"../op/{file.name}"))

    named = file.name if kind == "link" else f"../op/{file.name}"
    sentence = f"the table outcomes names {re.escape(named)}, which is no file in its own folder"
    with pytest.raises(BrokenLakeError, match=sentence):
        require_recorded(Lake(lake.path))
    report = verify(Lake(lake.path))
    assert [f.invariant.name for f in report.findings if f.violations][:1] == ["lake_is_whole"]

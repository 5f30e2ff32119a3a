"""Sets and their duplicates, where the floor stands between them."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.support.aging_job import EPOCH_MS, AgingJob
from tests.support.lakes_with_floor import require_sound
from txlake.protocol import COMMIT, ROLLBACK

NOTHING_ENDS = {"check_max": 1_000, "half_retention_ms": 10**12}


def pass_floor(job: AgingJob, offset: int) -> None:
    """Run epochs until all below an offset of queue 0 lies below what is deleted."""
    job.run(EPOCH_MS)
    epoch = job.epoch
    while job.floor.deleted < epoch:
        job.run(EPOCH_MS)
    job.maintain()
    assert job.floor.offsets[0] >= offset


def test_a_commit_that_named_a_duplicate_ends_its_set_when_all_around_it_is_deleted(
    tmp_path: Path,
) -> None:
    job = AgingJob(tmp_path / "lake", **NOTHING_ENDS)
    first = job.half("set", tran_size=2, tran_seq=0)
    duplicate = job.half("set", tran_size=2, tran_seq=0)
    gone = job.half("gone")
    job.end(ROLLBACK, gone)
    job.run(EPOCH_MS)
    job.end(COMMIT, duplicate)
    pass_floor(job, gone + 1)
    there = set(job.lake.read("half")["queue_offset"].to_pylist())
    assert {first, duplicate} <= there
    last = job.half("set", tran_size=2, tran_seq=1)
    job.run(EPOCH_MS)
    ends = job.lake.read("outcomes").filter(pc.field("outcome") == "COMMITTED")
    assert sorted(ends["queue_offset"].to_pylist()) == [first, last]
    assert job.lake.read("conflicts").num_rows == 0
    require_sound(Path(job.lake.path))


@pytest.mark.parametrize("size", [1, 2])
def test_a_set_below_the_floor_with_duplicates_of_all_of_it_above_is_sound(
    tmp_path: Path, size: int
) -> None:
    job = AgingJob(tmp_path / "lake", **NOTHING_ENDS)
    members = [job.half("set", tran_size=size, tran_seq=seq) for seq in range(size)]
    job.end(COMMIT, members[0])
    job.run(EPOCH_MS)
    while job.floor.epoch == 0:
        duplicates = [job.half("set", tran_size=size, tran_seq=seq) for seq in range(size)]
        job.end(COMMIT, *duplicates)
        job.run(EPOCH_MS)
        job.end(ROLLBACK, *duplicates)
        job.run(EPOCH_MS)
    assert job.floor.offsets[0] > members[-1]
    require_sound(Path(job.lake.path))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_sets_with_duplicates_around_a_floor_that_moves_are_sound(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    job = AgingJob(tmp_path / "lake", check_max=4, half_retention_ms=10**12)
    halves: list[int] = []
    for number in range(24):
        for _ in range(chance.randint(0, 3)):
            size = chance.choice((1, 2, 2, 3))
            columns = {"tran_size": size, "tran_seq": chance.randrange(size)}
            delay = chance.choice((None, None, 18))
            name = f"set{chance.randrange(3)}"
            halves.append(job.half(name, delay_level=delay, **columns))
        for _ in range(chance.randint(0, 2) if halves else 0):
            named = chance.choices(halves, k=chance.randint(1, 3))
            ahead = [halves[-1] + chance.randint(1, 6)] * (chance.random() < 0.4)
            job.end(chance.choice((COMMIT, COMMIT, ROLLBACK)), *named, *ahead)
        job.run(EPOCH_MS)
        if number % 4 == 3:
            job.maintain()
    require_sound(Path(job.lake.path))

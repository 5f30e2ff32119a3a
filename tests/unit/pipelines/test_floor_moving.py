"""A floor that moves while epochs above it are run again: their job deletes what they looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.replay import source, verify, what_if
from pipelines.replay.epochs import ReplayedEpochs
from storage.errors import LakeError
from storage.lake.history import read_plans
from tests.support.aging_job import EPOCH_MS, AgingJob
from tests.support.lakes_with_floor import LIMITS
from txlake.protocol import COMMIT, ROLLBACK


def run_epoch(job: AgingJob) -> None:
    """Run an epoch with a transaction that ends, and another end of one that ended before."""
    half = job.half(f"tx{job.epoch}")
    job.end(COMMIT, half)
    job.end(ROLLBACK, max(0, half - 4))
    job.run(EPOCH_MS)


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> AgingJob:
    job = AgingJob(tmp_path_factory.mktemp("aged") / "lake", **LIMITS)
    while not job.floor.deleted:
        run_epoch(job)
    job.maintain()
    return job


def run_beside(job: AgingJob, step: Callable[[int], None], patch: pytest.MonkeyPatch) -> None:
    """Let a job take a step before the first epoch that is run again. Input: of its floor."""
    replay, first = ReplayedEpochs.replay, job.floor.first_epoch
    known = read_plans(job.lake, [first])[first].floor.epoch
    has_begun = False

    def replay_beside_the_job(self: ReplayedEpochs, *arguments: Any, **options: Any) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            step(known)
        replay(self, *arguments, **options)

    patch.setattr(source, "_DATASET_S", 0.0)
    patch.setattr(ReplayedEpochs, "replay", replay_beside_the_job)


@pytest.mark.parametrize("run", [verify, what_if])
def test_rows_that_are_deleted_meanwhile_are_no_difference(
    aged: AgingJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[str], object]
) -> None:
    job = aged.copy(tmp_path / "lake")

    def delete(known: int) -> None:
        while job.floor.deleted <= known:
            run_epoch(job)
        job.maintain()

    run_beside(job, delete, monkeypatch)
    with pytest.raises(LakeError, match=r"has moved meanwhile, to epoch \d+, and rows that are"):
        run(job.lake.path)
    assert getattr(run(job.lake.path), "is_equal", True)


def test_a_floor_that_moves_far_below_what_is_run_again_is_none_of_its_business(
    aged: AgingJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = aged.copy(tmp_path / "lake")
    for _ in range(4):
        run_epoch(job)

    def delete(known: int) -> None:
        assert job.floor.deleted <= known
        job.maintain()

    expired = job.maintained.rows_expired
    run_beside(job, delete, monkeypatch)
    assert verify(job.lake.path).is_equal
    numbers = what_if(job.lake.path).numbers.to_pylist()
    assert all(row["history"] == row["what_if"] for row in numbers)
    assert job.maintained.rows_expired > expired

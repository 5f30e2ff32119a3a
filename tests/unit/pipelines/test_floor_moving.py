"""A floor that moves while epochs above it are run again: their job deletes what they looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.replay import rebuild, source, verify, what_if
from pipelines.replay.archive import Archive
from pipelines.replay.epochs import ReplayedEpochs
from pipelines.replay.kept_rows import KeptRows
from pipelines.replay.refill import ArchiveRunner
from storage.errors import LakeError, UnfinishedLakeError
from storage.lake.epochs import Range
from storage.lake.history import read_plans
from storage.lake.lake import Lake
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


@pytest.mark.parametrize("used_s", [0.0, 300.0])
def test_files_that_the_job_merges_and_deletes_while_a_lake_is_put_in_one_batch_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used_s: float
) -> None:
    """As when a rebuild takes longer than file_retention_ms."""
    job = AgingJob(tmp_path / "lake")
    for number in range(4):
        job.end(COMMIT, job.half(f"tx{number}"))
        job.run(1)
    monkeypatch.setattr(source, "_DATASET_S", used_s)
    archive = Archive.of_lake(Lake(job.lake.path), KeptRows(Lake(job.lake.path)))
    ranges = [Range("half", 0, 0, 4, 4)]
    before, ends = archive.read("half", ranges), [*archive.boundaries()]
    job.maintain()
    assert job.maintained.files_deleted > 0
    assert archive.read("half", ranges)[0].equals(before[0])
    assert archive.first_offsets() == {("half", 0): 0, ("op", 0): 0}
    assert archive.read("op", ranges)[0].num_rows == 4
    assert [*archive.boundaries()] == ends


def test_records_that_are_deleted_before_they_are_put_in_one_batch_are_missed(
    aged: AgingJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = aged.copy(tmp_path / "lake")
    monkeypatch.setattr(source, "_DATASET_S", 0.0)
    begun, floor = ArchiveRunner.slices, job.floor.epoch

    def beside_the_job(self: ArchiveRunner, *arguments: Any) -> Any:
        while job.floor.deleted <= floor:
            run_epoch(job)
        job.maintain()
        yield from begun(self, *arguments)

    monkeypatch.setattr(ArchiveRunner, "slices", beside_the_job)
    with pytest.raises(LakeError, match="has moved meanwhile"):
        rebuild(job.lake.path, str(tmp_path / "new"), one_batch=True)
    with pytest.raises(UnfinishedLakeError):
        Lake(str(tmp_path / "new")).lake_id()


def test_records_that_are_deleted_before_their_epochs_are_rebuilt_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = AgingJob(tmp_path / "lake", **LIMITS)
    for _ in range(11):
        run_epoch(job)
    assert job.floor.deleted == 0

    def delete(_: int) -> None:
        while job.floor.deleted < 6:
            run_epoch(job)
        job.maintain()

    run_beside(job, delete, monkeypatch)
    monkeypatch.setattr(source, "CHUNK_RECORDS", 200)  # two epochs
    with pytest.raises(LakeError, match="has moved meanwhile"):
        rebuild(job.lake.path, str(tmp_path / "new"))
    with pytest.raises(UnfinishedLakeError):
        Lake(str(tmp_path / "new")).lake_id()

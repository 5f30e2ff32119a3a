"""The stream's checkpoint: a fresh one for each start, in a folder of one lake."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pipelines.errors import StartError
from pipelines.job.checkpoint import fresh_checkpoint, require_folder
from storage.files.location import lake_location
from tests.support.in_memory_job import InMemoryJob


def test_each_start_deletes_the_checkpoints_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    runs = []
    for _ in range(3):
        runs.append(fresh_checkpoint(folder, "a lake"))
        assert not any(run.exists() for run in runs)
        (runs[-1] / "offsets").mkdir(parents=True)
    assert [entry for entry in folder.iterdir() if entry.is_dir()] == runs[-1:]
    with pytest.raises(StartError, match="belongs to lake a lake, not to another"):
        fresh_checkpoint(folder, "another")
    assert runs[-1].exists()


def test_a_disk_that_was_full_at_a_start_leaves_no_checkpoint_of_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, *_: object) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fail)
        with pytest.raises(OSError, match="No space left"):
            fresh_checkpoint(folder, "a lake")
    fresh_checkpoint(folder, "a lake")

    with monkeypatch.context() as patch:  # the mark is written once: nothing to lose later
        patch.setattr(Path, "write_text", fail)
        fresh_checkpoint(folder, "a lake")
    with pytest.raises(StartError, match="belongs to lake a lake, not to another"):
        fresh_checkpoint(folder, "another")


def test_a_folder_of_somebody_else_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "run-0123456789ab").mkdir(parents=True)
    (folder / "run-0123456789ab" / "weights").write_text("years of work")

    with pytest.raises(StartError, match="holds files that are not of a checkpoint of txlake"):
        require_folder(str(folder), lake_location(str(tmp_path / "lake")))
    with pytest.raises(StartError, match="holds files that are not of a checkpoint of txlake"):
        fresh_checkpoint(folder, "a lake")
    assert (folder / "run-0123456789ab" / "weights").read_text() == "years of work"


def test_of_our_own_folder_only_runs_are_deleted(tmp_path: Path) -> None:
    folder, beside = tmp_path / "checkpoint", tmp_path / "beside"
    old = fresh_checkpoint(folder, "a lake")
    for kept in (folder / "run-of-mine", folder / "notes", old, beside):
        kept.mkdir()
    (beside / "file").write_text("here")
    (folder / "run-ffffffffffff").symlink_to(beside)

    fresh_checkpoint(folder, "a lake")
    assert not old.exists()
    assert (folder / "run-of-mine").is_dir()
    assert (folder / "notes").is_dir()
    assert (beside / "file").read_text() == "here"


@pytest.mark.parametrize("inside", ["", "half", "half/checkpoint", "mine", "topics/1/deep"])
def test_a_folder_inside_a_lake_is_refused(tmp_path: Path, inside: str) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("tx")
    job.run()
    location = lake_location(job.lake.path)

    with pytest.raises(StartError, match=f"lies in the lake {job.lake.path}"):
        require_folder(str(Path(job.lake.path, inside)), location)
    require_folder("", location)
    require_folder(str(Path(job.lake.path, "_checkpoint")), location)
    require_folder(str(tmp_path / "outside"), location)

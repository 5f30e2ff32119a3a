"""A lake whose floor has moved, made anew: what is left below is copied, all above is decided."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from pipelines.cli.main import main
from pipelines.epoch.recorded_state import restore
from pipelines.errors import StartError
from pipelines.replay import floor_copy, rebuild, source
from pipelines.replay.epochs import ReplayedEpochs
from pipelines.replay.source import Chunk
from storage.errors import BrokenLakeError, LakeError, OlderLakeError, UnfinishedLakeError
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.schemas import DIGEST_FORMAT
from tests.support import aging_job
from tests.support.aging_job import EPOCH_MS, AgingJob, live
from tests.support.epoch_harness import decided_rows_of, rows_of
from tests.support.job import plain_state
from tests.support.killed_rebuilds import Killed, kill_before_the_row_of_the_lake
from tests.support.lakes_with_floor import LIMITS, make_aged_job, make_old_job, require_sound
from tests.support.maintenance_rounds import KEPT, rows_in
from txlake.protocol import COMMIT


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> AgingJob:
    return make_aged_job(tmp_path_factory.mktemp("aged"))


@pytest.fixture
def path(aged: AgingJob, tmp_path: Path) -> Path:
    """Return a copy of the aged lake."""
    shutil.copytree(aged.lake.path, tmp_path / "old")
    return tmp_path / "old"


def rows_above(path: Path, epoch: int) -> dict[str, list[Any]]:
    """Return the decided rows of later epochs by table."""
    lake, later = Lake(str(path)), pc.field("epoch") > epoch
    tables = decided_rows_of(path)
    return {t: sorted(map(repr, lake.read(t, where=later).to_pylist())) for t in tables}


def test_a_rebuilt_lake_has_what_is_left_below_the_floor_and_decides_all_above(
    aged: AgingJob, path: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    done = rebuild(str(path), str(new))
    floor = aged.floor
    assert (done.floor_epoch, done.first_epoch, done.last_epoch) == (
        floor.epoch,
        floor.epoch + 1,
        aged.epoch,
    )
    assert rows_of(new)["epochs"] == rows_of(path)["epochs"]
    assert decided_rows_of(new) == decided_rows_of(path)
    require_sound(new)
    progress = read_progress(Lake(str(new)))
    assert progress.next_offsets == read_progress(aged.lake).next_offsets
    assert progress.last is not None
    assert progress.last.floor == floor
    again = rebuild(str(path), str(new))
    assert (again.epochs, again.floor_epoch) == (0, 0)


def test_a_row_that_was_lost_above_the_floor_is_decided_anew(
    aged: AgingJob, path: Path, tmp_path: Path
) -> None:
    for table in ("outcomes", "conflicts", "pending"):
        later = f"epoch > {aged.floor.epoch}"
        Lake(str(path)).handle(table).delete(later)
    rebuild(str(path), str(tmp_path / "new"))
    assert decided_rows_of(tmp_path / "new") == decided_rows_of(Path(aged.lake.path))
    require_sound(tmp_path / "new")


def test_a_job_goes_on_in_a_rebuilt_lake_as_in_the_old_one(aged: AgingJob, tmp_path: Path) -> None:
    jobs = [aged.copy(tmp_path / name) for name in ("first", "second")]
    rebuild(jobs[0].lake.path, str(tmp_path / "new"))
    jobs[0].go_on_in(Lake(str(tmp_path / "new"), is_driver=True))
    epoch = jobs[0].floor.epoch
    for job in jobs:
        chance = random.Random(12)
        for _ in range(2):
            live(job, chance, 6)
            job.maintain()
    assert jobs[0].floor == jobs[1].floor
    assert jobs[0].floor.deleted > epoch  # all that was copied is old
    paths = [Path(job.lake.path) for job in jobs]
    later = jobs[0].floor.deleted
    assert rows_above(paths[0], later) == rows_above(paths[1], later)
    assert jobs[0].maintained.rows_expired > 50
    require_sound(paths[0])
    lake = Lake(str(paths[0]))
    assert plain_state(restore(lake, read_progress(lake))) == plain_state(jobs[0].state)


def kill_behind(commits: int, patch: pytest.MonkeyPatch) -> None:
    """Let a copy die when so many more of its tables are committed."""
    commit, left = floor_copy._commit, commits

    def counted(*arguments: Any, **named: Any) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        commit(*arguments, **named)

    patch.setattr(floor_copy, "_commit", counted)


@pytest.mark.parametrize("one_batch", [False, True])
def test_a_copy_killed_behind_each_of_its_tables_goes_on_to_the_same_lake(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_batch: bool
) -> None:
    rebuild(str(path), str(tmp_path / "whole"), one_batch)
    kills = 0
    while True:
        with monkeypatch.context() as patch:
            kill_behind(1, patch)
            try:
                rebuild(str(path), str(tmp_path / "killed"), one_batch)
                break
            except Killed:
                kills += 1
        with pytest.raises(UnfinishedLakeError, match="run that `txlake replay --into` again"):
            Lake(str(tmp_path / "killed")).lake_id()
    assert kills > 8
    assert decided_rows_of(tmp_path / "killed") == decided_rows_of(tmp_path / "whole")
    require_sound(tmp_path / "killed")


def begin_part(path: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rebuild die when it has copied all, and decided some epochs."""
    replay_chunk, left = ReplayedEpochs.replay_chunk, 2

    def counted(*arguments: Any) -> Iterator[Chunk]:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        yield from replay_chunk(*arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(source, "CHUNK_RECORDS", 8)
        patch.setattr(ReplayedEpochs, "replay_chunk", counted)
        rebuild(path, new)


def test_a_part_whose_epochs_do_not_know_the_floor_yet_is_refused(
    aged: AgingJob, path: Path, tmp_path: Path
) -> None:
    lagging = aged.floor.epoch + 1
    with pytest.raises(
        StartError, match=rf"epoch {lagging} of .* knows the floor at epoch \d+ only"
    ):
        rebuild(str(path), str(tmp_path / "new"), last_epoch=lagging)
    rebuild(str(path), str(tmp_path / "new"), last_epoch=aged.epoch - 1)
    require_sound(tmp_path / "new")


def test_a_rebuild_that_was_killed_goes_on_above_the_floor_while_that_stays(
    aged: AgingJob, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, epoch = str(tmp_path / "new"), aged.floor.epoch
    begin_part(str(path), new, monkeypatch)
    rest = rebuild(str(path), new)
    assert rest.floor_epoch == 0
    assert epoch + 1 < rest.first_epoch < rest.last_epoch == aged.epoch
    assert decided_rows_of(tmp_path / "new") == decided_rows_of(path)
    require_sound(tmp_path / "new")


@pytest.mark.parametrize("one_batch", [False, True])
def test_a_copy_that_was_killed_before_it_writes_the_row_of_the_lake_makes_a_lake_when_run_again(
    aged: AgingJob, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_batch: bool
) -> None:
    new = tmp_path / "new"
    kill_before_the_row_of_the_lake(path, new, monkeypatch, one_batch)
    again = rebuild(str(path), str(new), one_batch)
    assert (again.epochs, again.floor_epoch) == (0, 0)
    require_sound(new)


def test_a_floor_that_moves_while_a_lake_is_being_rebuilt_is_named(
    aged: AgingJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = aged.copy(tmp_path / "lake")
    begin_part(job.lake.path, str(tmp_path / "part"), monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_behind(3, patch)
        rebuild(job.lake.path, str(tmp_path / "killed"))
    with monkeypatch.context() as patch, pytest.raises(StartError, match="has moved since"):
        copied = floor_copy.FloorCopy._copy_files

        def moving(*arguments: Any) -> Any:
            yield from copied(*arguments)
            if job.floor.epoch == floor:
                live(job, random.Random(1), 6)

        floor = job.floor.epoch
        patch.setattr(floor_copy.FloorCopy, "_copy_files", moving)
        rebuild(job.lake.path, str(tmp_path / "beside"))
    with pytest.raises(StartError, match="has moved since: name a new place"):
        rebuild(job.lake.path, str(tmp_path / "killed"))
    with pytest.raises(LakeError, match=rf"is below the floor, epoch {job.floor.epoch}: "):
        rebuild(job.lake.path, str(tmp_path / "part"))
    with pytest.raises(StartError, match=r"partition \d up to offset \d+, below the floor of"):
        rebuild(job.lake.path, str(tmp_path / "part"), one_batch=True)


def test_in_one_batch_the_newest_floor_stands_though_epochs_above_it_knew_an_older_one(
    tmp_path: Path,
) -> None:
    job = AgingJob(tmp_path / "lake", **LIMITS)
    live(job, random.Random(103), 20)
    job.maintain()
    assert job.floor.epoch > job.floor.deleted > 0
    rebuild(job.lake.path, str(tmp_path / "new"), one_batch=True)
    last = read_progress(Lake(str(tmp_path / "new"))).last
    assert last is not None
    assert last.floor == job.floor
    require_sound(tmp_path / "new")


def test_a_queue_that_was_quiet_since_before_the_floor_can_go_on_behind_a_gap(
    tmp_path: Path,
) -> None:
    job = AgingJob(tmp_path / "lake", **LIMITS)
    job.end(COMMIT, job.half("quiet", queue=1), queue=1)
    while job.floor.deleted == 0:
        job.end(COMMIT, job.half("busy"))
        job.run(EPOCH_MS)
    job._next["half", 1] += 3  # two records of a Kafka transaction that was aborted, and its marker
    job.half("after", queue=1)
    job.run(EPOCH_MS)
    job.maintain()
    halves = job.lake.read("half", ["queue_offset"], pc.field("queue_id") == 1)
    assert halves["queue_offset"].to_pylist() == [4]
    require_sound(tmp_path / "lake")

    rebuild(job.lake.path, str(tmp_path / "new"), one_batch=True)
    require_sound(tmp_path / "new")
    assert rebuild(job.lake.path, str(tmp_path / "new"), one_batch=True).epochs == 0


def test_rows_that_are_deleted_while_a_table_is_copied_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its job deletes them, which keeps the files for a while."""
    monkeypatch.setattr(aging_job, "NOW_GONE", KEPT)
    job = make_old_job(tmp_path)
    job.die_behind_a_step("half")
    counted, before = floor_copy.deleted_rows, job.maintained.rows_expired

    def deleting(handle: DeltaTable) -> int:
        count = counted(handle)
        if handle.table_uri.rstrip("/").endswith("outcomes"):
            job.maintain()
        return count

    monkeypatch.setattr(floor_copy, "deleted_rows", deleting)
    rebuild(job.lake.path, str(tmp_path / "new"))
    assert job.maintained.rows_expired > before
    require_sound(tmp_path / "new")


def test_epochs_that_are_deleted_while_they_are_copied_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aging_job, "NOW_GONE", KEPT)
    monkeypatch.setattr(floor_copy, "_EPOCHS_AT_ONCE", 3)
    job = make_old_job(tmp_path)
    copied = floor_copy.FloorCopy._epochs

    def deleting(copy: floor_copy.FloorCopy) -> Iterator[list[dict[str, Any]]]:
        for rows in copied(copy):
            yield rows
            job.die_behind_a_step("epochs")

    monkeypatch.setattr(floor_copy.FloorCopy, "_epochs", deleting)
    rebuild(job.lake.path, str(tmp_path / "new"))
    assert job.maintained.rows_expired > 0
    require_sound(tmp_path / "new")


def test_epochs_are_read_from_the_first_that_is_left(
    aged: AgingJob, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake of years has millions of epochs, and the last days of them."""
    monkeypatch.setattr(floor_copy, "_EPOCHS_AT_ONCE", 1)
    ordered, reads = floor_copy.chain_order, []

    def counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        reads.append([row["epoch"] for row in rows])
        return ordered(rows)

    monkeypatch.setattr(floor_copy, "chain_order", counted)
    rebuild(str(path), str(tmp_path / "new"))
    first = min(aged.lake.read("epochs", ["epoch"])["epoch"].to_pylist())
    assert 1 < first < aged.floor.epoch
    assert reads == [[epoch] * 2 for epoch in range(first, aged.floor.epoch + 1)]


def test_records_above_the_floor_in_one_batch_end_as_they_ended(
    aged: AgingJob, path: Path, tmp_path: Path
) -> None:
    new, epoch = tmp_path / "new", aged.floor.epoch
    done = rebuild(str(path), str(new), one_batch=True)
    assert (done.floor_epoch, done.first_epoch, done.epochs) == (epoch, epoch + 1, 1)
    require_sound(new)

    def ends(path: Path) -> dict[tuple[int, int], str]:
        rows = Lake(str(path)).read("outcomes").to_pylist()
        return {
            (r["queue_id"], r["queue_offset"]): r["outcome"]
            for r in rows
            if r["outcome"] != "DISCARDED" and r["cause"] not in ("late_end", "duplicate_in_set")
        }

    before, after = ends(path), ends(new)
    assert len(before) > 10
    assert {half: after.get(half) for half in before} == before
    for table in ("half", "op", "schedule", "admin"):
        keys = ["queue_id", "queue_offset"]
        order = [(key, "ascending") for key in keys]
        there, landed = (Lake(str(one)).read(table, keys).sort_by(order) for one in (path, new))
        assert landed.equals(there), table


def lose(table: str) -> Callable[[Path], None]:
    return lambda path: shutil.rmtree(path / table)


def lose_old_rows(table: str) -> Callable[[Path], None]:
    def lose(path: Path) -> None:
        lake = Lake(str(path))
        oldest = min(lake.read(table, ["epoch"])["epoch"].to_pylist())
        lake.handle(table).delete(f"epoch = {oldest}")

    return lose


def make_older(path: Path) -> None:
    handle = Lake(str(path)).handle("lake")
    handle.update({"format_version": str(DIGEST_FORMAT)})


@pytest.mark.parametrize(
    ("damage", "one_batch", "error", "said"),
    [
        (lose("outcomes"), False, BrokenLakeError,
         "the table outcomes of .* is missing. What it held below the floor, epoch"),
        (lose("pending"), True, BrokenLakeError, "the table pending of .* is missing"),
        (lose("epochs"), True, LakeError, "has a floor, as rows of half are deleted"),
        (lose_old_rows("outcomes"), False, BrokenLakeError,
         r"the table outcomes holds \d+ rows up to its floor, epoch \d+, where \d+ should be left"),
        (lose_old_rows("epochs"), True, BrokenLakeError, r"the table epochs holds \d+ rows up to"),
        (make_older, False, OlderLakeError, "has format 2 and a floor, epoch"),
    ],
)  # fmt: skip
def test_what_was_lost_below_the_floor_cannot_be_made_again(
    path: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    one_batch: bool,
    error: type[Exception],
    said: str,
) -> None:
    damage(path)
    with pytest.raises(error, match=said):
        rebuild(str(path), str(tmp_path / "new"), one_batch)


def test_the_command_says_where_the_new_lake_begins(
    aged: AgingJob, path: Path, tmp_path: Path
) -> None:
    words = ["replay", "--lake", str(path), "--into", str(tmp_path / "new")]
    done = CliRunner().invoke(main, words)
    assert done.stdout.splitlines()[0].endswith(
        f"what is left below the floor, epoch {aged.floor.epoch}, copied"
    )
    assert f"epochs {aged.floor.epoch + 1} to {aged.epoch} added" in done.stdout
    assert rows_in(tmp_path / "new", ["half"]) == rows_in(path, ["half"])

"""What is below the floor is deleted, and nothing else; what decides does not notice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from deltalake.exceptions import CommitFailedError

from pipelines.cli.main import main
from pipelines.epoch.recorded_state import restore
from pipelines.replay import verification
from pipelines.settings.allowed import SPAN_MS_MAX
from storage.errors import OwnerError
from storage.lake.aging import advance_floor
from storage.lake.epochs import COMMITTED, PLANNED, next_offsets_of
from storage.lake.floor import Floor
from storage.lake.integrity import require_intact
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.maintenance.expiry import EXPIRING, Expiry, delete
from storage.maintenance.limits import StepResult
from storage.maintenance.merge import files_of
from storage.verify.run import verify
from tests.support.aging_job import (
    EPOCH_MS,
    SNAPSHOT_EPOCHS,
    AgingJob,
    LaggingJob,
    lag,
    live,
)
from tests.support.damage import SNAPSHOT_EPOCH, WholeJob
from tests.support.job import plain_state
from tests.support.lakes_with_floor import require_sound
from tests.support.maintenance_rounds import rows_in
from txlake.protocol import COMMIT

LIMITS = {
    "check_max": 2,
    "half_retention_ms": 300_000,
    "orphan_operation_ttl_ms": 600_000,
    "topics_max": 1,
}


def violations(lake: Lake) -> dict[str, Any]:
    return {f.invariant.name: f.rows[:3] for f in verify(lake).findings if f.violations}


def test_what_is_old_goes_and_the_job_goes_on_as_if_it_had_stayed(tmp_path: Path) -> None:
    job, chance = AgingJob(tmp_path / "lake", **LIMITS), random.Random(1)
    for _ in range(5):
        live(job, chance, 8)
        job.maintain()
        require_same(job)
    assert violations(job.lake) == {}
    assert job.maintained.rows_expired > 50
    assert job.floor.epoch > job.floor.deleted > 12
    found = verification.verify(Lake(job.lake.path), job.floor.epoch + 1)
    assert found.is_equal, found.differences.to_pylist()[:5]


def require_same(job: AgingJob) -> None:
    """Checks that a lake is whole and that a start would find the state which the job has."""
    lake = Lake(job.lake.path)
    progress = read_progress(lake)
    require_intact(lake, progress, is_exclusive=True)
    assert plain_state(restore(lake, progress)) == plain_state(job.state)


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> AgingJob:
    """Return a job with old rows that nobody has deleted yet."""
    job = AgingJob(tmp_path_factory.mktemp("aged") / "lake", **LIMITS)
    for topic in ("orders", "nowhere"):  # of which topics_max allows one
        job.end(COMMIT, job.half("asks", real_topic=topic))
        job.run()
    live(job, random.Random(7), 22)
    assert job.floor.deleted > 0
    return job


def test_a_crash_behind_any_step_leaves_a_whole_lake_and_the_next_round_does_the_rest(
    aged: AgingJob, tmp_path: Path
) -> None:
    undisturbed, job = aged.copy(tmp_path / "undisturbed"), aged.copy(tmp_path / "crashing")
    undisturbed.maintain()
    crashes = 0
    for table in EXPIRING:
        while job.die_behind_a_step(table):
            crashes += 1
            require_same(job)
    assert crashes > len(EXPIRING)
    assert violations(Lake(job.lake.path)) == {}
    rows = [rows_in(Path(one.lake.path), EXPIRING) for one in (job, undisturbed)]
    assert rows[0] == rows[1] != rows_in(Path(aged.lake.path), EXPIRING)


def test_a_crash_before_a_deletion_is_committed_changes_nothing_and_the_next_round_does_it(
    aged: AgingJob, tmp_path: Path
) -> None:
    undisturbed, job = aged.copy(tmp_path / "undisturbed"), aged.copy(tmp_path / "crashing")
    before = rows_in(Path(job.lake.path), EXPIRING)

    def crash() -> None:
        raise SystemExit

    for table in EXPIRING:
        with pytest.raises(SystemExit):
            list(job.maintenance(before_change=crash).steps(table, is_full=True))
    require_same(job)
    assert rows_in(Path(job.lake.path), EXPIRING) == before
    undisturbed.maintain()
    job.maintain()
    assert rows_in(Path(job.lake.path)) == rows_in(Path(undisturbed.lake.path))


def test_of_two_keepers_that_delete_the_same_files_one_does_and_the_count_is_right(
    aged: AgingJob, tmp_path: Path
) -> None:
    job = aged.copy(tmp_path / "lake")
    lakes = [Lake(job.lake.path, is_driver=True) for _ in range(2)]
    until = job.floor.deleted
    chosen = [Expiry(lake).expired("half", until, files_of(lake, "half")) for lake in lakes]
    assert chosen[0] == chosen[1] != []
    stale = lakes[1].handle("half")
    lakes[1].table("half").handle = lambda: stale  # type: ignore[method-assign]  # nothing new
    assert delete(lakes[0], "half", chosen[0]) > 0
    with pytest.raises(CommitFailedError):
        delete(lakes[1], "half", chosen[1])
    require_same(job)


def test_what_is_alive_or_was_undeliverable_stays_however_old(
    aged: AgingJob, tmp_path: Path
) -> None:
    job = aged.copy(tmp_path / "lake")
    job.maintain()
    is_old = pc.field("epoch") <= job.floor.deleted
    alive = (pc.field("epoch") == job.floor.deleted) & (pc.field("change") == "snapshot")
    pending = {places_of(row) for row in aged.lake.read("pending", where=alive).to_pylist()}
    is_undeliverable = (pc.field("action") == "UNDELIVERABLE") & (pc.field("source") == "half")
    there = aged.lake.read("deliveries", where=is_old & is_undeliverable)
    undeliverable = {places_of(row) for row in there.to_pylist()}
    assert pending and undeliverable
    kept = {places_of(row) for row in job.lake.read("half", where=is_old).to_pylist()}
    assert pending | undeliverable <= kept
    told = {places_of(row) for row in job.lake.read("outcomes").to_pylist()}
    assert undeliverable <= told
    assert (
        there.to_pylist()
        == job.lake.read("deliveries", where=is_old & is_undeliverable).to_pylist()
    )


def test_what_stays_for_ever_keeps_no_younger_row_with_it(tmp_path: Path) -> None:
    job, epoch_ms = AgingJob(tmp_path / "lake", **LIMITS), EPOCH_MS // 4  # three epochs in a span
    for topic in ("orders", "nowhere"):  # of which topics_max allows one
        job.end(COMMIT, job.half("asks", real_topic=topic))
        job.run(epoch_ms)
    for number in range(60):
        job.end(COMMIT, job.half(f"tx{number}"))
        job.run(epoch_ms)
        if job.floor.deleted and job.epoch % SNAPSHOT_EPOCHS == 0:
            job.maintain()
    assert job.floor.deleted > 2 * SNAPSHOT_EPOCHS
    lake = Lake(job.lake.path)
    for table in ("half", "outcomes", "deliveries"):
        oldest = min(files_of(lake, table), key=lambda file: file.first_epoch)
        assert (oldest.first_epoch, oldest.last_epoch) == (2, 2), table


def test_an_estimate_names_the_rows_that_go_and_the_merges_of_what_stays(
    aged: AgingJob, tmp_path: Path
) -> None:
    job = aged.copy(tmp_path / "lake")
    maintenance = job.maintenance()
    for table in maintenance.tables():
        _, estimated = maintenance.estimate(table)
        done = sum(maintenance.steps(table, is_full=True), StepResult())
        for name in ("rows_expired", "merges", "files_merged"):
            assert getattr(estimated, name) == getattr(done, name), (table, name)
        job.maintained += done
    assert job.maintained.rows_expired > 50 and job.maintained.merges > 0


def test_a_driver_that_lost_the_lake_deletes_no_row(aged: AgingJob, tmp_path: Path) -> None:
    job = aged.copy(tmp_path / "lake")
    before = rows_in(Path(job.lake.path))

    def is_lost() -> None:
        raise OwnerError("another driver has taken over")

    maintenance = job.maintenance(is_lost)
    with pytest.raises(OwnerError, match="taken over"):
        list(maintenance.steps("outcomes", is_full=True))
    assert rows_in(Path(job.lake.path)) == before


def test_a_row_of_an_epoch_names_the_queues_that_grew_and_a_snapshot_names_all(
    tmp_path: Path,
) -> None:
    job = WholeJob(tmp_path / "lake")
    for topic in ("a", "b", "c", "a"):
        job.end(COMMIT, job.half(topic, real_topic=topic, real_queue_id=0))
        job.run()
    rows = job.lake.read("epochs", where=pc.field("state") == COMMITTED).to_pylist()
    named = {row["epoch"]: sorted(next_offsets_of(row)) for row in rows}
    assert named == {
        1: [("a", 0)],
        2: [("b", 0)],
        SNAPSHOT_EPOCH: [("a", 0), ("b", 0), ("c", 0)],
        4: [("a", 0)],
    }
    progress = read_progress(Lake(job.lake.path))
    assert progress.next_offsets == {("a", 0): 2, ("b", 0): 1, ("c", 0): 1}
    planned = job.lake.read("epochs", where=pc.field("state") == PLANNED)
    assert planned["next_offsets"].null_count == planned.num_rows


def test_what_lies_below_the_floor_is_refused_with_a_sentence_that_names_it(
    aged: AgingJob, tmp_path: Path
) -> None:
    job = aged.copy(tmp_path / "lake")
    job.maintain()
    named = f"is below the floor, epoch {job.floor.epoch}: "
    for words in (
        ["--verify", "--epochs", "2-5"],
        ["--into", str(tmp_path / "new"), "--epochs", "1-5"],
    ):
        refused = CliRunner().invoke(main, ["replay", "--lake", job.lake.path, *words])
        assert refused.exit_code == 1
        assert named in refused.output

    first, newest = job.floor.first_epoch, job.epoch
    nothing = f"nothing to run again: {job.lake.path} has epochs from {first} to {newest}"
    for epochs in ("1-5", f"{newest + 1}-99"):
        refused = CliRunner().invoke(
            main, ["replay", "--lake", job.lake.path, "--verify", "--epochs", epochs]
        )
        assert (refused.exit_code, nothing in refused.output) == (1, True)

    check = ["verify", "--lake", job.lake.path, "--epochs"]
    assert CliRunner().invoke(main, [*check, f"1-{job.floor.epoch}"]).exit_code == 0
    refused = CliRunner().invoke(main, [*check, f"1-{job.floor.epoch - 1}"])
    named = f"up to epoch {job.floor.deleted} are deleted; --epochs can end at {job.floor.epoch} "
    assert (refused.exit_code, named in refused.output) == (1, True)

    there = {places_of(row) for row in job.lake.read("half").to_pylist()}
    below = {(queue, n) for queue, end in job.floor.offsets.items() for n in range(end)}
    queue, offset = min(below - there)
    words = ["tx", "explain", "--lake", job.lake.path, f"half:{queue}-{offset}"]
    explained = CliRunner().invoke(main, words)
    told = f"below the floor of queue {queue} (offset {job.floor.offsets[queue]})"
    assert told in explained.output


def places_of(row: dict[str, Any]) -> tuple[int, int]:
    return row["queue_id"], row["queue_offset"]


@pytest.mark.parametrize("epoch", [6, 7, 8])
def test_a_topic_is_sound_wherever_the_floor_stands(tmp_path: Path, epoch: int) -> None:
    # Made at the floor's epoch (6), or above it by a message that had landed below.
    job = AgingJob(tmp_path / "lake")
    late = job.half("late")
    while job.epoch < epoch - 1:
        job.half("asks")
        job.run(EPOCH_MS)
    job.end(COMMIT, late)
    floors: set[int] = set()
    while not floors >= {3, 6, 9}:
        job.run(EPOCH_MS)
        if job.floor.epoch not in floors:
            assert violations(job.lake) == {}
            floors.add(job.floor.epoch)
            job.maintain()


def test_nothing_is_so_old_as_the_longest_retention(tmp_path: Path) -> None:
    job = AgingJob(tmp_path / "lake")
    for _ in range(SNAPSHOT_EPOCHS):
        job.half()
        job.run(EPOCH_MS)
    assert job.last is not None
    assert advance_floor(job.lake, job.last, job.at).epoch == SNAPSHOT_EPOCHS
    assert advance_floor(job.lake, job.last, job.at - SPAN_MS_MAX) == Floor()


def test_known_at_can_come_to_an_instant_that_an_epoch_below_the_floor_recorded(
    tmp_path: Path,
) -> None:
    job = LaggingJob(tmp_path / "lake", **LIMITS)
    job.half("first")
    job.run(EPOCH_MS)
    job.half("second")
    job.run(EPOCH_MS, ops_ahead=40)  # landing comes to them when this epoch is below the floor
    asked_at = job.at
    for epoch in range(40):
        job.end(COMMIT, 0)
        job.run(EPOCH_MS, ops_ahead=60 - epoch)
    job.maintain()
    assert job.floor.epoch > 2
    assert job.last is not None and job.last.known_at[0] == asked_at
    assert 2 not in job.lake.read("epochs")["epoch"].to_pylist()
    require_sound(tmp_path / "lake")


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))]
)
def test_a_job_that_lags_longer_than_retention_leaves_a_sound_lake(
    tmp_path: Path, seed: int
) -> None:
    job = LaggingJob(tmp_path / "lake", **LIMITS)
    for _ in range(2):
        lag(job, random.Random(seed), 18)
        job.maintain()
    require_sound(tmp_path / "lake")

"""A driver that another has replaced deletes nothing of the lake."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pipelines.job.driver_loop import metrics_address
from pipelines.job.election import Election
from pipelines.job.leadership import Leadership
from pipelines.job.maintenance import MaintenanceScheduler
from pipelines.settings import MetricsSettings, parse
from storage.errors import OwnerError, StoreAwayError
from storage.files.location import lake_location
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.lock import LakeLock
from storage.lake.progress import read_progress
from storage.maintenance import maintenance
from tests.support.in_memory_job import InMemoryJob
from tests.support.maintenance_rounds import NOW_GONE, parquet_files, rows_in
from txlake.protocol import ADMIN_TOPIC, ALTER_TOPIC, COMMIT

EPOCHS = 2 * NOW_GONE.merge_files
OWNER = "paper"  # of the epochs of an InMemoryJob
FOREVER_S = 600.0


def run_epochs(job: InMemoryJob, count: int) -> Plan:
    """Runs epochs of one transaction each. Output: the plan of the last."""
    for _ in range(count):
        job.end(COMMIT, job.half())
        job.run()
    plan = read_progress(Lake(job.lake.path)).last
    assert plan is not None
    return plan


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    """A lake whose next round of maintenance merges files and deletes those that were merged."""
    return InMemoryJob(tmp_path / "lake")


def ownership_of(lake: Path | str, owner: str) -> Leadership:
    path = str(lake)
    settings = parse(
        {"lake": {"path": path}, "kafka": {"bootstrap_servers": "127.0.0.1:1"}}, "test"
    )
    election = Election(settings.kafka, path, owner)
    return Leadership(Lake(path), owner, election, threading.Event())


def maintain(job: InMemoryJob, owner: str, plan: Plan) -> None:
    lake = Lake(job.lake.path, is_driver=True)
    owned = ownership_of(job.lake.path, owner).require_newest_plan_is_ours
    keeper = MaintenanceScheduler(lake, NOW_GONE, 0, ADMIN_TOPIC, lambda: False, owned)
    keeper.after_batch(plan, FOREVER_S)


def entries(job: InMemoryJob) -> set[Path]:
    return set(Path(job.lake.path).rglob("_delta_log/*.json"))


def test_the_driver_of_the_newest_epoch_deletes_what_was_merged(job: InMemoryJob) -> None:
    plan = run_epochs(job, EPOCHS)
    files, logged = parquet_files(Path(job.lake.path)), entries(job)
    maintain(job, OWNER, plan)
    assert files - parquet_files(Path(job.lake.path))
    assert logged - entries(job)


def test_a_driver_that_starts_and_has_no_records_serves_what_was_asked_before(
    job: InMemoryJob,
) -> None:
    run_epochs(job, EPOCHS)
    job.command(ALTER_TOPIC, "config:orders:retention.ms=86400000")
    job.run()

    new = ownership_of(job.lake.path, "new")
    with pytest.raises(OwnerError):  # before its term
        new.require_newest_plan_is_ours()
    new.begin()
    lake = Lake(job.lake.path, is_driver=True)
    keeper = MaintenanceScheduler(
        lake, NOW_GONE, 0, ADMIN_TOPIC, lambda: False, new.require_newest_plan_is_ours
    )
    keeper.after_batch(None, FOREVER_S)
    configuration = lake.handle("topics/1").metadata().configuration
    assert any(value == "86400000" for value in configuration.values()), configuration

    run_epochs(job, 1)  # another driver plans an epoch in its term
    with pytest.raises(OwnerError):
        new.require_newest_plan_is_ours()


def test_a_driver_that_is_elected_while_its_store_is_away_begins_when_it_is_back(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_epochs(job, 1)
    new = ownership_of(job.lake.path, "new")
    new._election.term = 1

    def away(*_: object) -> bool:
        raise StoreAwayError("no answer")

    with monkeypatch.context() as outage, pytest.raises(StoreAwayError):
        outage.setattr(Lake, "exists", away)
        new.begin()
    assert new.term == 0, "the driver begins again"

    new.begin()
    new.require_newest_plan_is_ours()
    assert new.term == 1


def test_a_driver_that_another_has_replaced_deletes_no_file_and_no_entry_of_a_log(
    job: InMemoryJob,
) -> None:
    plan = run_epochs(job, EPOCHS)
    folder = Path(job.lake.path)
    rows, files, logged = rows_in(folder), parquet_files(folder), entries(job)
    with pytest.raises(OwnerError, match=r"^paper is the active driver of the lake .* it stops"):
        maintain(job, "another", plan)
    assert files <= parquet_files(folder)
    assert logged <= entries(job)
    assert rows_in(folder) == rows


def test_a_driver_that_is_replaced_while_it_deletes_stops_at_the_next_look(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_epochs(job, EPOCHS)
    folder = Path(job.lake.path)
    lake = Lake(job.lake.path, is_driver=True)
    is_lost = False

    def look() -> None:
        if is_lost:
            raise OwnerError("another has it")

    monkeypatch.setattr(maintenance, "_DELETIONS", 1)
    steps = maintenance.Maintenance(lake, NOW_GONE, look).steps("half", is_full=True)
    while not next(steps).checkpoints:
        pass
    before = parquet_files(folder, ["half"])
    delete_files = maintenance.delete_files

    def delete_one(*arguments: object) -> None:
        nonlocal is_lost
        delete_files(*arguments)  # type: ignore[arg-type]
        is_lost = True

    monkeypatch.setattr(maintenance, "delete_files", delete_one)
    with pytest.raises(OwnerError, match="another has it"):
        next(steps)
    assert len(before - parquet_files(folder, ["half"])) == 1


def test_a_lake_without_epochs_is_nobodys(job: InMemoryJob) -> None:
    with pytest.raises(OwnerError, match=r"^another driver is the active driver"):
        ownership_of(job.lake.path, OWNER).require_newest_plan_is_ours()


def test_a_standby_does_not_take_the_driver_before_for_the_active_one(job: InMemoryJob) -> None:
    run_epochs(job, 1)  # by a driver that is gone
    standby = ownership_of(job.lake.path, "standby")
    assert standby.active_owner() == "another driver"

    lock = LakeLock(lake_location(job.lake.path), "active")
    assert standby.active_owner() == "active"
    lock.release()
    assert standby.active_owner() == "another driver"

    run_epochs(job, 1)
    assert standby.active_owner() == OWNER
    standby.begin()
    assert standby.active_owner() == "another driver"


def test_a_driver_that_began_a_new_lake_learns_who_has_taken_it_over(tmp_path: Path) -> None:
    first = ownership_of(tmp_path / "lake", "first")
    first.begin()
    run_epochs(InMemoryJob(tmp_path / "lake"), 1)
    assert first.active_owner() == OWNER


def test_running_says_where_the_metrics_are() -> None:
    assert [
        metrics_address(MetricsSettings(host, port))
        for host, port in (("127.0.0.1", 0), ("host-a", 9400), ("::1", 9400))
    ] == ["no metrics", "metrics http://host-a:9400/metrics", "metrics http://[::1]:9400/metrics"]

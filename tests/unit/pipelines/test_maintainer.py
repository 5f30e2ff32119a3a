"""Maintenance between epochs: when a round begins, how long it goes on; it stops nothing."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from pipelines.job import maintenance
from pipelines.job.maintenance import MaintenanceScheduler
from pipelines.operate import records as operator_records
from pipelines.operate.records import Record
from storage.errors import StoreAwayError
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.lock import LakeLock
from storage.lake.progress import read_progress
from storage.maintenance import maintenance as maintaining
from storage.maintenance.limits import MaintenanceLimits, Retention
from storage.maintenance.maintenance import Maintenance
from storage.maintenance.merge import files_of
from storage.verify.run import verify
from tests.support.in_memory_job import InMemoryJob
from tests.support.operator import said, txlake, write_conf
from txlake.protocol import ADMIN_TOPIC, ALTER_TOPIC, COMMIT, MAINTAIN

EVERY = 3
LIMITS = MaintenanceLimits(EVERY, 1 << 25, EVERY, 3_600_000, 3_600_000, 0)


def run_epochs(job: InMemoryJob, count: int) -> Iterator[Plan]:
    """Run epochs of one transaction each."""
    for _ in range(count):
        job.end(COMMIT, job.half())
        yield run_epoch(job)


def run_epoch(job: InMemoryJob) -> Plan:
    job.run()
    plan = read_progress(Lake(job.lake.path)).last
    assert plan is not None
    return plan


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake")


def maintainer_of(
    job: InMemoryJob, slice_ms: int = 60_000, stops: bool = False
) -> MaintenanceScheduler:
    lake = Lake(job.lake.path, is_driver=True)
    return MaintenanceScheduler(lake, LIMITS, slice_ms, ADMIN_TOPIC, lambda: stops)


def count_files(job: InMemoryJob) -> int:
    return len(files_of(Lake(job.lake.path), "half"))


def test_a_round_begins_every_so_many_epochs(
    job: InMemoryJob, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txlake.maintain")
    maintainer = maintainer_of(job)
    files = []
    for plan in run_epochs(job, 2 * EVERY):
        maintainer.after_batch(plan, 0.0)
        maintainer.after_batch(None, 1.0)
        files.append(count_files(job))
    assert files == [1, 2, 1, 2, 3, 2]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].startswith("maintenance: 18 files of 0.1 MB became 5 of 0.0 MB, ")


def test_a_job_that_often_starts_anew_has_its_rounds_too(job: InMemoryJob) -> None:
    for plan in run_epochs(job, EVERY):
        maintainer_of(job).after_batch(plan, 0.0)
    assert count_files(job) == 1


def test_a_topic_is_altered_before_anything_of_it_is_deleted_and_after_a_crash_too(
    job: InMemoryJob,
) -> None:
    def retention() -> str | None:
        properties = Lake(job.lake.path).handle("topics/1").metadata().configuration
        return properties.get("txlake.retention.ms")

    maintainer = maintainer_of(job)
    (plan,) = run_epochs(job, 1)
    maintainer.after_batch(plan, 0.0)
    for value in (5, 7):
        job.command(ALTER_TOPIC, f"config:orders:retention.ms={value}")
    job.command(ALTER_TOPIC, "config:nobodys:retention.ms=9")
    plan = run_epoch(job)
    maintainer_of(job)  # the driver died before it could begin
    assert retention() is None
    maintainer_of(job).after_batch(None, 0.0)
    assert retention() == "7"
    job.command(ALTER_TOPIC, "config:orders:retention.ms=-1")
    maintainer.after_batch(run_epoch(job), 0.0)
    assert retention() == "-1"
    version = Lake(job.lake.path).handle("topics/1").version()
    maintainer_of(job).after_batch(None, 0.0)
    assert Lake(job.lake.path).handle("topics/1").version() == version


def test_a_topic_is_altered_by_a_command_of_an_epoch_that_a_recovery_has_ended(
    job: InMemoryJob,
) -> None:
    maintainer = maintainer_of(job)
    (plan,) = run_epochs(job, 1)
    maintainer.after_batch(plan, 0.0)
    job.command(ALTER_TOPIC, "config:orders:retention.ms=5")
    run_epoch(job)  # a store that was away: the same process has ended it as a start does
    maintainer.look_back()
    maintainer.after_batch(run_epoch(job), 0.0)
    properties = Lake(job.lake.path).handle("topics/1").metadata().configuration
    assert properties["txlake.retention.ms"] == "5"


@pytest.mark.parametrize("is_read", [False, True])
def test_no_message_of_a_topic_is_deleted_while_what_an_operator_asks_is_not_done(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    def messages(topic: str) -> int:
        lake = Lake(job.lake.path)
        ids = {row["topic"]: row["table_id"] for row in lake.read("catalog").to_pylist()}
        return lake.read(f"topics/{ids[topic]}").num_rows

    job.end(COMMIT, job.half())
    job.end(COMMIT, job.half(real_topic="bills"))
    run_epoch(job)
    assert messages("orders") == messages("bills") == 1
    job.command(ALTER_TOPIC, "config:orders:retention.ms=-1")
    job.command(MAINTAIN, "lake")
    plan = run_epoch(job)

    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(maintenance, "time", clock)
    limits = replace(LIMITS, topics=Retention(ms=1))
    lake = Lake(job.lake.path, is_driver=True)
    maintainer = MaintenanceScheduler(lake, limits, 60_000, ADMIN_TOPIC, lambda: False)
    with monkeypatch.context() as broken:
        if is_read:
            broken.setattr(maintaining, "alter", lambda *_: raise_store_away())
        else:
            broken.setattr(MaintenanceScheduler, "_read_requests", lambda *_: raise_store_away())
        maintainer._begin(is_full=True)
        for _ in range(8):
            maintainer.after_batch(plan, 60.0)
    assert messages("orders") == 1
    assert messages("bills") == (0 if is_read else 1)  # once it is known whom it is about

    clock.monotonic = lambda: 31.0
    for _ in range(8):
        maintainer.after_batch(None, 60.0)
    assert (messages("orders"), messages("bills")) == (1, 0)


def test_a_topic_that_cannot_be_altered_holds_up_no_other_and_no_round(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def retention(table: str) -> str | None:
        properties = Lake(job.lake.path).handle(table).metadata().configuration
        return properties.get("txlake.retention.ms")

    job.end(COMMIT, job.half())
    job.end(COMMIT, job.half(real_topic="bills"))
    run_epoch(job)
    job.command(ALTER_TOPIC, "config:orders:retention.ms=5")
    job.command(ALTER_TOPIC, "config:bills:retention.ms=7")
    run_epoch(job)
    job.command(MAINTAIN, "lake")
    plan = run_epoch(job)

    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(maintenance, "time", clock)
    maintainer = maintainer_of(job)
    alter = Maintenance.alter

    def alter_bills(of_lake: Maintenance, topic: str, configs: dict[str, int]) -> bool:
        return raise_store_away() if topic == "orders" else alter(of_lake, topic, configs)

    with monkeypatch.context() as broken:
        broken.setattr(Maintenance, "alter", alter_bills)
        maintainer.after_batch(plan, 60.0)
        for _ in range(5):
            maintainer.after_batch(None, 60.0)

    assert {retention("topics/1"), retention("topics/2")} == {None, "7"}
    assert caplog.text.count("maintenance of topic orders failed") == 1
    assert set(files_by_table(job).values()) == {1}, "the round has run"
    assert served_epoch(job) == str(plan.epoch - 2), "a new driver looks for the command, too"

    clock.monotonic = lambda: 31.0
    with monkeypatch.context() as counting:
        counting.setattr(MaintenanceScheduler, "_begin", raise_store_away)
        maintainer.after_batch(None, 60.0)  # the round is not run again
    assert {retention("topics/1"), retention("topics/2")} == {"5", "7"}


def test_a_round_that_was_asked_for_outlives_a_crash(
    job: InMemoryJob, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txlake.maintain")
    list(run_epochs(job, 2))
    job.command(MAINTAIN, "lake")
    plan = run_epoch(job)
    dying = maintainer_of(job, slice_ms=0)
    dying.after_batch(plan, 0.0)  # one step, and it is gone
    assert files_by_table(job)["outcomes"] > 1
    caplog.clear()
    maintainer_of(job).after_batch(None, 0.0)
    assert set(files_by_table(job).values()) == {1}
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in told] == [
        "maintenance asked for by ada",
        "maintenance",
    ]
    caplog.clear()
    maintainer_of(job).after_batch(None, 0.0)  # served, once and for all
    assert caplog.records == []


@pytest.mark.parametrize(
    "failing",
    [
        pytest.param("tables", id="the catalog cannot be read"),
        pytest.param("_configure", id="every table fails"),
        pytest.param("_checkpoint", id="every table fails after its merges"),
    ],
)
def test_a_round_that_was_asked_for_and_failed_begins_again_later_until_it_is_served(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    list(run_epochs(job, 2))
    job.command(MAINTAIN, "lake")
    plan = run_epoch(job)
    maintainer = maintainer_of(job)

    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(maintenance, "time", clock)
    began_at: list[float] = []
    begin = MaintenanceScheduler._begin

    def record_and_begin(scheduler: MaintenanceScheduler, is_full: bool) -> None:
        began_at.append(clock.monotonic())
        begin(scheduler, is_full)

    monkeypatch.setattr(MaintenanceScheduler, "_begin", record_and_begin)

    def look_at(*instants_s: float) -> None:
        for now_s in instants_s:
            clock.monotonic = lambda now_s=now_s: now_s
            maintainer.after_batch(None, 60.0)

    with monkeypatch.context() as away:
        away.setattr(Maintenance, failing, raise_store_away)
        maintainer.after_batch(plan, 60.0)
        look_at(0.0, 59.0, 60.0, 359.0, 360.0)
    assert began_at == [0.0, 60.0, 360.0]
    assert served_epoch(job) is None

    look_at(1_259.0, 1_260.0, 1_261.0, 100_000.0)
    assert began_at == [0.0, 60.0, 360.0, 1_260.0]
    assert served_epoch(job) == str(plan.epoch)
    assert set(files_by_table(job).values()) == {1}


def raise_store_away(*_: Any, **__: Any) -> Any:
    raise StoreAwayError("the store does not answer")


def served_epoch(job: InMemoryJob) -> str | None:
    """Return up to which epoch the lake says that operators' requests were served."""
    properties = Lake(job.lake.path).handle("admin").metadata().configuration
    return properties.get("txlake.maintainedEpoch")


def test_a_round_that_was_asked_for_and_failed_begins_again_after_a_restart(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(run_epochs(job, 2))
    job.command(MAINTAIN, "lake")
    plan = run_epoch(job)

    with monkeypatch.context() as away:
        away.setattr(Maintenance, "_configure", raise_store_away)
        maintainer_of(job).after_batch(plan, 60.0)
    assert files_by_table(job)["half"] > 1

    maintainer_of(job).after_batch(None, 60.0)
    assert set(files_by_table(job).values()) == {1}
    assert served_epoch(job) == str(plan.epoch)


def test_without_epochs_nothing_is_done(job: InMemoryJob) -> None:
    maintainer = maintainer_of(job)
    for plan in run_epochs(job, EVERY):
        maintainer.after_batch(plan, 0.0)
    versions = [DeltaTable(job.lake.table_path(t)).version() for t in ("half", "epochs", "op")]
    for _ in range(20):
        maintainer.after_batch(None, 1.0)
    assert versions == [
        DeltaTable(job.lake.table_path(t)).version() for t in ("half", "epochs", "op")
    ]


def files_by_table(job: InMemoryJob) -> dict[str, int]:
    lake = Lake(job.lake.path)
    return {table: len(files_of(lake, table)) for table in ("half", "op", "epochs", "outcomes")}


def test_under_constant_load_a_round_is_cut_into_slices(job: InMemoryJob) -> None:
    """Into a slice of 1 ms fits no more than one merge."""
    maintainer = maintainer_of(job, slice_ms=1)
    merged = []
    for plan in run_epochs(job, 2 * EVERY):
        before = files_by_table(job)
        maintainer.after_batch(plan, -1.0)
        after = files_by_table(job)
        merged.append([table for table in before if after[table] < before[table]])
    assert merged[: EVERY - 1] == [[]] * (EVERY - 1)
    assert max(map(len, merged)) == 1
    before = files_by_table(job)
    maintainer.after_batch(None, 100.0)  # at a quiet moment the round goes on
    after = files_by_table(job)
    assert len([table for table in before if after[table] < before[table]]) > 1


def test_what_waits_while_the_stream_is_busy_is_merged_when_it_is_not(job: InMemoryJob) -> None:
    plans = list(run_epochs(job, EVERY))
    size = max(file.size_bytes for file in files_of(Lake(job.lake.path), "half"))
    limits = dataclasses.replace(LIMITS, file_bytes_max=8 * size)
    lake = Lake(job.lake.path, is_driver=True)
    maintainer = MaintenanceScheduler(lake, limits, 1_000, ADMIN_TOPIC, lambda: False)
    for plan in [*plans, *[None] * 20]:
        maintainer.after_batch(plan, 0.9)
    assert count_files(job) == EVERY
    maintainer.after_batch(None, 60.0)
    assert count_files(job) == 1


def test_what_goes_wrong_stops_no_epoch_and_is_tried_again(
    job: InMemoryJob, caplog: pytest.LogCaptureFixture
) -> None:
    maintainer = maintainer_of(job)
    plans = list(run_epochs(job, EVERY))
    name = files_of(Lake(job.lake.path), "half")[0].path
    file = Path(job.lake.table_path("half"), name)
    away = file.rename(file.with_suffix(".away"))  # the merge cannot read it
    for plan in plans:
        maintainer.after_batch(plan, 0.0)
    assert count_files(job) == EVERY
    assert "maintenance of half failed, nothing is lost" in caplog.text
    assert len(files_of(Lake(job.lake.path), "outcomes")) == 1, "the other tables had their round"
    away.rename(file)
    for plan in run_epochs(job, EVERY):
        maintainer.after_batch(plan, 0.0)
    assert count_files(job) == 1


def test_no_step_is_begun_when_the_job_stops(job: InMemoryJob) -> None:
    maintainer = maintainer_of(job, stops=True)
    for plan in run_epochs(job, EVERY):
        maintainer.after_batch(plan, 0.0)
    assert count_files(job) == EVERY


def test_an_operators_command_starts_a_full_round_after_its_epoch(
    job: InMemoryJob, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txlake.maintain")
    maintainer = maintainer_of(job)
    for plan in run_epochs(job, 2):
        maintainer.after_batch(plan, 0.0)
    job.command("PING", "")
    maintainer.after_batch(run_epoch(job), 0.0)
    assert count_files(job) == 2
    job.command(MAINTAIN, "", actor="ada", reason="before the audit")
    maintainer.after_batch(run_epoch(job), 0.0)
    assert count_files(job) == 1
    assert "maintenance asked for by ada: before the audit" in caplog.text
    assert verify_rows(job) == (4, 2)


def verify_rows(job: InMemoryJob) -> tuple[int, int]:
    report = verify(Lake(job.lake.path))
    return report.last_epoch, report.numbers["halves"]


# The command.


def test_a_dry_run_says_what_would_be_done_and_offline_does_it(job: InMemoryJob, conf: str) -> None:
    for _ in run_epochs(job, 3):
        pass
    text = said("maintain", "--conf", conf, "--dry-run")
    assert "table     files  to merge  into  MB    to delete  old rows\n" in text
    assert "epochs    6      6         1" in text
    assert text.endswith("14 tables, 5 with something to do; nothing was changed\n")
    rows = json.loads(said("maintain", "--conf", conf, "--dry-run", "-o", "json"))
    assert rows[0] == {
        "table": "half",
        "files": 3,
        "to merge": 3,
        "into": 1,
        "MB": 0.01,
        "to delete": 0,
        "old rows": 0,
    }
    assert count_files(job) == 3
    done = json.loads(said("maintain", "--conf", conf, "--offline", "-o", "json"))
    assert (done["files_merged"], done["merges"]) == (18, 5)
    assert count_files(job) == 1
    assert "0 files of 0.0 MB became 0" in said("maintain", "--conf", conf, "--offline")
    text = said("maintain", "--conf", conf, "--offline", "--reason", "x", code=2)
    assert "--reason, --actor and --wait-s go with a record" in text


def test_a_topic_that_is_being_made_is_no_lost_table(job: InMemoryJob, conf: str) -> None:
    """An epoch writes its row of the catalog, then makes the table."""
    job.run()
    job.end(COMMIT, job.half("new", real_topic="new"))
    job.run(commit=False)
    shutil.rmtree(Path(job.lake.path, "topics", str(job.state.topics["table_id"].to_pylist()[-1])))
    assert said("maintain", "--conf", conf, "--dry-run").endswith("; nothing was changed\n")


def test_offline_keeps_what_is_not_published_while_kafka_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    for _ in range(4):
        job.end(COMMIT, job.half())
        job.run(10 * 86_400_000)  # longer than messages are kept
    conf = Path(write_conf(tmp_path))
    publisher = '[publish.bills]\ntopics = ["orders"]\n'
    conf.write_text(conf.read_text() + publisher)

    said("maintain", "--conf", str(conf), "--offline")
    assert "nobody knows what is published, so retention waits" in caplog.text
    assert Lake(job.lake.path).read("topics/1").num_rows == 4

    conf.write_text(conf.read_text().removesuffix(publisher))
    said("maintain", "--conf", str(conf), "--offline")
    assert Lake(job.lake.path).read("topics/1").num_rows == 1


def test_offline_is_refused_while_a_driver_holds_the_lake(job: InMemoryJob, conf: str) -> None:
    lock = LakeLock(job.lake.location, "host:1:driver")
    text = said("maintain", "--conf", conf, "--offline", code=1)
    lock.release()
    assert "is written by host:1:driver: one driver at a time" in text
    said("maintain", "--conf", conf, "--offline")


def test_the_command_is_a_record_without_a_target(
    job: InMemoryJob, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[Record, str]] = []

    def write(_: Any, record: Record, cluster_id: str, *_keys: Any) -> int:
        written.append((record, cluster_id))
        return 7

    monkeypatch.setattr(operator_records, "write", write)
    run_epoch(job)
    text = said("maintain", "--conf", conf, "--reason", "why", "--actor", "ada")
    ((record, cluster_id),) = written
    assert record.headers_as_text() == {
        "COMMAND": "MAINTAIN",
        "ACTOR": "ada",
        "REASON": "why",
        "TXV": "1",
    }
    assert (record.kind, record.partition, cluster_id) == ("admin", 0, "cluster")
    assert text.startswith("written to TXLAKE_ADMIN partition 0 offset 7: COMMAND MAINTAIN; ")
    assert txlake("maintain", "--conf", conf).exit_code == 2, "it says why, or does not ask"

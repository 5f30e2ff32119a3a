"""What consumer groups have given up is kept as long as topics keep messages, then dropped."""

from __future__ import annotations

import datetime as dt
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from pipelines.health.consumer_retries import count_refused, read_dropped, read_refused
from pipelines.job import refused_retention
from pipelines.job.maintenance import MaintenanceScheduler
from pipelines.job.refused_retention import RefusedRetention
from pipelines.operate.consumer_retries import find_dead, write_drop, write_resume
from storage.errors import OwnerError, StoreAwayError
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.maintenance.expiry import delete
from storage.maintenance.limits import Retention, StepResult
from storage.maintenance.merge import files_of
from storage.maintenance.topic_retention import floors
from storage.rows import milliseconds
from tests.support.in_memory_job import InMemoryJob
from tests.support.listeners import refuse, run_until
from tests.support.maintenance_rounds import NOW_GONE
from tests.support.operator import said
from txlake import ConsumedMessage
from txlake.protocol import ADMIN_TOPIC, COMMIT, FOREVER

DAY_MS = 86_400_000
RETENTION_MS = 8 * DAY_MS
Place = tuple[int, int]


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    """A lake of four messages that the group points has given up, two after the other two."""
    job = InMemoryJob(tmp_path / "lake")
    path = job.lake.path
    for dead in (2, 4):
        for number in (dead - 2, dead - 1):
            job.end(COMMIT, job.half(real_queue_id=0, keys=f"k{number}"))
        job.run()
        run_until(
            path, refuse, lambda dead=dead: counts(path) == {"points": (dead, 0)}, retries_max=0
        )
    return job


def counts(path: str) -> dict[str, tuple[int, int]]:
    """Return how many messages of each group are dead, and how many come again."""
    rows = count_refused(Lake(path))
    return {row["consumer_group"]: (row["dead"], row["retrying"]) for row in rows}


def letters(job: InMemoryJob) -> list[int]:
    """Return the offsets of the messages among the dead letters."""
    table = DeltaTable(job.lake.table_path("consumer_dead_letters"))
    return sorted(table.to_pyarrow_table(columns=["queue_offset"])["queue_offset"].to_pylist())


def newest_ms(job: InMemoryJob) -> int:
    """Return when the newest row of `consumer_retries` was written, rounded up."""
    rows = Lake(job.lake.path).read("consumer_retries", ["committed_at"])
    return milliseconds(max(rows["committed_at"].to_pylist())) + 1


def expire(
    job: InMemoryJob, at_ms: int, retention_ms: int = RETENTION_MS, *, is_full: bool = False
) -> StepResult:
    """Take all steps of a job whose newest epoch is of an instant."""
    plan = read_progress(job.lake).last
    assert plan is not None
    retention = RefusedRetention(Lake(job.lake.path, is_driver=True), retention_ms)
    retention.resume_from(replace(plan, epoch_at=at_ms))
    return sum(retention.steps(is_full=is_full), StepResult())


def test_what_was_dead_for_too_long_is_dropped_by_the_job_which_says_so(
    job: InMemoryJob, caplog: pytest.LogCaptureFixture
) -> None:
    died_ms = newest_ms(job)
    since = [row["since"] for row in read_refused(job.lake, "dead", None, None)]
    assert expire(job, min(since) + RETENTION_MS) == StepResult()
    assert counts(job.lake.path) == {"points": (4, 0)}
    assert "consumer_dead" in problems(job)

    assert expire(job, died_ms + RETENTION_MS).rows_expired == 4
    assert counts(job.lake.path) == {}
    assert "consumer_dead" not in problems(job)
    assert read_refused(job.lake, "dead", None, None) == []
    (line,) = [text for text in caplog.messages if "dropped" in text]
    assert line == (
        "4 dead messages of consumer group points dropped, dead for longer than [topics] "
        "retention_ms = 691200000: orders:0-0, orders:0-1, orders:0-2, orders:0-3; "
        "`txlake consumer dead list --dropped` names them"
    )
    rows = read_dropped(Lake(job.lake.path), "points", "orders")
    assert {(row["actor"], row["reason"]) for row in rows} == {
        ("txlake", "dead for longer than [topics] retention_ms = 691200000")
    }
    assert {row["queue_offset"] for row in rows} == {0, 1, 2, 3}
    assert len(letters(job)) == 4  # files are written anew for more than this

    # So much later the rows of those that were dropped are old, too: they are of today.
    assert expire(job, died_ms + RETENTION_MS + RETENTION_MS // 8).rows_expired == 8
    assert letters(job) == []
    assert read_dropped(Lake(job.lake.path), None, None) == []


def test_the_files_of_the_last_letters_are_deleted_too(job: InMemoryJob) -> None:
    late_ms = newest_ms(job) + 2 * RETENTION_MS
    expire(job, late_ms)
    expire(job, late_ms)
    assert letters(job) == []

    uri = job.lake.table_path("consumer_dead_letters")
    kept = {"delta.deletedFileRetentionDuration": "interval 1 millisecond"}
    DeltaTable(uri).alter.set_table_properties(kept)
    assert list(Path(uri).glob("*.parquet")) != []
    expire(job, late_ms, is_full=True)
    assert list(Path(uri).glob("*.parquet")) == []


def problems(job: InMemoryJob) -> set[str]:
    status = json.loads(said("status", "--lake", job.lake.path, "-o", "json"))
    return {problem["name"] for problem in status["problems"]}


def test_what_is_resumed_and_still_waits_keeps_its_message_though_the_topic_has_it_no_more(
    job: InMemoryJob,
) -> None:
    path = job.lake.path
    died_ms = newest_ms(job)
    write_resume(job.lake, find_dead(job.lake, "points", None, 0, 2))
    assert counts(path) == {"points": (3, 1)}

    much_later = died_ms + 3 * RETENTION_MS
    expire(job, much_later, is_full=True)
    assert counts(path) == {"points": (0, 1)}
    assert letters(job) == [2, 3]  # in the order of their deaths

    lake = Lake(path, is_driver=True)
    (table_id,) = lake.read("catalog", ["table_id"])["table_id"].to_pylist()
    files = files_of(lake, f"topics/{table_id}")
    delete(lake, f"topics/{table_id}", files, floors(lake, f"topics/{table_id}", files))
    seen: list[tuple[Place, str | None]] = []

    def take(messages: Sequence[ConsumedMessage]) -> None:
        seen.extend(((each.queue_id, each.queue_offset), each.keys) for each in messages)

    run_until(path, take, lambda: counts(path) == {}, lambda: seen)
    assert seen == [((0, 2), "k2")]
    expire(job, much_later, is_full=True)
    assert letters(job) == []


def test_what_neither_its_topic_nor_the_dead_letters_have_is_given_up_again(
    job: InMemoryJob, caplog: pytest.LogCaptureFixture
) -> None:
    path = job.lake.path
    lake = Lake(path, is_driver=True)
    (table_id,) = lake.read("catalog", ["table_id"])["table_id"].to_pylist()
    files = files_of(lake, f"topics/{table_id}")
    delete(lake, f"topics/{table_id}", files, floors(lake, f"topics/{table_id}", files))
    DeltaTable(lake.table_path("consumer_dead_letters")).delete("queue_offset < 2")

    write_resume(lake, find_dead(Lake(path), "points", None, None, None))
    seen: list[int] = []
    run_until(
        path, lambda messages: seen.extend(each.queue_offset for each in messages),
        lambda: counts(path) == {"points": (2, 0)}, lambda: counts(path),
    )  # fmt: skip
    assert sorted(seen) == [2, 3]
    dead = read_refused(Lake(path), "dead", None, None)
    assert {row["queue_offset"]: row["reason"] for row in dead} == dict.fromkeys(
        (0, 1), "its topic does not keep it any more"
    )
    assert len([text for text in caplog.messages if "it is given up" in text]) == 2


def test_a_table_of_an_older_sdk_gets_the_columns_that_it_lacks(job: InMemoryJob) -> None:
    path = job.lake.table_path("consumer_retries")
    rows = DeltaTable(path).to_pyarrow_table().drop_columns(["actor", "reason"])
    shutil.rmtree(path)
    write_deltalake(path, rows)

    lake = Lake(job.lake.path)
    assert read_dropped(lake, None, None) == []
    dead = find_dead(lake, "points", None, None, None)
    assert [row["queue_offset"] for row in dead] == [0, 1, 2, 3]
    assert write_drop(lake, dead[:1], "ada", "ticket 4711") == 1
    (row,) = read_dropped(Lake(job.lake.path), None, None)
    assert (row["queue_offset"], row["actor"], row["reason"]) == (0, "ada", "ticket 4711")
    assert counts(job.lake.path) == {"points": (3, 0)}


def test_without_a_limit_nothing_goes(job: InMemoryJob) -> None:
    assert expire(job, newest_ms(job) + 1_000 * DAY_MS, FOREVER, is_full=True) == StepResult()
    assert counts(job.lake.path) == {"points": (4, 0)}


def test_what_an_operator_has_dropped_is_to_be_seen_as_long(job: InMemoryJob) -> None:
    write_drop(job.lake, find_dead(job.lake, "points", None, 0, 2), "ada", "ticket 4711")
    died_ms = newest_ms(job)
    assert expire(job, died_ms - 2 + RETENTION_MS).rows_expired == 3
    assert len(read_dropped(Lake(job.lake.path), None, None)) == 4
    expire(job, died_ms + RETENTION_MS)
    rows = read_dropped(Lake(job.lake.path), None, None)
    assert {row["actor"] for row in rows} == {"txlake"}


def test_a_driver_that_another_has_replaced_drops_nothing(job: InMemoryJob) -> None:
    plan = read_progress(job.lake).last
    assert plan is not None

    def refuse_writing() -> None:
        raise OwnerError("another driver")

    retention = RefusedRetention(job.lake, RETENTION_MS, refuse_writing)
    retention.resume_from(replace(plan, epoch_at=newest_ms(job) + 3 * RETENTION_MS))
    with pytest.raises(OwnerError):
        list(retention.steps())
    assert counts(job.lake.path) == {"points": (4, 0)}
    assert len(letters(job)) == 4


@pytest.mark.parametrize("name", ["find_old", "read_letter_ages"])
def test_a_read_that_fails_is_tried_again_a_minute_later_and_not_after_hours(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    plan = read_progress(job.lake).last
    assert plan is not None
    retention = RefusedRetention(Lake(job.lake.path, is_driver=True), RETENTION_MS)
    retention.resume_from(replace(plan, epoch_at=newest_ms(job) + 3 * RETENTION_MS))

    began_s = 5_000.0
    clock = SimpleNamespace(monotonic=lambda: began_s)
    monkeypatch.setattr(refused_retention, "time", clock)
    read = getattr(refused_retention, name)
    reads_at: list[float] = []
    is_away = True

    def read_or_fail(*values: Any) -> Any:
        reads_at.append(clock.monotonic() - began_s)
        if is_away:
            raise StoreAwayError("the store does not answer")
        return read(*values)

    monkeypatch.setattr(refused_retention, name, read_or_fail)
    with pytest.raises(StoreAwayError):
        list(retention.steps())

    # A store that is away is not asked in each round.
    is_away = False
    look_s = RETENTION_MS / 1_000 / 100
    for after_s in (59.0, 60.0, 60.0 + look_s - 1.0, 60.0 + look_s):
        clock.monotonic = lambda after_s=after_s: began_s + after_s
        list(retention.steps())

    assert reads_at == [0.0, 60.0, 60.0 + look_s]
    assert counts(job.lake.path) == {}
    assert letters(job) == []


def test_a_lake_without_consumers_gets_no_tables_of_theirs(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.run()
    assert expire(job, 10 * RETENTION_MS, is_full=True) == StepResult()
    assert not (tmp_path / "lake" / "consumer_retries").exists()
    assert not (tmp_path / "lake" / "consumer_dead_letters").exists()


def run_to_next_year(job: InMemoryJob) -> Any:
    """Run an epoch that is later than the consumers' clock by more than the retention."""
    now = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=30)
    job.run(milliseconds(now) - job.at)
    return read_progress(Lake(job.lake.path)).last


def test_a_round_of_the_job_drops_what_is_old(
    job: InMemoryJob, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txlake.maintain")
    limits = replace(NOW_GONE, merge_files=1, topics=Retention(ms=RETENTION_MS))
    lake = Lake(job.lake.path, is_driver=True)
    scheduler = MaintenanceScheduler(lake, limits, 60_000, ADMIN_TOPIC, lambda: False)
    scheduler.after_batch(read_progress(lake).last, 60.0)
    assert counts(job.lake.path) == {"points": (4, 0)}
    assert not [text for text in caplog.messages if "failed" in text]

    another = MaintenanceScheduler(lake, limits, 60_000, ADMIN_TOPIC, lambda: False)
    another.after_batch(run_to_next_year(job), 60.0)
    assert counts(job.lake.path) == {}
    assert letters(job) == []
    assert not [text for text in caplog.messages if "failed" in text]


def test_maintain_offline_drops_what_is_old(job: InMemoryJob, conf: str) -> None:
    run_to_next_year(job)
    done = json.loads(said("maintain", "--conf", conf, "--offline", "-o", "json"))
    assert done["rows_expired"] >= 8
    assert counts(job.lake.path) == {}
    assert len(read_dropped(Lake(job.lake.path), None, None)) == 4
    assert letters(job) == []

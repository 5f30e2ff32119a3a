"""What notebook 3 calls: the state of any epoch, found in two ways; instants as people say them."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import duckdb
import pytest

from pipelines.notebooks import history
from pipelines.notebooks.open_lake import OpenLake
from storage.errors import LakeError
from storage.rows import instant
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.lakes_with_floor import delete_old_rows, make_old_job
from tests.support.notebook_lakes import answer, opened, sound
from txlake.protocol import COMMIT

MIDNIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> OpenLake:
    return OpenLake(sound().write(tmp_path_factory.mktemp("sound") / "lake"))


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=2)


def test_pending_is_the_same_both_ways_after_every_epoch(lake: OpenLake) -> None:
    counts = []
    for epoch in range(1, lake.epoch + 1):
        at = lake.sql("SELECT epoch_at FROM plans WHERE epoch = $epoch", epoch=epoch).item()
        when = history.point_in_time(lake, at.isoformat())
        rebuilt, queried = (
            history.pending(lake, when),
            answer(lake, "3", "outcomes_since", epoch=epoch),
        )
        assert when.epoch == epoch
        assert sorted(rebuilt["half"]) == sorted(queried["half"]), epoch
        counts.append(len(rebuilt))
    assert counts == answer(lake, "2", "epochs")["pending"].to_list()
    assert len(set(counts)) > 3  # it is no lake in which nothing changes


def test_pending_says_what_time_would_do_next(job: InMemoryJob) -> None:
    job.half("young", immunity_ms=60_000)
    job.half("asked")
    job.half("given up on")
    job.run()
    job.run(7_000)
    lake = opened(job)
    found = history.pending(lake, history.point_in_time(lake))
    named = found.select("transaction_id", "checks", "next", "next_at", "waits_s").rows()
    assert named == [
        ("young", 0, "check 1 of 2", instant(START_AT + 60_001), 8.0),
        ("asked", 1, "check 2 of 2", instant(START_AT + 38_000), 8.0),
        ("given up on", 1, "check 2 of 2", instant(START_AT + 38_000), 8.0),
    ]
    job.run(30_000)
    lake = opened(job)
    assert history.pending(lake, history.point_in_time(lake))["next"].to_list() == [
        "check 1 of 2",
        "discard (check_max)",
        "discard (check_max)",
    ]


def test_what_became_of_a_pending_half_is_its_next_outcome(job: InMemoryJob) -> None:
    job.half("late")
    job.run(1_000)
    for after_ms in (7_000, 30_000, 30_000):
        job.run(after_ms)
    job.end(COMMIT, 0)
    job.run()
    lake = opened(job)
    before = history.point_in_time(lake, instant(START_AT + 2_000).isoformat())
    assert answer(lake, "3", "outcomes_since", epoch=before.epoch).select(
        "fate", "cause", "epoch"
    ).rows() == [("DISCARDED", "check_max", 4)]
    assert answer(lake, "3", "outcomes_since", epoch=lake.epoch).is_empty()


def test_an_instant_is_that_of_the_newest_epoch_before(job: InMemoryJob) -> None:
    job.run(1_000)
    job.run(2_000)
    lake = opened(job)
    epochs = {
        text: history.point_in_time(lake, text).epoch
        for text in (
            "00:00:01",
            "00:00:02.999",
            "00:00:03",
            "2026-01-01 00:00:05",
            "2026-01-01T01:00:02+01:00",
            "2026-01-01T00:00:03Z",
            "2026-02-01",
        )
    }
    assert list(epochs.values()) == [1, 1, 2, 2, 1, 2, 2]


def test_a_time_of_day_is_the_last_one_that_the_lake_has_reached(job: InMemoryJob) -> None:
    job.run(1_000)
    job.run(23 * 3_600_000)  # 23:00:01
    job.run(2 * 3_600_000)  # 01:00:01 of the next day
    lake = opened(job)
    assert history.point_in_time(lake, "00:30").at == MIDNIGHT + dt.timedelta(days=1, minutes=30)
    assert history.point_in_time(lake, "23:30").epoch == 2
    with pytest.raises(LakeError, match="had no epoch yet"):
        history.point_in_time(lake, "2025-12-31")
    with pytest.raises(ValueError, match="five past two"):
        history.point_in_time(lake, "five past two")


def test_an_instant_whose_state_is_deleted_is_refused(tmp_path: Path) -> None:
    """A merged file can still hold the epoch, whose rows in `pending` are gone."""
    aged = make_old_job(tmp_path)
    before = OpenLake(aged.lake)
    at = dict(before.sql("SELECT epoch, epoch_at FROM plans").iter_rows())
    aged.lake.handle("epochs").optimize.compact()
    aged.lake.reset()
    delete_old_rows(aged)

    lake = OpenLake(aged.lake)
    first = lake.last.floor.deleted
    assert lake.sql("SELECT min(epoch) FROM plans").item() < first
    with pytest.raises(LakeError, match=rf"is deleted: it can be seen from epoch {first} on"):
        history.point_in_time(lake, at[first - 1].isoformat())

    when = history.point_in_time(lake, at[first].isoformat())
    assert history.pending(lake, when).equals(history.pending(before, when))
    assert history.point_in_time(lake).epoch >= first


def test_without_an_instant_it_is_the_one_with_the_most_pending(job: InMemoryJob) -> None:
    job.half("one")
    job.run()
    job.half("two")
    busiest = job.run()
    job.end(COMMIT, 0, 1)
    job.run()
    assert history.point_in_time(opened(job)).epoch == busiest


def test_a_version_of_delta_has_the_rows_up_to_its_epoch(job: InMemoryJob) -> None:
    for number in range(3):
        job.end(COMMIT, job.half(f"tx{number}"))
        job.run()
    lake = opened(job)
    when = history.point_in_time(lake, "00:00:02")
    found = history.versions(lake, when, "outcomes", "checks", "topics/1")
    # Version 0 made the table.
    assert found.rows() == [("outcomes", 2, 2, 2), ("checks", None, None, 0), ("topics/1", 2, 2, 2)]


def test_a_version_whose_files_are_deleted_is_none_any_more(job: InMemoryJob) -> None:
    for number in range(3):
        job.end(COMMIT, job.half(f"tx{number}"))
        job.run()
    table = job.lake.handle("outcomes")
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    lake = opened(job)
    found = history.versions(lake, history.point_in_time(lake, "00:00:02"), "outcomes")
    assert found.rows() == [("outcomes", None, None, 2)]


def test_the_busiest_epoch_is_the_last_at_which_most_wait() -> None:
    chance = random.Random(7)
    for _ in range(20):
        epochs = range(1, 30)
        waits = [
            (begin, chance.choice([None, begin + chance.randrange(1, 9)]))
            for begin in chance.choices(epochs, k=chance.randrange(12))
        ]
        pending = {
            epoch: sum(begin <= epoch and (end is None or end > epoch) for begin, end in waits)
            for epoch in epochs
        }
        with duckdb.connect() as connection:
            connection.execute("CREATE TABLE plans (epoch BIGINT, epoch_at BIGINT)")
            connection.executemany("INSERT INTO plans VALUES (?, ?)", [(e, e) for e in epochs])
            connection.execute("CREATE TABLE waits (from_epoch BIGINT, to_epoch BIGINT)")
            if waits:
                connection.executemany("INSERT INTO waits VALUES (?, ?)", waits)
            ((busiest,),) = connection.execute(history._BUSIEST, {"first": 0}).fetchall()
        assert busiest == max(epochs, key=lambda epoch: (pending[epoch], epoch))

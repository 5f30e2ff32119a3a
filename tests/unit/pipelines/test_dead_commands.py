"""`txlake dead list` and `txlake dead resume`: what is dead, until it is ended or delivered."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipelines.explain.rows import Row
from pipelines.health import dead_letters
from pipelines.health.dead_letters import read_dead, read_rearmed
from pipelines.health.transactions import Filters
from pipelines.operate.bulk import dead_targets
from pipelines.output import ago
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.maintenance.limits import Retention
from tests.support.aging_job import EPOCH_MS, AgingJob
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.operator import expected, said
from txlake.protocol import CHECK_MAX_TOPIC, COMMIT, CREATE_TOPIC, RESUME


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=0, auto_create_topics=False)


def dead(job: InMemoryJob) -> list[tuple[str, str]]:
    return [(row["target"], row["reason"]) for row in read_dead(job.lake)]


def test_what_is_dead_is_listed_until_it_is_ended_or_delivered(job: InMemoryJob, conf: str) -> None:
    assert said("dead", "list", "--conf", conf) == "no dead messages\n"
    for transaction_id in ("late", "again", "stays"):
        job.half(transaction_id, keys=f"order-{transaction_id}", producer_group=transaction_id)
    for seq in range(2):
        job.half("set", queue=1, tran_size=2, tran_seq=seq)
    job.end(COMMIT, job.half("stuck", real_topic="closed"))
    job.run(6_001)
    everything = [("half:0-0", "check_max"), ("half:0-1", "check_max"), ("half:0-2", "check_max"),
                  ("half:1-0", "check_max"), ("half:1-1", "check_max"),
                  ("undeliverable:0", "topic_not_allowed")]  # fmt: skip
    assert dead(job) == everything
    assert expected(conf, "dead", "resume", "half:0-0") == "rearmed: the half is pending again"
    assert expected(conf, "dead", "resume", "undeliverable:0").startswith("still_undeliverable")

    job.end(COMMIT, 0, group="late")
    job.command(RESUME, "half:0-01")
    job.command(RESUME, "half:1-1")
    job.command(CREATE_TOPIC, "topic:closed:1")
    job.run()
    assert dead(job) == [("half:0-2", "check_max"), ("undeliverable:0", "topic_not_allowed"),
                         ("undeliverable:1", "topic_not_allowed")]  # fmt: skip
    assert expected(conf, "dead", "resume", "undeliverable:0") == (
        "resumed: the message takes part in that epoch's delivery; delivered to topic closed, "
        "queue 0"
    )
    assert expected(conf, "dead", "resume", "half:0-0").startswith("not_discarded")

    job.command(RESUME, "undeliverable:0")
    job.run(6_001)
    assert dead(job) == [("half:0-2", "check_max"), ("half:0-1", "check_max"),
                         ("half:1-0", "check_max"), ("half:1-1", "check_max"),
                         ("undeliverable:1", "topic_not_allowed")]  # fmt: skip
    assert expected(conf, "dead", "resume", "undeliverable:0").startswith("not_undeliverable")

    job.end(COMMIT, 1, group="again")
    job.run(commit=False)
    assert ("half:0-1", "check_max") in dead(job)  # that epoch is not committed yet


def test_a_command_resumes_the_half_that_it_names_or_its_whole_set(
    job: InMemoryJob,
) -> None:
    job.half("same")
    for seq in range(2):
        job.half("same", tran_size=2, tran_seq=seq)
    job.half("same")
    job.run(6_001)

    job.command(RESUME, "half:0-0")
    job.command(RESUME, "half:0-2")
    epoch = job.run()

    assert read_rearmed(job.lake, {}).to_pylist() == [
        {"queue_id": 0, "queue_offset": offset, "epoch": epoch} for offset in (0, 1, 2)
    ]


def test_a_resumed_half_that_is_deleted_sooner_than_its_command_is_named_alone(
    job: InMemoryJob,
) -> None:
    for seq in range(2):
        job.half("old", tran_size=2, tran_seq=seq)
    job.half("kept")
    job.run(6_001)
    job.command(RESUME, "half:0-0")
    job.command(RESUME, "half:0-2")
    epoch = job.run()

    DeltaTable(job.lake.table_path("half")).delete("transaction_id = 'old'")
    assert read_rearmed(Lake(job.lake.path), {}).to_pylist() == [
        {"queue_id": 0, "queue_offset": offset, "epoch": epoch} for offset in (0, 2)
    ]


@pytest.mark.parametrize("sets", [2, 8])
def test_each_member_of_a_resumed_set_is_looked_at_once(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch, sets: int
) -> None:
    for number in range(sets):
        for seq in range(2):
            job.half(f"set{number}", tran_size=2, tran_seq=seq)
    job.run(6_001)
    for number in range(sets):
        job.command(RESUME, f"half:0-{2 * number}")
    job.run()

    looks: list[int] = []
    set_key = dead_letters.set_key

    def counted(half: Row) -> tuple[object, ...]:
        looks.append(half["queue_offset"])
        return set_key(half)

    monkeypatch.setattr(dead_letters, "set_key", counted)
    assert read_rearmed(job.lake, {}).num_rows == 2 * sets

    members = set(range(1, 2 * sets, 2))  # that no command names
    assert sorted(offset for offset in looks if offset in members) == sorted(members)


def test_a_half_that_dies_while_the_dead_are_read_is_dead_in_the_next_list(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.half("first")
    job.run(6_001)
    job.half("second")
    job.run(1_000)
    latest_committed = dead_letters.latest_committed

    def latest_before_the_job_goes_on(lake: Lake) -> tuple[int, dict[int, Plan]]:
        monkeypatch.undo()
        latest = latest_committed(lake)
        job.run(6_001)
        return latest

    monkeypatch.setattr(dead_letters, "latest_committed", latest_before_the_job_goes_on)
    rows = read_dead(Lake(job.lake.path))
    assert [(row["target"], row["since"] is None) for row in rows] == [("half:0-0", False)]
    assert [target for target, _ in dead(job)] == ["half:0-0", "half:0-1"]


def test_a_dead_half_has_its_keys_when_its_copy_is_deleted(tmp_path: Path) -> None:
    job = AgingJob(tmp_path / "lake", check_max=0, half_retention_ms=10**9)
    job.topics = Retention(ms=EPOCH_MS)
    for number in range(5):
        job.half(keys=f"order-{number}")
        job.run(EPOCH_MS)
    job.maintain()

    table = next(
        f"topics/{row['table_id']}"
        for row in job.lake.read("catalog").to_pylist()
        if row["topic"] == CHECK_MAX_TOPIC
    )
    assert 0 not in job.lake.read(table)["half_queue_offset"].to_pylist()
    assert [str(half) for half in dead_targets(job.lake, Filters(keys="order-0"))] == ["half:0-0"]


def test_the_dead_list_is_filtered_and_cut(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        job.half(f"t{number}", producer_group=f"g{number % 2}", real_topic=f"r{number // 2}",
                 keys=f"order-{number}")  # fmt: skip
    job.run(6_001)
    lake = ("--lake", job.lake.path)

    def targets(*words: str) -> list[str]:
        output = said("dead", "list", *words, *lake, "-o", "json")
        return [row["target"] for row in json.loads(output)]

    assert targets() == ["half:0-0", "half:0-1", "half:0-2", "half:0-3"]
    assert targets("--group", "g1") == ["half:0-1", "half:0-3"]
    assert targets("--topic", "r1", "--group", "g1") == ["half:0-3"]
    now = time.time_ns() // 1_000_000
    monkeypatch.setattr("time.time_ns", lambda: now * 1_000_000)
    since = ago(START_AT + 6_001, now)
    text = said("dead", "list", "--limit", "1", *lake)
    assert text.splitlines()[1].split() == [
        "half:0-0", "r0", "g0", "t0", "order-0", "check_max", *since.split(),
    ]  # fmt: skip
    assert text.splitlines()[2].startswith("3 more: ")

"""Commands about what consumer groups have refused, and about where they read on."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.health.consumer_retries import count_refused
from storage.lake.lake import Lake
from tests.support.in_memory_job import InMemoryJob
from tests.support.listeners import refuse, run_until
from tests.support.operator import said
from txlake import ConsumedMessage, Consumer, ConsumeStatus
from txlake.protocol import COMMIT

Place = tuple[int, int]


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    """Four messages of topic orders, in queue 0 and 1, delivered by two epochs."""
    job = InMemoryJob(tmp_path / "lake")
    for number in range(2):
        job.end(COMMIT, job.half(f"t{number}", real_queue_id=number % 2, keys=f"k{number}"))
    job.run(1_000)
    for number in range(2, 4):
        job.end(COMMIT, job.half(f"t{number}", real_queue_id=number % 2, keys=f"k{number}"))
    job.run(600_000)
    return job


def rows(*words: str) -> list[dict[str, Any]]:
    """Return what a command prints as JSON, without what it says beside it."""
    found, _ = json.JSONDecoder().raw_decode(said(*words, "-o", "json"))
    return list(found)


def test_dead_messages_are_listed_resumed_and_done(job: InMemoryJob) -> None:
    lake = ("--lake", job.lake.path)
    listed = ("consumer", "dead", "list", *lake)
    assert rows(*listed) == rows("consumer", "retries", *lake) == []
    assert "has no such dead message" in said("consumer", "dead", "resume", "points", *lake, code=1)

    run_until(
        job.lake.path, refuse, lambda: len(rows(*listed)) == 4,
        retries_max=1, retry_delays_ms=[50],
    )  # fmt: skip
    assert {(row["queue_id"], row["queue_offset"], row["keys"]) for row in rows(*listed)} == {
        (0, 0, "k0"), (1, 0, "k1"), (0, 1, "k2"), (1, 1, "k3"),
    }  # fmt: skip
    (first,) = [row for row in rows(*listed, "--topic", "orders") if row["keys"] == "k0"]
    assert (first["attempts"], first["reason"]) == (2, "ValueError: no JSON: k0")
    assert rows(*listed, "--group", "other") == []

    one = ("consumer", "dead", "resume", "points", "--queue", "1", "--offset", "1", *lake)
    said(*one)  # writes nothing
    assert len(rows(*listed)) == 4
    said(*one, "--yes")
    assert len(rows(*listed)) == 3
    (waiting,) = rows("consumer", "retries", *lake)
    assert (waiting["queue_id"], waiting["queue_offset"], waiting["attempts"]) == (1, 1, 2)

    said("consumer", "dead", "resume", "points", "--topic", "orders", *lake, "--yes")
    assert rows(*listed) == []
    seen: list[Place] = []

    def take(messages: Sequence[ConsumedMessage]) -> ConsumeStatus:
        seen.extend((message.queue_id, message.queue_offset) for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS

    run_until(job.lake.path, take, lambda: not rows("consumer", "retries", *lake))
    assert sorted(seen) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert rows(*listed) == []


def test_dead_messages_of_a_group_are_a_problem_until_they_are_resumed(job: InMemoryJob) -> None:
    lake = ("--lake", job.lake.path)
    assert facts(job)["refused"] == []
    assert "\nconsumers" not in said("status", *lake)

    run_until(
        job.lake.path, refuse, lambda: counts(job) == {"points": (4, 0)},
        retries_max=1, retry_delays_ms=[50],
    )  # fmt: skip
    (problem,) = [one for one in facts(job)["problems"] if one["name"] == "consumer_dead"]
    assert re.fullmatch(
        "consumer group points has given up 4 messages, the oldest .* ago", problem["words"]
    )
    assert problem["command"] == (
        "txlake consumer dead list, then txlake consumer dead resume or drop"
    )
    assert re.search(
        r"\nconsumers +dead: 4, the oldest \d.* ago; retrying: 0\n", said("status", *lake)
    )
    (group,) = rows("consumer", "list", *lake)
    assert (group["dead"], group["retrying"]) == (4, 0)

    resume = ("consumer", "dead", "resume", "points", *lake, "--yes")
    said(*resume, "--queue", "1")
    assert counts(job) == {"points": (2, 2)}
    said(*resume)
    assert "consumer_dead" not in {one["name"] for one in facts(job)["problems"]}
    assert re.search(
        r"\nconsumers +dead: 0; retrying: 4, the next \d.* ago\n", said("status", *lake)
    )

    run_until(job.lake.path, lambda _: None, lambda: counts(job) == {})
    (group,) = rows("consumer", "list", *lake)
    assert (group["dead"], group["retrying"]) == (0, 0)


def test_dropped_messages_do_not_come_again_and_are_no_problem_any_more(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = ("--lake", job.lake.path)
    drop = ("consumer", "dead", "drop", "points", *lake, "--reason", "ticket 4711")
    dropped = ("consumer", "dead", "list", "--dropped", *lake)
    assert said(*dropped) == "no dropped messages\n"
    assert "has no such dead message" in said(*drop, "--yes", code=1)

    run_until(
        job.lake.path, refuse, lambda: counts(job) == {"points": (4, 0)},
        retries_max=1, retry_delays_ms=[50],
    )  # fmt: skip
    one = (*drop, "--queue", "1", "--offset", "1")
    assert "1 would be dropped; --yes writes" in said(*one)  # writes nothing
    assert counts(job) == {"points": (4, 0)}
    assert "--reason is empty" in said(*drop, "--reason", " ", "--yes", code=2)
    assert "Missing option '--reason'" in said(*drop[:-2], "--yes", code=2)

    assert "1 dropped" in said(*one, "--actor", "ada", "--yes")
    assert counts(job) == {"points": (3, 0)}
    (row,) = rows(*dropped)
    assert (row["queue_id"], row["queue_offset"], row["attempts"]) == (1, 1, 2)
    assert (row["actor"], row["reason"]) == ("ada", "ticket 4711")
    assert "no such dead message" in said(*one, "--yes", code=1)
    resume = ("consumer", "dead", "resume", "points", *lake, "--yes")
    assert "no such dead message" in said(*resume, "--queue", "1", "--offset", "1", code=1)

    monkeypatch.setenv("LOGNAME", "bob")
    said(*drop, "--topic", "orders", "--yes")
    assert counts(job) == {}
    assert "consumer_dead" not in {one["name"] for one in facts(job)["problems"]}
    assert "\nconsumers" not in said("status", *lake)
    (group,) = rows("consumer", "list", *lake)
    assert (group["dead"], group["retrying"]) == (0, 0)
    assert [row["actor"] for row in rows(*dropped)] == ["bob", "bob", "bob", "ada"]

    seen: list[Place] = []

    def take(messages: Sequence[ConsumedMessage]) -> None:
        seen.extend((message.queue_id, message.queue_offset) for message in messages)

    job.end(COMMIT, job.half("t4", real_queue_id=0))
    job.run()
    run_until(job.lake.path, take, lambda: (0, 2) in seen, lambda: seen)
    assert seen == [(0, 2)]


def test_a_dropped_message_that_is_read_again_and_refused_begins_anew(job: InMemoryJob) -> None:
    lake = ("--lake", job.lake.path)
    run_until(
        job.lake.path, refuse, lambda: counts(job) == {"points": (4, 0)}, retries_max=0
    )  # fmt: skip
    said("consumer", "dead", "drop", "points", *lake, "--reason", "why", "--yes")
    said("consumer", "reset", "points", "--topic", "orders", "--to", "earliest", *lake, "--yes")
    run_until(
        job.lake.path, refuse, lambda: counts(job) == {"points": (4, 0)},
        lambda: counts(job), retries_max=1, retry_delays_ms=[50],
    )  # fmt: skip
    assert {row["attempts"] for row in rows("consumer", "dead", "list", *lake)} == {2}
    assert rows("consumer", "dead", "list", "--dropped", *lake) == []


def facts(job: InMemoryJob) -> dict[str, Any]:
    """Return what `txlake status` knows."""
    return dict(json.loads(said("status", "--lake", job.lake.path, "-o", "json")))


def counts(job: InMemoryJob) -> dict[str, tuple[int, int]]:
    """Return how many messages of each group are dead, and how many come again."""
    return {row["consumer_group"]: (row["dead"], row["retrying"]) for row in facts(job)["refused"]}


def test_counting_the_refused_opens_neither_messages_nor_reasons(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until(
        job.lake.path, refuse, lambda: counts(job) == {"points": (4, 0)},
        retries_max=0, retry_delays_ms=[50],
    )  # fmt: skip
    reads: list[tuple[str, set[str]]] = []
    read = Lake.read

    def recording(lake: Lake, table: str, columns: Any = None, where: Any = None) -> Any:
        reads.append((table, set(columns or ())))
        return read(lake, table, columns, where)

    monkeypatch.setattr(Lake, "read", recording)
    (row,) = count_refused(Lake(job.lake.path))
    ((table, columns),) = reads
    assert table == "consumer_retries"
    assert columns and not columns & {"attempts", "body"}
    assert row["dead"] == 4 and row["due_at"] is None


def test_a_group_is_reset_to_an_instant(job: InMemoryJob) -> None:
    with Consumer(job.lake.path, "points", ["orders"]) as consumer:
        assert len(consumer.poll(5.0)) == 4
        consumer.commit()
    epochs = job.lake.read("epochs", ["epoch", "epoch_at"]).to_pylist()
    latest = max(row["epoch_at"] for row in epochs)

    def plan(at: dt.datetime) -> dict[int, int]:
        words = ("--topic", "orders", "--to", at.isoformat(), "--lake", job.lake.path)
        found = rows("consumer", "reset", "points", *words)
        return {row["queue_id"]: row["new_offset"] for row in found}

    assert plan(latest) == {0: 1, 1: 1, 2: 0, 3: 0}
    assert plan(latest + dt.timedelta(milliseconds=1)) == {0: 2, 1: 2, 2: 0, 3: 0}
    assert plan(latest - dt.timedelta(days=1)) == {0: 0, 1: 0, 2: 0, 3: 0}

    words = ("--topic", "orders", "--to", "2026-01-01T00:00:00", "--lake", job.lake.path)
    assert "say its time zone" in said("consumer", "reset", "points", *words, code=2)
    words = ("--topic", "orders", "--to", "soon", "--lake", job.lake.path)
    assert "an offset, or an instant" in said("consumer", "reset", "points", *words, code=2)

"""`txlake schedule list`, `txlake schedule cancel` and `txlake topic create`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.operate.delays import read_waiting
from storage.lake.pruned import read_rows
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.operator import dry, expected, said
from txlake.protocol import CANCEL, COMMIT, CREATE_TOPIC


def test_what_waits_is_counted_by_level_with_the_next_due(tmp_path: Path, conf: str) -> None:
    job = InMemoryJob(tmp_path / "lake", delay_levels_ms=(5_000, 10_000))
    job.schedule(queue=0, delay_level=1, keys="k1", producer_group="a")
    job.schedule(queue=1, delay_level=9, real_topic="other")
    job.schedule(queue=0, deliver_at=START_AT + 60_000)
    job.schedule(queue=0)  # no delay: due at once
    job.end(COMMIT, job.half(delay_level=2, keys="k2"))
    job.run()
    waiting = read_waiting(job.lake)
    assert [(row["target"], row["level"], row["keys"]) for row in waiting.messages] == [
        ("schedule:0-0", 1, "k1"),
        ("schedule:1-0", 2, None),
        ("half:0-0", 2, "k2"),
        ("schedule:0-1", None, None),
    ]
    assert waiting.levels == [
        {"level": 1, "waiting": 1, "next_at": START_AT + 5_000},
        {"level": 2, "waiting": 2, "next_at": START_AT + 10_000},
        {"level": None, "waiting": 1, "next_at": START_AT + 60_000},
    ]
    told = json.loads(said("schedule", "list", "--conf", conf, "-o", "json"))
    assert told["count"] == 4
    assert told["levels"][1] == {
        "level": 2,
        "delay": "10 s",
        "waiting": 2,
        "next_at": "2026-01-01T00:00:10.000Z",
    }
    for words, count in (
        (("--topic", "other"), 1),
        (("--group", "a"), 1),
        (("--level", "2"), 2),
        (("--level", "0"), 1),
        (("--topic", "none"), 0),
        (("--limit", "1"), 4),
    ):
        output = said("schedule", "list", *words, "--conf", conf, "-o", "json")
        assert json.loads(output)["count"] == count, words
    text = said("schedule", "list", "--limit", "1", "--conf", conf)
    assert "no level" in text
    assert "3 more: " in text

    assert expected(conf, "schedule", "cancel", "half:0-0").startswith("cancelled: ")
    assert expected(conf, "schedule", "cancel", "schedule:0-2").startswith("not_delayed: ")
    job.command(CANCEL, "half:0-0")
    job.run(5_000)
    targets = [row["target"] for row in read_waiting(job.lake).messages]
    assert targets == ["schedule:1-0", "schedule:0-1"]
    assert expected(conf, "schedule", "cancel", "half:0-0").startswith("not_delayed: ")


def test_messages_between_those_that_wait_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    first = job.half(deliver_at=START_AT + 60_000, keys="first")
    halves = [job.half(keys=str(number)) for number in range(20)]
    last = job.half(deliver_at=START_AT + 90_000, keys="last")
    job.end(COMMIT, first, *halves, last)
    job.run()
    counts: list[int] = []

    def counted_rows(*words: Any) -> pa.Table:
        rows = read_rows(*words)
        counts.append(rows.num_rows)
        return rows

    monkeypatch.setattr("pipelines.operate.delays.read_rows", counted_rows)
    assert [row["keys"] for row in read_waiting(job.lake).messages] == ["first", "last"]
    assert counts == [2, 0]


def test_a_lake_where_nothing_waits_says_so(tmp_path: Path, conf: str) -> None:
    InMemoryJob(tmp_path / "lake").run()
    assert said("schedule", "list", "--conf", conf) == "no delayed messages\n"


# topic create.


def test_a_topic_is_made_grown_or_left(tmp_path: Path, conf: str) -> None:
    job = InMemoryJob(tmp_path / "lake")

    def create(queues: int, name: str = "orders") -> str:
        return expected(conf, "topic", "create", name, "--queues", str(queues))

    assert create(2).startswith("created: ")
    job.command(CREATE_TOPIC, "topic:orders:2")
    job.run()
    assert create(2).startswith("unchanged: ")
    assert create(3).startswith("grown: ")
    assert create(1, "TRANS_CHECK_MAX_TIME_TOPIC").startswith("bad_target: ")
    told = dry(conf, "topic", "create", "orders", "--queues", "3")
    assert (told["topic"], told["partition"], told["body"]) == ("TXLAKE_ADMIN", 0, None)
    assert told["headers"] == {
        "COMMAND": "CREATE_TOPIC",
        "TARGET": "topic:orders:3",
        "ACTOR": "ada",
        "REASON": "why",
        "TXV": "1",
    }

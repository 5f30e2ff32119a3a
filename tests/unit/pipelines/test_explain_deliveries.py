"""`tx explain` of messages that are delayed, cancelled, undeliverable, or of the schedule topic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.explain.show import lines, to_json
from pipelines.health.consumer_retries import read_refused
from pipelines.operate.consumer_retries import find_dead, write_drop
from storage.lake.lake import Lake
from tests.support.explain_reports import kinds, report_of, texts
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.listeners import refuse, run_until
from txlake import ConsumedMessage, Consumer
from txlake._retries import DEAD, DROPPED, WAITING
from txlake.protocol import CANCEL, COMMIT, RESUME


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=2)


def test_a_delayed_half_waits_for_its_time_and_is_delivered_later(job: InMemoryJob) -> None:
    offset = job.half(deliver_at=START_AT + 60_000)
    job.end(COMMIT, offset)
    job.run()
    report = report_of(job)
    (message,) = report.messages
    assert [(wait.code, wait.until) for wait in message.waits] == [("delayed", START_AT + 60_000)]
    assert "half 0-0 is delayed until 2026-01-01T00:01:00.000Z" in texts(report, "delayed")[0]
    assert "is `txlake run` running?" in str(
        report_of(job, now_ms=START_AT + 300_000).messages[0].waits[0]
    )
    job.run(60_000)
    report = report_of(job)
    assert report.messages[0].place is not None
    assert kinds(report)[-1] == "delivered"


@pytest.mark.parametrize(
    ("columns", "is_capped"),
    [
        ({"deliver_at": START_AT + 21_001}, True),  # 20 s after epoch_at of the commit is its limit
        ({"deliver_at": START_AT + 21_000}, False),
        ({"deliver_at": START_AT + 90_000, "delay_level": 1}, False),  # the level counts
    ],
)
def test_a_delay_that_was_cut_short_says_what_was_asked_for(
    tmp_path: Path, columns: dict[str, int], is_capped: bool
) -> None:
    job = InMemoryJob(tmp_path / "lake", deliver_at_max_ms=20_000, delay_levels_ms=(20_000,))
    job.end(COMMIT, job.half(**columns))
    job.run(1_000)
    report = report_of(job)
    asked = " (asked for 2026-01-01T00:00:21.001Z, capped at deliver_at_max_ms)"
    expected = "is delayed until 2026-01-01T00:00:21.000Z" + (asked if is_capped else "")
    assert texts(report, "delayed") == [f"half 0-0 {expected}"]
    (wait,) = report.messages[0].waits
    assert wait.rule.sentence == f"half:0-0 {expected}"


@pytest.mark.parametrize(
    ("deliver_at", "is_capped"),
    [
        (START_AT + 20_001, True),
        (START_AT + 20_000, False),
        (START_AT + 500, False),  # before epoch_at: no delay, and due since it was stored
    ],
)
def test_a_schedule_record_that_was_cut_short_says_so(
    tmp_path: Path, deliver_at: int, is_capped: bool
) -> None:
    job = InMemoryJob(tmp_path / "lake", deliver_at_max_ms=20_000)
    job.schedule(deliver_at=deliver_at)
    job.run(1_000)
    told_of_delay = "".join(texts(report_of(job, "schedule:0-0"), "delayed"))
    assert ("capped at deliver_at_max_ms" in told_of_delay) is is_capped


def test_a_cancelled_delay_says_who_and_why(job: InMemoryJob) -> None:
    offset = job.half(deliver_at=START_AT + 60_000)
    job.end(COMMIT, offset)
    job.run()
    job.command(CANCEL, f"half:0-{offset}")
    job.run()
    report = report_of(job)
    assert report.status == "COMMITTED"
    (wait,) = report.messages[0].waits
    assert wait.code == "cancelled"
    assert "cancelled by ada, because: she said so" in str(wait)
    assert kinds(report)[-2:] == ["command", "cancelled"]


@pytest.mark.parametrize(
    ("parameters", "columns", "reason"),
    [
        ({"auto_create_topics": False}, {}, "topic_not_allowed"),
        ({}, {"real_queue_id": 9}, "queue_out_of_range"),
    ],
)
def test_an_undeliverable_message_says_why_and_what_to_do(
    tmp_path: Path, parameters: dict[str, Any], columns: dict[str, Any], reason: str
) -> None:
    job = InMemoryJob(tmp_path / "lake", **parameters)
    job.end(COMMIT, job.half(**columns))
    job.run()
    (wait,) = report_of(job).messages[0].waits
    assert wait.code == "undeliverable"
    assert f"undeliverable ({reason})" in str(wait)
    assert "`txlake dead resume undeliverable:0`" in str(wait)


@pytest.mark.parametrize("has_other_messages", [False, True])
def test_an_undeliverable_message_is_found_by_its_own_target(
    tmp_path: Path, has_other_messages: bool
) -> None:
    job = InMemoryJob(tmp_path / "lake", auto_create_topics=False)
    if has_other_messages:
        job.end(COMMIT, job.half("another"))
    job.end(COMMIT, job.half("tx"))
    job.run()

    report = report_of(job, f"undeliverable:{int(has_other_messages)}")

    assert report == report_of(job, "tx")


def test_a_resumed_message_shows_the_command_that_delivered_it(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake", auto_create_topics=False)
    job.end(COMMIT, job.half())
    job.run()
    job.command(RESUME, "undeliverable:0")
    job.run()
    assert texts(report_of(job), "command")[0].endswith(
        "still_undeliverable: its topic still cannot take it"
    )
    job.command("CREATE_TOPIC", "topic:orders:2")
    job.command(RESUME, "undeliverable:0")
    job.run()
    report = report_of(job)
    assert report.messages[0].place is not None
    assert len(texts(report, "command")) == 2
    assert kinds(report)[-1] == "delivered"


def test_a_schedule_record_is_followed_to_its_delivery(job: InMemoryJob) -> None:
    job.schedule(queue=2, delay_level=1, keys="later")
    job.run(100)
    report = report_of(job, "schedule:2-0")
    assert (report.status, kinds(report)) == ("DELAYED", ["schedule", "delayed"])
    assert report.messages[0].waits[0].until == START_AT + 1_000
    job.run(1_000)
    report = report_of(job, "schedule:2-0")
    assert report.status == "DELIVERED"
    assert report.messages[0].place is not None


def test_schedule_records_are_cancelled_undeliverable_or_unreadable(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake", auto_create_topics=False)
    job.schedule(queue=0, deliver_at=START_AT + 60_000)
    job.schedule(queue=1)
    job.schedule(queue=2, error="bad_real_topic", real_topic=None)
    job.run()
    job.command(CANCEL, "schedule:0-0")
    job.run()
    statuses = [report_of(job, f"schedule:{queue}-0").status for queue in range(3)]
    assert statuses == ["CANCELLED", "UNDELIVERABLE", "UNREADABLE"]


def test_a_transaction_id_finds_a_schedule_record_too(job: InMemoryJob) -> None:
    job.schedule(transaction_id="alone", producer_group="g")
    job.run()
    assert report_of(job, "alone").unit.source == "schedule"


def test_a_delivered_message_says_which_groups_have_read_it(job: InMemoryJob) -> None:
    for number in range(2):
        job.end(COMMIT, job.half(f"t{number}", real_queue_id=0))
    job.run()
    assert "no consumer group has read its topic" in "\n".join(lines(report_of(job, "t0")))

    with Consumer(job.lake.path, "points", ["orders"]) as consumer:
        assert len(consumer.poll(5.0, 1)) == 1
        consumer.commit()
    Consumer(job.lake.path, "audit", ["orders"], queues={"orders": [1]}).close()
    first, second = report_of(job, "t0"), report_of(job, "t1")
    none_refused = {"refusal": None, "attempts": 0, "due_at": None}
    assert "    read by consumer groups: points; not yet read by consumer groups: audit" in list(
        lines(first)
    )
    assert "    not yet read by consumer groups: audit, points" in list(lines(second))
    assert [
        report["messages"][0]["consumer_groups"] for report in map(to_json, (first, second))
    ] == [
        [
            {"consumer_group": "audit", "has_read": False, "queue_offset": None, **none_refused},
            {"consumer_group": "points", "has_read": has_read, "queue_offset": 1, **none_refused},
        ]
        for has_read in (True, False)
    ]


@pytest.mark.parametrize(
    ("state", "options", "text"),
    [
        (
            WAITING,
            {"retry_delays_ms": [3_600_000]},
            r"refused once, comes again at \d{4}-\d\d-\d\dT.*Z",
        ),
        (DEAD, {"retries_max": 1, "retry_delays_ms": [50]}, "refused 2 times, given up"),
        (
            DROPPED,
            {"retries_max": 1, "retry_delays_ms": [50]},
            "refused 2 times, dropped by an operator",
        ),
    ],
)
def test_a_message_that_a_group_has_refused_is_not_read_by_it(
    job: InMemoryJob, state: str, options: dict[str, Any], text: str
) -> None:
    """The group's offset is after the message, but its listener has not taken it."""
    for number in range(2):
        job.end(COMMIT, job.half(f"t{number}", real_queue_id=0, keys=f"k{number}"))
    job.run()

    seen: set[int] = set()

    def refuse_the_first(messages: Sequence[ConsumedMessage]) -> None:
        seen.add(messages[0].queue_offset)
        if messages[0].queue_offset == 0:
            refuse(messages)

    lake = Lake(job.lake.path)
    refused_state = DEAD if state == DROPPED else state
    run_until(
        lake.path,
        refuse_the_first,
        lambda: seen == {0, 1} and bool(read_refused(lake, refused_state, "points", None)),
        **options,
    )
    if state == DROPPED:
        write_drop(lake, find_dead(lake, "points", None, None, None), "ada", "ticket 4711")

    first, second = report_of(job, "t0"), report_of(job, "t1")
    (reader,) = to_json(first)["messages"][0]["consumer_groups"]
    assert reader["queue_offset"] == 2
    assert (reader["has_read"], reader["refusal"]) == (False, state)
    assert (reader["due_at"] is not None) == (state == WAITING)
    assert re.search(f"^    consumer group points: {text}$", "\n".join(lines(first)), re.MULTILINE)
    assert "    read by consumer groups: points" in list(lines(second))


def test_a_message_that_is_not_delivered_has_no_readers(job: InMemoryJob) -> None:
    job.half()
    job.run()
    report = report_of(job)
    assert report.messages[0].readers == () and "consumer group" not in "\n".join(lines(report))

"""`tx explain`: epochs that are not committed, what is not there, targets, and its own state."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checker.frames import HALVES
from pipelines.explain import rule_texts
from pipelines.explain.fetch import find, find_by_keys
from pipelines.explain.report import nothing_found, reports
from pipelines.explain.target import Transaction, parse_target
from pipelines.explain.units import units_of
from pipelines.output import instant, span
from tests.support.explain_reports import codes, report_of
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.protocol_pages import PAGES, section
from txlake.protocol import COMMIT, RESUME, UNKNOWN, RecordTarget


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=2)


def test_rows_of_an_epoch_that_is_not_committed_are_shown_as_such(job: InMemoryJob) -> None:
    offset = job.half()
    job.run()
    job.end(COMMIT, offset)
    epoch = job.run(commit=False)
    report = report_of(job)
    assert (report.status, codes(report)) == ("PENDING", ["not_committed"])
    assert f"decided in epoch {epoch}, not committed yet" in str(report.waits[0])
    assert [event.is_committed for event in report.events] == [True, False, False, False]
    assert all(f"(epoch {epoch}, not committed yet)" in e.text for e in report.events[1:])
    assert not report.decisions[0].is_committed


def test_a_half_of_an_epoch_that_is_not_committed_is_shown_as_such(job: InMemoryJob) -> None:
    job.run()
    job.half()
    job.run(commit=False)
    report = report_of(job)
    assert codes(report)[0] == "not_committed"
    assert "landed in epoch 2, not committed yet" in str(report.waits[0])


def test_an_early_delivery_is_shown_as_such(job: InMemoryJob) -> None:
    job.end(COMMIT, job.half(deliver_at=START_AT + 2_000))
    job.run()
    job.run(commit=False)
    report = report_of(job)
    assert report.messages[0].place is None
    assert [wait.code for wait in report.messages[0].waits] == ["not_committed"]


def test_what_is_not_there_is_one_sentence(job: InMemoryJob) -> None:
    job.half()
    job.run()
    path = job.lake.path
    for text, said in (
        (
            "nobody",
            f"no half and no schedule record has transaction id nobody in the lake {path}, "
            "which stands at epoch 1",
        ),
        (
            "0-7",
            f"there is no half 0-7 in the lake {path}, which stands at epoch 1: that queue is "
            "landed up to offset 1",
        ),
        (
            "schedule:99-0",
            f"there is no schedule 99-0 in the lake {path}, which stands at epoch "
            "1: it has landed nothing of that queue",
        ),
    ):
        target = parse_target(text)
        found = find(job.lake, target)
        assert reports(found, job.at) == ([], 0)
        assert nothing_found(found, target, path) == said


def test_an_empty_lake_has_nothing(job: InMemoryJob) -> None:
    assert reports(find(job.lake, parse_target("tx")), job.at) == ([], 0)


def test_keys_find_their_messages(job: InMemoryJob) -> None:
    job.half("a", keys="order-1 order-2")
    job.half("b", keys="order-12")
    job.schedule(keys="order-1")
    job.run()
    assert [(row["source"], row["keys"]) for row in find_by_keys(job.lake, "order-1")] == [
        ("half", "order-1 order-2"),
        ("schedule", "order-1"),
    ]
    assert find_by_keys(job.lake, "order") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("3-4", RecordTarget("half", 3, 4), id="two numbers are a half"),
        pytest.param("half:3-04", RecordTarget("half", 3, 4), id="half"),
        pytest.param("schedule:3-4", RecordTarget("schedule", 3, 4), id="schedule"),
        pytest.param("019b76da91a1", Transaction("019b76da91a1"), id="anything else is an id"),
        pytest.param("id:3-4", Transaction("3-4"), id="an id that looks like two numbers"),
        pytest.param("1234567890-1", Transaction("1234567890-1"), id="no queue has ten digits"),
    ],
)
def test_a_target_is_a_record_or_a_transaction(
    text: str, expected: RecordTarget | Transaction
) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize("text", ["half:1", "a b", "", "undeliverable:1-3", "topic:a:1", "1-2-é"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no transaction id"):
        parse_target(text)


def test_a_units_state_is_what_the_job_holds(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake", check_max=2)
    ids = ["a", "b", "c", "d"]
    for transaction_id in ids[:3]:
        job.half(transaction_id)
    job.half("tx", tran_size=2, tran_seq=0)
    job.end(UNKNOWN, 0)
    for after_ms in (1_000, 7_000, 30_000, 30_000):
        job.run(after_ms)
    job.end(COMMIT, 1)
    job.command(RESUME, "half:0-2")
    job.command(RESUME, "half:0-3")
    job.half("d")
    job.run()
    job.half("tx", tran_size=2, tran_seq=1)
    job.run(7_000, acknowledged=False)
    halves = []
    for transaction_id in (*ids, "tx"):
        for unit in units_of(find(job.lake, parse_target(transaction_id))):
            halves += [{name: half[name] for name in HALVES.names} for half in unit.halves]
    state = job.state.halves.to_pylist()
    assert sorted(halves, key=repr) == sorted(state, key=repr)
    assert len(halves) == 5


def rules() -> list[rule_texts.Rule]:
    tables = (rule_texts.OUTCOMES, rule_texts.CONFLICTS, rule_texts.UNDELIVERABLE)
    return [rule for table in tables for rule in table.values()] + [
        rule_texts.AFTER_ROLLBACK,
        rule_texts.AFTER_DISCARD,
    ]


def test_every_cited_line_of_the_protocol_exists() -> None:
    for rule in rules():
        assert f"[{rule.section}](docs/protocol/" in PAGES["PROTOCOL.md"], rule.source
        text = section(rule.section)
        if rule.line is not None:
            assert re.search(rf"^(\| {rule.line} \||{rule.line}\. )", text, re.M), rule.source


def test_instants_and_spans_are_written_for_people() -> None:
    assert instant(START_AT + 7) == "2026-01-01T00:00:00.007Z"
    assert [span(ms) for ms in (999, 6_000, 90_000, 3_600_000, 259_200_000)] == [
        "999 ms",
        "6 s",
        "1.5 min",
        "1 h",
        "3 d",
    ]

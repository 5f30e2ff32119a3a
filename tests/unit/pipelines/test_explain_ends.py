"""`tx explain` of halves that ended: operation, rule, numbers, epoch and place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.explain.show import lines
from pipelines.explain.target import parse_target
from tests.support.explain_reports import codes, kinds, report_of, texts
from tests.support.in_memory_job import InMemoryJob
from txlake.protocol import CHECK_MAX_TOPIC, COMMIT, RESEND, RESUME, ROLLBACK, UNKNOWN


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=2)


def test_a_committed_half_names_operation_rule_epoch_and_place(job: InMemoryJob) -> None:
    other = job.half("other", keys="order-0")
    offset = job.half("tx", keys="order-1")
    job.end(COMMIT, offset)
    job.end(COMMIT, other)
    epoch = job.run()
    report = report_of(job)
    assert report.status == "COMMITTED"
    assert kinds(report) == ["half", "operation", "outcome", "delivered"]
    (message,) = report.messages
    assert message.place is not None
    assert vars(message.place) == {
        "topic": "orders",
        "table": "topics/1",
        "queue_id": 1,
        "queue_offset": 0,
        "epoch": epoch,
        "is_deleted": False,
    }
    (decision,) = report.decisions
    assert (decision.outcome, decision.cause, decision.op_queue_offset) == (
        "COMMITTED",
        "operation",
        0,
    )
    assert (decision.epoch_at, decision.known_at) == (job.at, job.at)
    assert decision.rule.source == 'PROTOCOL.md "What happens to a half at an epoch", line 1'
    assert codes(report) == []
    assert f"half:0-{offset}" == str(parse_target(f"0-{offset}"))
    assert report_of(job, f"0-{offset}") == report


def test_a_rolled_back_half_is_not_delivered(job: InMemoryJob) -> None:
    job.end(ROLLBACK, job.half())
    job.run()
    report = report_of(job)
    assert report.status == "ROLLED_BACK"
    assert report.decisions[0].rule.line == 2
    assert report.messages[0].place is None
    assert list(lines(report))[1].endswith("ROLLED_BACK, not delivered")


def test_an_end_after_its_deadline_and_the_check_decides(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake", reject_after_immunity=True)
    offset = job.half(immunity_ms=10_000)
    job.run(13_000)
    job.end(COMMIT, offset)  # stored 13 s after its half
    job.run()
    text = next(event.text for event in report_of(job).events if event.kind == "conflict")
    assert text.endswith("it came 3 s after its deadline; no check has decided yet"), text
    job.end(ROLLBACK, offset, from_check=True)
    job.run()
    report = report_of(job)
    assert report.status == "ROLLED_BACK"
    text = next(event.text for event in report.events if event.kind == "conflict")
    assert text.endswith("it came 3 s after its deadline; the check decided"), text


def test_operations_without_effect_say_why(job: InMemoryJob) -> None:
    offset = job.half()
    job.end(COMMIT, offset, group="other")
    job.end(COMMIT, offset, transaction_ids=["another"])
    job.end(UNKNOWN, offset, remark="not sure")
    winner = job.end(COMMIT, offset)
    job.end(ROLLBACK, offset)
    job.end(COMMIT, offset)
    job.end(COMMIT, offset, error="bad_tran_type")
    job.end(COMMIT, 99, error="bad_offsets")
    job.run()
    report = report_of(job)
    reasons = [event.detail["reason"] for event in report.events if event.kind == "conflict"]
    assert reasons == [
        "wrong_producer_group",
        "wrong_transaction_id",
        "conflicting_end",
        "duplicate_end",
    ]
    effects = {
        event.detail["queue_offset"]: event.detail["effect"]
        for event in report.events
        if event.kind == "operation"
    }
    assert effects == {
        0: "conflict",
        1: "conflict",
        2: "declines",
        winner: "ends",
        4: "conflict",
        5: "conflict",
        6: "conflict",
    }
    assert "line 4" in texts(report, "conflict")[0]
    assert "remark: not sure" in texts(report, "operation")[2]
    assert "cannot be read (bad_tran_type)" in texts(report, "operation")[6]


def test_a_check_shows_its_answer_and_the_end_it_led_to(job: InMemoryJob) -> None:
    offset = job.half()
    job.run()
    job.run(7_000)
    job.end(UNKNOWN, offset, from_check=True, check_id="0-0-0-1")
    job.run(30_000, acknowledged=False)
    job.end(COMMIT, offset, from_check=True, check_id="0-0-0-2")
    job.run()
    report = report_of(job)
    assert [event.detail["answered_by"] for event in report.events if event.kind == "check"] == [
        [0],
        [1],
    ]
    sent = texts(report, "check")
    assert sent[0].startswith("check 1 of 2 (0-0-0-1) sent to TRANS_CHECK_g: acknowledged")
    assert "not acknowledged, does not count" in sent[1]
    assert report.decisions[0].cause == "check_answer"
    assert "answer to a check" in report.decisions[0].rule.sentence


def test_a_discarded_half_shows_the_numbers_and_the_copy(job: InMemoryJob) -> None:
    job.half()
    for after_ms in (1_000, 7_000, 30_000, 30_000):
        job.run(after_ms)
    report = report_of(job)
    assert report.status == "DISCARDED"
    assert report.decisions[0].rule.line == 4
    assert report.decisions[0].numbers == (
        "check_times = 2, check_max = 2, "
        "known_at - checked_at = 30000 ms, check_interval_ms = 30000"
    )
    assert CHECK_MAX_TOPIC in texts(report, "copied")[0]
    assert codes(report) == ["no_end", "discarded"]
    assert "`txlake dead resume half:0-0`" in str(report.waits[1])


@pytest.mark.parametrize(
    ("parameter", "line", "numbers"),
    [
        pytest.param({"half_retention_ms": 6_000}, 3,
                     "known_at - age_from_at = 6001 ms, half_retention_ms = 6000", id="expired"),
        pytest.param({"check_max": 0}, 4,
                     "check_times = 0, check_max = 0, known_at - age_from_at = 6001 ms",
                     id="given up without a check"),
    ],
)  # fmt: skip
def test_a_discarded_half_shows_its_age(
    tmp_path: Path, parameter: dict[str, int], line: int, numbers: str
) -> None:
    job = InMemoryJob(tmp_path / "lake", **parameter)
    job.half()
    job.run(6_001)
    (decision,) = report_of(job).decisions
    assert (decision.rule.line, decision.numbers) == (line, numbers)


def test_a_late_end_and_one_that_is_rejected(tmp_path: Path) -> None:
    for policy, status in (("apply", "COMMITTED"), ("reject", "DISCARDED")):
        job = InMemoryJob(tmp_path / policy, check_max=0, late_end_policy=policy)
        offset = job.half()
        job.run(7_000)
        job.end(COMMIT, offset)
        job.run()
        report = report_of(job)
        assert report.status == status
        if policy == "apply":
            assert [d.cause for d in report.decisions] == ["check_max", "late_end"]
            assert report.decisions[1].rule.section == "Which operation ends a half"
        else:
            assert codes(report) == ["only_conflicts", "discarded"]
            assert "end_after_discard" in texts(report, "conflict")[0]
            assert "late ends are rejected" in str(report.waits[1])


def test_a_half_that_is_to_be_asked_again_counts_from_the_command(job: InMemoryJob) -> None:
    offset = job.half()
    for after_ms in (1_000, 7_000, 30_000):
        job.run(after_ms)
    job.command(RESEND, f"half:0-{offset}")
    job.run()
    report = report_of(job)
    assert report.status == "PENDING"
    (command,) = texts(report, "command")
    assert command == (
        "RESEND half:0-0 by ada, because: she said so; resent: the half waits as if it were "
        "stored now: its group is asked anew"
    )
    assert codes(report) == ["no_end", "immune"]
    assert report.waits[1].until == job.at + 6_001
    job.run(6_001)
    assert "(0-0-1-1)" in texts(report_of(job), "check")[-1]


def test_a_rearmed_half_counts_from_the_rearm(job: InMemoryJob) -> None:
    offset = job.half()
    for after_ms in (1_000, 7_000, 30_000, 30_000):
        job.run(after_ms)
    job.command(RESUME, f"half:0-{offset}")
    job.command(RESUME, "half:0-77")
    job.run()
    report = report_of(job)
    assert report.status == "PENDING"
    (rearm,) = texts(report, "command")
    assert rearm == (
        "RESUME half:0-0 by ada, because: she said so; rearmed: the half is pending again"
    )
    assert codes(report) == ["no_end", "immune"]
    assert report.waits[1].until == job.at + 6_001
    job.run(6_001)
    assert "(0-0-1-1)" in texts(report_of(job), "check")[-1]
    job.end(COMMIT, offset)
    job.run()
    assert report_of(job).status == "COMMITTED"
    assert [decision.cause for decision in report_of(job).decisions] == ["check_max", "operation"]


def test_a_half_that_cannot_be_read_is_never_decided(job: InMemoryJob) -> None:
    job.half("tx", error="bad_real_topic", real_topic=None)
    job.end(COMMIT, 0)
    job.run()
    report = report_of(job)
    assert (report.status, codes(report)) == ("UNREADABLE", ["unreadable"])
    assert texts(report, "half") == ["half 0-0 cannot be read: bad_real_topic"]
    assert "unreadable_half" in texts(report, "conflict")[0]

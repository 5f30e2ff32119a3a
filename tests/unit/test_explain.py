"""`tx explain` tells every kind of event, and every reason why something is not decided."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from checker.frames import HALVES
from pipelines.explain import words
from pipelines.explain.as_json import to_json
from pipelines.explain.find import find, find_keys
from pipelines.explain.report import Report, nothing_found, reports
from pipelines.explain.show import lines
from pipelines.explain.target import parse_target
from pipelines.explain.units import units_of
from tests.paper_job import START_AT, PaperJob
from txlake.protocol import CANCEL, CHECK_MAX_TOPIC, COMMIT, RESUME, ROLLBACK, UNKNOWN

PROTOCOL = (Path(__file__).parents[2] / "PROTOCOL.md").read_text("utf-8")


@pytest.fixture
def job(tmp_path: Path) -> PaperJob:
    return PaperJob(tmp_path / "lake", check_max=2)


def told(job: PaperJob, target: str = "tx", now_ms: int | None = None) -> Report:
    """Explain a target of which there is one."""
    found = find(job.lake, parse_target(target))
    (report,) = reports(found, job.at if now_ms is None else now_ms)
    assert to_json(report)["status"] == report.status
    return report


def codes(report: Report) -> list[str]:
    return [wait.code for wait in report.waits]


def texts(report: Report, kind: str) -> list[str]:
    return [event.text for event in report.events if event.kind == kind]


def kinds(report: Report) -> list[str]:
    return [event.kind for event in report.events]


# Decided transactions: the rule, the epoch, the place.


def test_a_committed_half_names_operation_rule_epoch_and_place(job: PaperJob) -> None:
    other = job.half("other", keys="order-0")
    offset = job.half("tx", keys="order-1")
    job.end(COMMIT, offset)
    job.end(COMMIT, other)
    epoch = job.run()
    report = told(job)
    assert report.status == "COMMITTED"
    assert kinds(report) == ["half", "operation", "outcome", "delivered"]
    (message,) = report.messages
    assert message.place is not None
    assert vars(message.place) == {
        "topic": "orders", "table": "topics/1", "queue_id": 1, "queue_offset": 0, "epoch": epoch,
    }  # fmt: skip
    (decision,) = report.decisions
    assert (decision.outcome, decision.cause, decision.op_queue_offset) == (
        "COMMITTED", "operation", 0,
    )  # fmt: skip
    assert (decision.epoch_at, decision.known_at) == (job.at, job.at)
    assert decision.rule.source == 'PROTOCOL.md "What happens to a half at an epoch", line 1'
    assert codes(report) == []
    assert f"half:0-{offset}" == str(parse_target(f"0-{offset}"))
    assert told(job, f"0-{offset}") == report


def test_a_rolled_back_half_is_not_delivered(job: PaperJob) -> None:
    job.end(ROLLBACK, job.half())
    job.run()
    report = told(job)
    assert report.status == "ROLLED_BACK"
    assert report.decisions[0].rule.line == 2
    assert report.messages[0].place is None
    assert list(lines(report))[1].endswith("ROLLED_BACK, not delivered")


def test_operations_without_effect_say_why(job: PaperJob) -> None:
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
    report = told(job)
    reasons = [event.detail["reason"] for event in report.events if event.kind == "conflict"]
    assert reasons == [
        "wrong_producer_group", "wrong_transaction_id", "conflicting_end", "duplicate_end",
    ]  # fmt: skip
    effects = {
        event.detail["queue_offset"]: event.detail["effect"]
        for event in report.events
        if event.kind == "operation"
    }
    assert effects == {0: "conflict", 1: "conflict", 2: "declines", winner: "ends", 4: "conflict",
                       5: "conflict", 6: "conflict"}  # fmt: skip
    assert "line 4" in texts(report, "conflict")[0]
    assert "remark: not sure" in texts(report, "operation")[2]
    assert "cannot be read (bad_tran_type)" in texts(report, "operation")[6]


def test_a_check_shows_its_answer_and_the_end_it_led_to(job: PaperJob) -> None:
    offset = job.half()
    job.run()
    job.run(7_000)
    job.end(UNKNOWN, offset, from_check=True, check_id="0-0-0-1")
    job.run(30_000, acknowledged=False)
    job.end(COMMIT, offset, from_check=True, check_id="0-0-0-2")
    job.run()
    report = told(job)
    assert [event.detail["answered_by"] for event in report.events if event.kind == "check"] == [
        [0], [1],
    ]  # fmt: skip
    sent = texts(report, "check")
    assert sent[0].startswith("check 1 of 2 (0-0-0-1) sent to TRANS_CHECK_g: acknowledged")
    assert "not acknowledged, does not count" in sent[1]
    assert report.decisions[0].cause == "check_answer"
    assert "answer to a check" in report.decisions[0].rule.sentence


def test_a_discarded_half_shows_the_numbers_and_the_copy(job: PaperJob) -> None:
    job.half()
    for after_ms in (1_000, 7_000, 30_000, 30_000):
        job.run(after_ms)
    report = told(job)
    assert report.status == "DISCARDED"
    assert report.decisions[0].rule.line == 4
    assert report.decisions[0].numbers == (
        "n = 2, check_max = 2, C(0) - c = 30000 ms, check_interval_ms = 30000"
    )
    assert CHECK_MAX_TOPIC in texts(report, "copied")[0]
    assert codes(report) == ["no_end", "discarded"]
    assert "`txlake dead resume half:0-0`" in str(report.waits[1])


def test_an_expired_half_shows_its_age(tmp_path: Path) -> None:
    job = PaperJob(tmp_path / "lake", half_retention_ms=6_000)
    job.half()
    job.run(6_001)
    report = told(job)
    assert report.decisions[0].rule.line == 3
    assert report.decisions[0].numbers == "C(0) - s = 6001 ms, half_retention_ms = 6000"


def test_a_half_discarded_without_a_check_shows_its_age(tmp_path: Path) -> None:
    job = PaperJob(tmp_path / "lake", check_max=0)
    job.half()
    job.run(6_001)
    assert told(job).decisions[0].numbers == "n = 0, check_max = 0, C(0) - s = 6001 ms"


def test_a_late_end_and_one_that_is_rejected(tmp_path: Path) -> None:
    for policy, status in (("apply", "COMMITTED"), ("reject", "DISCARDED")):
        job = PaperJob(tmp_path / policy, check_max=0, late_end_policy=policy)
        offset = job.half()
        job.run(7_000)
        job.end(COMMIT, offset)
        job.run()
        report = told(job)
        assert report.status == status
        if policy == "apply":
            assert [d.cause for d in report.decisions] == ["check_max", "late_end"]
            assert report.decisions[1].rule.section == "Which operation ends a half"
        else:
            assert codes(report) == ["only_conflicts", "discarded"]
            assert "end_after_discard" in texts(report, "conflict")[0]
            assert "late ends are rejected" in str(report.waits[1])


def test_a_rearmed_half_counts_from_the_rearm(job: PaperJob) -> None:
    offset = job.half()
    for after_ms in (1_000, 7_000, 30_000, 30_000):
        job.run(after_ms)
    job.command(RESUME, f"half:0-{offset}")
    job.command(RESUME, "half:0-77")
    job.run()
    report = told(job)
    assert report.status == "PENDING"
    (rearm,) = texts(report, "command")
    assert rearm == (
        "RESUME half:0-0 by ada, because: she said so; rearmed: the half is pending again"
    )
    assert codes(report) == ["no_end", "immune"]
    assert report.waits[1].until == job.at + 6_001
    job.run(6_001)
    assert "(0-0-1-1)" in texts(told(job), "check")[-1]
    job.end(COMMIT, offset)
    job.run()
    assert told(job).status == "COMMITTED"
    assert [decision.cause for decision in told(job).decisions] == ["check_max", "operation"]


def test_a_half_that_cannot_be_read_is_never_decided(job: PaperJob) -> None:
    job.half("tx", error="bad_real_topic", real_topic=None)
    job.end(COMMIT, 0)
    job.run()
    report = told(job)
    assert (report.status, codes(report)) == ("UNREADABLE", ["unreadable"])
    assert texts(report, "half") == ["half 0-0 cannot be read: bad_real_topic"]
    assert "unreadable_half" in texts(report, "conflict")[0]


# Sets.


def in_set(job: PaperJob, seq: int, size: int = 3) -> int:
    return job.half("tx", tran_size=size, tran_seq=seq, keys=f"part-{seq}")


def test_a_whole_set_is_one_story_with_its_duplicate(job: PaperJob) -> None:
    for seq in (0, 1, 1, 2):
        in_set(job, seq)
    job.end(COMMIT, 3)
    job.run()
    report = told(job, "0-1")
    assert report.status == "COMMITTED"
    assert [m.end and m.end["cause"] for m in report.messages] == [
        "operation", "operation", "duplicate_in_set", "operation",
    ]  # fmt: skip
    assert [m.place is not None for m in report.messages] == [True, True, False, True]
    assert "half 0-3 for topic orders, 3 of 3 messages" in texts(report, "half")
    assert {decision.rule.source for decision in report.decisions} == {
        'PROTOCOL.md "What happens to a half at an epoch", line 1', 'PROTOCOL.md "Sets", line 2',
    }  # fmt: skip


def test_an_incomplete_set_names_what_is_missing_and_what_waits(job: PaperJob) -> None:
    in_set(job, 0)
    in_set(job, 2)
    job.end(COMMIT, 0)
    job.run()
    report = told(job)
    assert codes(report) == ["set_incomplete", "end_waits_for_set", "immune"]
    assert "of TRAN_SIZE 3, TRAN_SEQ 1 missing" in str(report.waits[0])
    assert str(report.waits[1]).startswith("op 0-0 COMMIT waits until the set is complete")
    assert texts(report, "operation")[0].endswith("names 0-0; waits")


def test_a_rollback_waits_behind_an_operation_whose_half_is_still_to_come(job: PaperJob) -> None:
    in_set(job, 0)
    job.end(COMMIT, 5)
    job.end(ROLLBACK, 0)
    job.run()
    report = told(job)
    assert codes(report) == ["set_incomplete", "rollback_waits_behind", "immune"]
    assert "op 0-1 ROLLBACK waits behind op 0-0, which waits for half 0-5" in str(report.waits[1])


def test_members_that_land_late_share_the_end_of_their_set(job: PaperJob) -> None:
    in_set(job, 0)
    job.end(ROLLBACK, 0)
    job.run()
    in_set(job, 1)
    job.run()
    report = told(job)
    assert [d.rule for d in report.decisions][1] == words.AFTER_ROLLBACK


def test_a_member_that_lands_after_the_discard_is_discarded_too(tmp_path: Path) -> None:
    job = PaperJob(tmp_path / "lake", check_max=0)
    in_set(job, 0)
    job.run(7_000)
    in_set(job, 1)
    job.run()
    report = told(job)
    assert report.status == "DISCARDED"
    assert [d.rule for d in report.decisions][1] == words.AFTER_DISCARD
    assert len(texts(report, "copied")) == 2


def test_two_transactions_with_one_id_are_two_stories(job: PaperJob) -> None:
    job.half("same", queue=0)
    job.half("same", queue=1, producer_group="other")
    job.run()
    found = find(job.lake, parse_target("same"))
    assert [(r.unit.queue_id, r.status) for r in reports(found, job.at)] == [
        (0, "PENDING"), (1, "PENDING"),
    ]  # fmt: skip


# Why it is not decided, and what comes next.


def test_a_young_half_is_immune_and_says_until_when(job: PaperJob) -> None:
    job.half(immunity_ms=60_000)
    job.run()
    report = told(job)
    assert codes(report) == ["no_end", "immune"]
    assert "immune until 2026-01-01T00:01:00.000Z; then check 1 of 2 is due" in str(report.waits[1])


def test_a_due_check_says_which_and_when(job: PaperJob) -> None:
    job.half()
    job.run()
    job.run(7_000)
    report = told(job)
    assert codes(report) == ["no_end", "check_due"]
    assert "check 2 of 2 due at 2026-01-01T00:00:38.000Z" in str(report.waits[1])
    assert report.waits[1].until == job.at + 30_000


def test_the_last_checks_interval_runs_before_the_discard(job: PaperJob) -> None:
    job.half()
    for after_ms in (1_000, 7_000, 30_000):
        job.run(after_ms)
    report = told(job)
    assert codes(report)[-1] == "last_check"
    assert "asked 2 of 2 times; it is discarded (check_max) when C(0) reaches" in str(
        report.waits[-1]
    )


def test_a_half_near_its_retention_expires_next(tmp_path: Path) -> None:
    job = PaperJob(tmp_path / "lake", half_retention_ms=20_000)
    job.half()
    job.run(7_000)
    report = told(job)
    assert codes(report)[-1] == "expires"
    assert report.waits[-1].until == START_AT + 20_001


def test_an_unknown_c_holds_everything_back(job: PaperJob) -> None:
    job.half(queue=1)
    job.run(60_000, known=False)
    report = told(job)
    assert codes(report) == ["no_end", "not_known"]
    assert "C of queue 1 is not known yet" in str(report.waits[1])


def test_operations_that_are_not_landed_yet_are_counted(job: PaperJob) -> None:
    job.half()
    job.end(COMMIT, 77)
    job.run(ops_ahead=5)
    report = told(job)
    assert codes(report) == ["no_end", "ops_not_landed", "immune"]
    assert "landed up to offset 1 and Kafka had 6" in str(report.waits[1])


def test_a_check_that_kafka_did_not_take_is_named(job: PaperJob) -> None:
    job.half()
    job.run(7_000, acknowledged=False)
    report = told(job)
    assert codes(report) == ["no_end", "not_acknowledged", "check_due"]
    assert "check 1 of 2 due" in str(report.waits[2])


def test_an_answer_that_does_not_know_is_named(job: PaperJob) -> None:
    offset = job.half()
    job.end(UNKNOWN, offset)
    job.run()
    assert codes(told(job)) == ["answered_unknown", "immune"]


def test_only_operations_without_effect_are_named(job: PaperJob) -> None:
    job.end(COMMIT, job.half(), group="other")
    job.run()
    report = told(job)
    assert codes(report) == ["only_conflicts", "immune"]
    assert "wrong_producer_group" in str(report.waits[0])


def test_a_job_that_is_silent_is_named(job: PaperJob) -> None:
    job.half()
    job.run()
    assert "does `txlake run` run?" not in str(told(job).waits[-1])
    report = told(job, now_ms=job.at + 3_600_000)
    assert "the newest epoch, 1, was 1 h ago: does `txlake run` run?" in str(report.waits[-1])


def test_a_check_beyond_the_rate_stays_due(tmp_path: Path) -> None:
    job = PaperJob(tmp_path / "lake", check_rate_max=1)
    job.half("first")
    job.half("tx")
    job.run(7_000)
    report = told(job)
    assert codes(report) == ["no_end", "immune"]
    assert "has passed that" in str(report.waits[1])
    assert "check_rate_max = 1 checks" in str(report.waits[1])


# What is committed and not delivered.


def test_a_delayed_half_waits_for_its_time_and_is_delivered_later(job: PaperJob) -> None:
    offset = job.half(deliver_at=START_AT + 60_000)
    job.end(COMMIT, offset)
    job.run()
    report = told(job)
    (message,) = report.messages
    assert [(wait.code, wait.until) for wait in message.waits] == [("delayed", START_AT + 60_000)]
    assert "half 0-0 is delayed until 2026-01-01T00:01:00.000Z" in texts(report, "delayed")[0]
    assert "does `txlake run` run?" in str(
        told(job, now_ms=START_AT + 300_000).messages[0].waits[0]
    )
    job.run(60_000)
    report = told(job)
    assert report.messages[0].place is not None
    assert kinds(report)[-1] == "delivered"


@pytest.mark.parametrize(
    ("columns", "is_capped"),
    [
        ({"deliver_at": START_AT + 21_001}, True),  # T of the commit and 20 s are its limit
        ({"deliver_at": START_AT + 21_000}, False),
        ({"deliver_at": START_AT + 90_000, "delay_level": 1}, False),  # the level counts
    ],
)
def test_a_delay_that_was_cut_short_says_what_was_asked_for(
    tmp_path: Path, columns: dict[str, int], is_capped: bool
) -> None:
    job = PaperJob(tmp_path / "lake", deliver_at_max_ms=20_000, delay_levels_ms=(20_000,))
    job.end(COMMIT, job.half(**columns))
    job.run(1_000)
    report = told(job)
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
        (START_AT + 500, False),  # before T: no delay, and due since it was stored
    ],
)
def test_a_schedule_record_that_was_cut_short_says_so(
    tmp_path: Path, deliver_at: int, is_capped: bool
) -> None:
    job = PaperJob(tmp_path / "lake", deliver_at_max_ms=20_000)
    job.schedule(deliver_at=deliver_at)
    job.run(1_000)
    told_of_delay = "".join(texts(told(job, "schedule:0-0"), "delayed"))
    assert ("capped at deliver_at_max_ms" in told_of_delay) is is_capped


def test_a_cancelled_delay_says_who_and_why(job: PaperJob) -> None:
    offset = job.half(deliver_at=START_AT + 60_000)
    job.end(COMMIT, offset)
    job.run()
    job.command(CANCEL, f"half:0-{offset}")
    job.run()
    report = told(job)
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
    job = PaperJob(tmp_path / "lake", **parameters)
    job.end(COMMIT, job.half(**columns))
    job.run()
    (wait,) = told(job).messages[0].waits
    assert wait.code == "undeliverable"
    assert f"undeliverable ({reason})" in str(wait)
    assert "`txlake dead resume undeliverable:0`" in str(wait)


def test_a_resumed_message_shows_the_command_that_delivered_it(tmp_path: Path) -> None:
    job = PaperJob(tmp_path / "lake", auto_create_topics=False)
    job.end(COMMIT, job.half())
    job.run()
    job.command(RESUME, "undeliverable:0")
    job.run()
    assert texts(told(job), "command")[0].endswith("still_undeliverable: its topic still cannot "
                                                   "take it")  # fmt: skip
    job.command("CREATE_TOPIC", "topic:orders:2")
    job.command(RESUME, "undeliverable:0")
    job.run()
    report = told(job)
    assert report.messages[0].place is not None
    assert len(texts(report, "command")) == 2
    assert kinds(report)[-1] == "delivered"


# Schedule records.


def test_a_schedule_record_is_followed_to_its_delivery(job: PaperJob) -> None:
    job.schedule(queue=2, delay_level=1, keys="later")
    job.run(100)
    report = told(job, "schedule:2-0")
    assert (report.status, kinds(report)) == ("DELAYED", ["schedule", "delayed"])
    assert report.messages[0].waits[0].until == START_AT + 1_000
    job.run(1_000)
    report = told(job, "schedule:2-0")
    assert report.status == "DELIVERED"
    assert report.messages[0].place is not None


def test_schedule_records_are_cancelled_undeliverable_or_unreadable(tmp_path: Path) -> None:
    job = PaperJob(tmp_path / "lake", auto_create_topics=False)
    job.schedule(queue=0, deliver_at=START_AT + 60_000)
    job.schedule(queue=1)
    job.schedule(queue=2, error="bad_real_topic", real_topic=None)
    job.run()
    job.command(CANCEL, "schedule:0-0")
    job.run()
    statuses = [told(job, f"schedule:{queue}-0").status for queue in range(3)]
    assert statuses == ["CANCELLED", "UNDELIVERABLE", "UNREADABLE"]


def test_a_transaction_id_finds_a_schedule_record_too(job: PaperJob) -> None:
    job.schedule(transaction_id="alone", producer_group="g")
    job.run()
    assert told(job, "alone").unit.source == "schedule"


# Epochs that are not committed, and what is not there.


def test_rows_of_an_epoch_that_is_not_committed_are_shown_as_such(job: PaperJob) -> None:
    offset = job.half()
    job.run()
    job.end(COMMIT, offset)
    epoch = job.run(commit=False)
    report = told(job)
    assert (report.status, codes(report)) == ("PENDING", ["not_committed"])
    assert f"decided in epoch {epoch}, not committed yet" in str(report.waits[0])
    assert [event.is_committed for event in report.events] == [True, False, False, False]
    assert all(f"(epoch {epoch}, not committed yet)" in e.text for e in report.events[1:])
    assert not report.decisions[0].is_committed


def test_a_half_of_an_epoch_that_is_not_committed_is_shown_as_such(job: PaperJob) -> None:
    job.run()
    job.half()
    job.run(commit=False)
    report = told(job)
    assert codes(report)[0] == "not_committed"
    assert "landed in epoch 2, not committed yet" in str(report.waits[0])


def test_an_early_delivery_is_shown_as_such(job: PaperJob) -> None:
    job.end(COMMIT, job.half(deliver_at=START_AT + 2_000))
    job.run()
    job.run(commit=False)
    report = told(job)
    assert report.messages[0].place is None
    assert [wait.code for wait in report.messages[0].waits] == ["not_committed"]


def test_what_is_not_there_is_one_sentence(job: PaperJob) -> None:
    job.half()
    job.run()
    path = job.lake.path
    for text, said in (
        ("nobody", f"no half and no schedule record has transaction id nobody in the lake {path}, "
                   "which stands at epoch 1"),
        ("0-7", f"there is no half 0-7 in the lake {path}, which stands at epoch 1: that queue is "
                "landed up to offset 1"),
        ("schedule:99-0", f"there is no schedule 99-0 in the lake {path}, which stands at epoch "
                          "1: it has landed nothing of that queue"),
    ):  # fmt: skip
        target = parse_target(text)
        found = find(job.lake, target)
        assert reports(found, job.at) == []
        assert nothing_found(found, target, path) == said


def test_an_empty_lake_has_nothing(job: PaperJob) -> None:
    assert reports(find(job.lake, parse_target("tx")), job.at) == []


def test_keys_find_their_messages(job: PaperJob) -> None:
    job.half("a", keys="order-1 order-2")
    job.half("b", keys="order-12")
    job.schedule(keys="order-1")
    job.run()
    assert [(row["source"], row["keys"]) for row in find_keys(job.lake, "order-1")] == [
        ("half", "order-1 order-2"), ("schedule", "order-1"),
    ]  # fmt: skip
    assert find_keys(job.lake, "order") == []


@pytest.mark.parametrize("text", ["half:1", "a b", "", "undeliverable:3", "1-2-é"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no transaction id"):
        parse_target(text)


def test_an_id_that_looks_like_a_coordinate_can_be_named() -> None:
    assert parse_target("id:3-4").transaction_id == "3-4"
    assert str(parse_target("3-4")) == "half:3-4"
    assert str(parse_target("schedule:3-4")) == "schedule:3-4"


# The story's own state is the job's, and its sentences rest on lines that exist.


def test_a_units_state_is_what_the_job_holds(tmp_path: Path) -> None:
    job = PaperJob(tmp_path / "lake", check_max=2)
    ids = ["a", "b", "c", "d"]
    for transaction_id in ids[:3]:
        job.half(transaction_id)
    in_set(job, 0, 2)
    job.end(UNKNOWN, 0)
    for after_ms in (1_000, 7_000, 30_000, 30_000):
        job.run(after_ms)
    job.end(COMMIT, 1)
    job.command(RESUME, "half:0-2")
    job.command(RESUME, "half:0-3")
    job.half("d")
    job.run()
    in_set(job, 1, 2)
    job.run(7_000, acknowledged=False)
    halves = []
    for transaction_id in (*ids, "tx"):
        for unit in units_of(find(job.lake, parse_target(transaction_id))):
            halves += [{name: half[name] for name in HALVES.names} for half in unit.halves]
    state = job.state.halves.to_pylist()
    assert sorted(halves, key=repr) == sorted(state, key=repr)
    assert len(halves) == 5


def rules() -> list[words.Rule]:
    tables = (words.OUTCOMES, words.CONFLICTS, words.UNDELIVERABLE)
    return [rule for table in tables for rule in table.values()] + [
        words.AFTER_ROLLBACK, words.AFTER_DISCARD,
    ]  # fmt: skip


def test_every_cited_line_of_the_protocol_exists() -> None:
    for rule in rules():
        found = re.search(rf"^##+ {re.escape(rule.section)}\n(.*?)(?=^##? )", PROTOCOL, re.M | re.S)
        assert found, rule.section
        if rule.line is not None:
            assert re.search(rf"^(\| {rule.line} \||{rule.line}\. )", found[1], re.M), rule.source


def test_instants_and_spans_are_written_for_people() -> None:
    assert words.instant(START_AT + 7) == "2026-01-01T00:00:00.007Z"
    assert [words.span(ms) for ms in (999, 6_000, 90_000, 3_600_000, 259_200_000)] == [
        "999 ms", "6 s", "1.5 min", "1 h", "3 d",
    ]  # fmt: skip

"""`tx explain` of sets: one story, what is missing, what waits, members that land late."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.explain import rule_texts
from pipelines.explain.fetch import find
from pipelines.explain.report import reports
from pipelines.explain.target import parse_target
from tests.support.explain_reports import codes, report_of, texts
from tests.support.in_memory_job import InMemoryJob
from txlake.protocol import COMMIT, ROLLBACK


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=2)


def in_set(job: InMemoryJob, seq: int) -> int:
    """Land one of three halves."""
    return job.half("tx", tran_size=3, tran_seq=seq, keys=f"part-{seq}")


def test_a_whole_set_is_one_story_with_its_duplicate(job: InMemoryJob) -> None:
    for seq in (0, 1, 1, 2):
        in_set(job, seq)
    job.end(COMMIT, 3)
    job.run()
    report = report_of(job, "0-1")
    assert report.status == "COMMITTED"
    assert [m.end and m.end["cause"] for m in report.messages] == [
        "operation",
        "operation",
        "duplicate_in_set",
        "operation",
    ]
    assert [m.place is not None for m in report.messages] == [True, True, False, True]
    assert "half 0-3 for topic orders, 3 of 3 messages" in texts(report, "half")
    assert {decision.rule.source for decision in report.decisions} == {
        'PROTOCOL.md "What happens to a half at an epoch", line 1',
        'PROTOCOL.md "Sets", line 2',
    }


def test_an_incomplete_set_names_what_is_missing_and_what_waits(job: InMemoryJob) -> None:
    in_set(job, 0)
    in_set(job, 2)
    job.end(COMMIT, 0)
    job.run()
    report = report_of(job)
    assert codes(report) == ["set_incomplete", "end_waits_for_set", "immune"]
    assert "of TRAN_SIZE 3, TRAN_SEQ 1 missing" in str(report.waits[0])
    assert str(report.waits[1]).startswith("op 0-0 COMMIT waits until the set is complete")
    assert texts(report, "operation")[0].endswith("names 0-0; waits")


def test_a_set_that_is_split_over_two_half_queues_says_so(job: InMemoryJob) -> None:
    in_set(job, 0)
    for seq in (1, 2):
        job.half("tx", queue=1, tran_size=3, tran_seq=seq)
    job.half("tx", queue=1, tran_size=3, tran_seq=1, producer_group="other")
    job.half("tx", queue=1)
    job.run()
    of_id = reports(find(job.lake, parse_target("tx")), job.at)[0][0]
    for report in (report_of(job, "0-0"), of_id):
        assert codes(report) == ["set_incomplete", "set_split", "no_end", "immune"]
        assert str(report.waits[1]) == (
            "the producer sent TRAN_SEQ 1, 2 to another half queue (half 1-0, half 1-1): that is "
            'another set, since all halves of a set stand in one half queue (PROTOCOL.md "Sets", '
            "line 1)"
        )
    assert "set_split" not in codes(report_of(job, "1-2")) + codes(report_of(job, "1-3"))


def test_a_rollback_waits_behind_an_operation_whose_half_is_still_to_come(job: InMemoryJob) -> None:
    in_set(job, 0)
    job.end(COMMIT, 5)
    job.end(ROLLBACK, 0)
    job.run()
    report = report_of(job)
    assert codes(report) == ["set_incomplete", "rollback_waits_behind", "immune"]
    assert "op 0-1 ROLLBACK waits behind op 0-0, which waits for half 0-5" in str(report.waits[1])


def test_members_that_land_late_share_the_end_of_their_set(job: InMemoryJob) -> None:
    in_set(job, 0)
    job.end(ROLLBACK, 0)
    job.run()
    in_set(job, 1)
    job.run()
    report = report_of(job)
    assert [d.rule for d in report.decisions][1] == rule_texts.AFTER_ROLLBACK


def test_a_member_that_lands_after_the_discard_is_discarded_too(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake", check_max=0)
    in_set(job, 0)
    job.run(7_000)
    in_set(job, 1)
    job.run()
    report = report_of(job)
    assert report.status == "DISCARDED"
    assert [d.rule for d in report.decisions][1] == rule_texts.AFTER_DISCARD
    assert len(texts(report, "copied")) == 2


def test_two_transactions_with_one_id_are_two_stories(job: InMemoryJob) -> None:
    job.half("same", queue=0)
    job.half("same", queue=1, producer_group="other")
    job.run()
    found = find(job.lake, parse_target("same"))
    assert [(r.unit.queue_id, r.status) for r in reports(found, job.at)[0]] == [
        (0, "PENDING"),
        (1, "PENDING"),
    ]

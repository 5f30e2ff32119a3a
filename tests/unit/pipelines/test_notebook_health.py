"""What the queries of notebook 2 find: counted a second way, in plain Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pipelines.notebooks import history
from pipelines.notebooks.open_lake import OpenLake
from tests.support.in_memory_job import InMemoryJob
from tests.support.lake_rows import LakeRows
from tests.support.notebook_lakes import answer, opened, sound
from txlake.protocol import COMMIT, ROLLBACK, UNKNOWN


@pytest.fixture(scope="module")
def rows() -> LakeRows:
    return sound()


@pytest.fixture(scope="module")
def lake(rows: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> OpenLake:
    return OpenLake(rows.write(tmp_path_factory.mktemp("sound") / "lake"))


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=2)


def test_the_summary_counts_what_the_tables_have(lake: OpenLake, rows: LakeRows) -> None:
    numbers = dict(answer(lake, "2", "numbers").rows())
    halves, outcomes = rows.tables["half"], rows.tables["outcomes"]
    named = Counter(row["outcome"] for row in outcomes)
    last: dict[tuple[int, int], str] = {}
    for row in outcomes:
        last[row["queue_id"], row["queue_offset"]] = row["outcome"]
    pending = history.pending(lake, history.point_in_time(lake, lake.last_at().isoformat()))
    assert numbers == {
        "halves that can be read": sum(row["error"] is None for row in halves),
        "halves that cannot": sum(row["error"] is not None for row in halves),
        "committed": named["COMMITTED"],
        "rolled back": named["ROLLED_BACK"],
        "discarded, not ended or re-armed since": Counter(last.values())["DISCARDED"],
        "pending": len(pending),
        "oldest pending, in seconds": int(pending["waits_s"].max() or 0),
        "attempts to ask": len(rows.tables["checks"]),
        "attempts that Kafka did not acknowledge": sum(
            not row["acknowledged"] for row in rows.tables["checks"]
        ),
        "conflicts": len(rows.tables["conflicts"]),
        "harmless conflicts": sum(
            row["reason"] == "duplicate_end" for row in rows.tables["conflicts"]
        ),
        "messages delivered": sum(
            row["reason"] is None for messages in rows.messages.values() for row in messages
        ),
    }


def test_the_age_over_time_is_that_of_the_oldest_half(job: InMemoryJob) -> None:
    offset = job.half("old")
    job.run(2_000)
    job.half("young")
    job.run(3_000)
    job.end(ROLLBACK, offset)
    job.run(500)
    rows = answer(opened(job), "2", "epochs").select("pending", "oldest_s").rows()
    assert rows == [(1, 2.0), (2, 5.0), (1, 3.5)]


def test_waits_are_from_stored_to_decided(job: InMemoryJob) -> None:
    job.end(COMMIT, job.half())
    job.run(250)
    job.half("slow")
    job.run(1_000)
    job.end(ROLLBACK, 1)
    job.run(750)
    lake = opened(job)
    assert answer(lake, "2", "waits").select("outcome", "waited_s").rows() == [
        ("COMMITTED", 0.25),
        ("ROLLED_BACK", 1.75),
    ]
    assert answer(lake, "2", "ends").rows() == [
        ("COMMITTED", "operation", 1, 0.25, 0.25, 0.25),
        ("ROLLED_BACK", "operation", 1, 1.75, 1.75, 1.75),
    ]


def test_each_check_has_its_first_answer(job: InMemoryJob) -> None:
    job.half("told", producer_group="knows")
    job.half("silent", producer_group="silent")
    job.run()
    job.run(7_000)
    job.end(UNKNOWN, 0, group="knows", from_check=True, check_id="0-0-0-1")
    job.end(COMMIT, 0, group="knows", from_check=True, check_id="0-0-0-1")
    job.run(7_000)
    job.half("away", producer_group="away")
    job.run(7_000, acknowledged=False)
    by_group = answer(opened(job), "2", "answers")
    assert by_group.drop("COMMIT", "ROLLBACK").rows() == [
        ("away", 1, 0, None, 0, 0, 1),
        ("silent", 1, 0, None, 0, 1, 0),
        ("knows", 1, 1, 0.0, 1, 0, 0),
    ]


def test_conflicts_are_those_of_the_group_that_sent_them(job: InMemoryJob) -> None:
    offset = job.half(producer_group="shop")
    job.end(COMMIT, offset, group="shopp")
    job.end(COMMIT, offset, group="shop")
    job.end(COMMIT, offset, group="shop")
    job.end(ROLLBACK, offset, group="shop")
    job.end(COMMIT, 0, group=None, error="bad_producer_group")  # type: ignore[arg-type]
    job.run()
    assert answer(opened(job), "2", "conflicts").rows() == [
        ("(cannot be read)", "unreadable_operation", False, 1),
        ("shop", "conflicting_end", False, 1),
        ("shop", "duplicate_end", True, 1),
        ("shopp", "wrong_producer_group", False, 1),
    ]

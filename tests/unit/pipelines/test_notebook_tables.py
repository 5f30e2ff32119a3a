"""The lake as SQL sees it, and what notebook 1 calls: counted a second way, in plain Python."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from pipelines.notebooks import tables
from pipelines.notebooks.open_lake import OpenLake, open_lake
from storage.errors import LakeError, NotALakeError
from storage.rows import instant
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.lake_rows import LakeRows
from tests.support.notebook_lakes import answer, opened, sound
from tests.support.protocol_pages import PROTOCOL
from txlake.protocol import COMMIT, RESUME


@pytest.fixture(scope="module")
def rows() -> LakeRows:
    return sound()


@pytest.fixture(scope="module")
def lake(rows: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> OpenLake:
    return OpenLake(rows.write(tmp_path_factory.mktemp("sound") / "lake"))


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=2)


def test_a_folder_without_a_lake_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotALakeError, match=r"is not a lake.*`make demo`.*TXLAKE_LAKE=FOLDER"):
        open_lake(str(tmp_path))


def test_a_lake_without_a_committed_epoch_says_so(job: InMemoryJob) -> None:
    job.half()
    job.run(commit=False)
    with pytest.raises(LakeError, match="no committed epoch yet"):
        opened(job)


def test_rows_of_an_epoch_that_is_not_committed_are_not_seen(job: InMemoryJob) -> None:
    job.end(COMMIT, job.half("seen"))
    job.run()
    job.end(COMMIT, job.half("early"))
    job.run(commit=False)
    lake = opened(job)
    assert lake.epoch == 1
    for table in ("half", "op", "outcomes", "messages"):
        assert lake.sql(f"SELECT count(*) FROM {table}").item() == 1, table


def test_an_open_lake_does_not_move_while_the_job_goes_on(job: InMemoryJob) -> None:
    job.half("first")
    job.run()
    lake = opened(job)
    job.half("second")
    job.run()
    assert lake.sql("SELECT transaction_id FROM halves").rows() == [("first",)]
    assert len(opened(job).sql("FROM halves")) == 2


def test_messages_are_those_of_all_topics(lake: OpenLake, rows: LakeRows) -> None:
    found = lake.sql("SELECT topic, queue_id, queue_offset FROM messages").rows()
    assert sorted(found) == sorted(
        (topic, row["queue_id"], row["queue_offset"])
        for topic, messages in rows.messages.items()
        for row in messages
    )


def test_a_rearmed_half_waits_a_second_time(job: InMemoryJob) -> None:
    offset = job.half()
    for after_ms in (1_000, 7_000, 30_000, 30_000):
        job.run(after_ms)
    job.command(RESUME, f"half:0-{offset}")
    rearmed = job.run()
    job.end(COMMIT, offset)
    ended = job.run()
    lake = opened(job)
    waits = lake.sql("SELECT from_epoch, to_epoch, outcome FROM waits ORDER BY from_epoch").rows()
    assert waits == [(1, 4, "DISCARDED"), (rearmed, ended, "COMMITTED")]
    assert [n for _, n in answer(lake, "2", "epochs").select("epoch", "pending").rows()] == [
        1,
        1,
        1,
        0,
        1,
        0,
    ]


def test_a_transaction_that_nobody_ended_can_be_told_too(job: InMemoryJob) -> None:
    job.run()
    with pytest.raises(LakeError, match="no transaction that can be read yet"):
        tables.pick_example(opened(job))
    job.half("lonely")
    job.run()
    lake = opened(job)
    assert tables.pick_example(lake) == "lonely"
    assert tables.life(lake, "lonely")["kind"].to_list() == ["half"]


def test_a_rearmed_set_waits_whole(job: InMemoryJob) -> None:
    for seq in range(2):
        job.half("set", tran_size=2, tran_seq=seq)
    for after_ms in (1_000, 7_000, 30_000, 30_000):
        job.run(after_ms)
    job.command(RESUME, "half:0-1")
    rearmed = job.run()
    waits = opened(job).sql("SELECT queue_offset, from_epoch FROM waits WHERE to_epoch IS NULL")
    assert sorted(waits.rows()) == [(0, rearmed), (1, rearmed)]


def test_every_table_is_listed_with_its_rows(lake: OpenLake, rows: LakeRows) -> None:
    listed = tables.tables(lake)
    expected = {name: len(rows.tables[name]) for name in tables.ONE_ROW_IS if name in rows.tables}
    topics = {row["topic"]: row["table_id"] for row in rows.tables["catalog"]}
    expected |= {f"topics/{number}": len(rows.messages[topic]) for topic, number in topics.items()}
    assert dict(listed.select("table", "rows").rows()) == {"lake": 1, **expected}
    for table, files in listed.select("table", "files").rows():
        assert files == len(list(Path(lake.lake.table_path(table)).glob("*.parquet")))


def test_a_lake_that_nobody_reads_has_no_consumer_offsets(job: InMemoryJob) -> None:
    job.run()
    assert "consumer_offsets" not in tables.tables(opened(job))["table"]


def test_what_a_row_is_is_what_the_protocol_says() -> None:
    said = dict(re.findall(r"^### (`[^\n]*)\n\nOne row is ([^.]*)", PROTOCOL, re.M))
    for table, meaning in tables.ONE_ROW_IS.items():
        (sentence,) = [text for title, text in said.items() if f"`{table}`" in title]
        flat = " ".join(sentence.replace("`", "").split())
        flat = flat.replace("the half topic, of the schedule topic", f"the {table} topic")
        assert flat.startswith(meaning), table


def test_endings_are_counted_with_their_first_transaction(lake: OpenLake, rows: LakeRows) -> None:
    outcomes = rows.tables["outcomes"]
    found = answer(lake, "1", "ends_by_outcome")
    assert {(outcome, cause): count for outcome, cause, count, _ in found.rows()} == Counter(
        (row["outcome"], row["cause"]) for row in outcomes
    )
    for outcome, cause, _, first in found.rows():
        same = [row for row in outcomes if (row["outcome"], row["cause"]) == (outcome, cause)]
        oldest = min(same, key=lambda row: (row["epoch"], row["queue_id"], row["queue_offset"]))
        assert first == oldest["transaction_id"]


def test_every_committed_half_is_somewhere(lake: OpenLake, rows: LakeRows) -> None:
    last = {
        (row["queue_id"], row["queue_offset"]): row["action"]
        for row in sorted(rows.tables["deliveries"], key=lambda row: row["epoch"])
        if row["source"] == "half"
    }
    expected: Counter[str] = Counter()
    for row in rows.tables["outcomes"]:
        if row["outcome"] == "COMMITTED" and row["real_queue_offset"] is not None:
            expected["delivered in its own epoch"] += 1
        elif row["outcome"] == "COMMITTED":
            action = last[row["queue_id"], row["queue_offset"]]
            expected["delivered later" if action == "DELIVERED" else action.lower()] += 1
    assert set(expected) > {"delivered later", "undeliverable", "cancelled"}
    assert dict(answer(lake, "1", "committed").rows()) == expected


def test_a_committed_half_may_wait_for_its_time(job: InMemoryJob) -> None:
    job.end(COMMIT, job.half(deliver_at=START_AT + 7_200_000))
    job.run()
    assert answer(opened(job), "1", "committed").rows() == [("waits for its time", 1)]


def test_the_transaction_told_of_is_one_that_a_check_ended(job: InMemoryJob) -> None:
    also = job.half("also asked")
    offset = job.half("asked")
    job.run()
    job.run(7_000)
    job.end(COMMIT, also)
    job.end(COMMIT, offset, from_check=True, check_id=f"0-{offset}-0-1")
    job.run()
    lake = opened(job)
    assert tables.pick_example(lake) == "asked"
    events = tables.life(lake, "asked")
    assert events["kind"].to_list() == ["half", "check", "operation", "outcome", "delivered"]
    assert events["when"].to_list()[0] == instant(START_AT)
    assert tables.verdict(lake, "asked").startswith("transaction asked, half 0-1, group g: COMMIT")


def test_values_of_a_query_are_parameters(lake: OpenLake) -> None:
    found = lake.sql("SELECT $text AS text, $one + 1 AS two", text="it's", one=1)
    assert found.equals(
        pl.DataFrame({"text": ["it's"], "two": [2]}, {"text": str, "two": pl.Int32})
    )

"""What the notebooks call gives right rows: counted here a second way, in plain Python."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipelines.notebooks import figures_health, figures_life, health, past, tables
from pipelines.notebooks.figures import Picture
from pipelines.notebooks.opened import OpenLake, open_lake
from storage.errors import LakeError, NotALakeError
from storage.lake import Lake
from storage.rows import instant
from tests.lake_rows import LakeRows
from tests.paper_job import START_AT, PaperJob
from tests.sound_lake import sound_rows
from txlake.protocol import COMMIT, RESUME, ROLLBACK, UNKNOWN

PROTOCOL = (Path(__file__).parents[2] / "PROTOCOL.md").read_text("utf-8")
NOON = dt.datetime(2026, 1, 1, 0, 0, tzinfo=dt.timezone.utc)


@pytest.fixture(scope="module")
def sound() -> LakeRows:
    return sound_rows()


@pytest.fixture(scope="module")
def lake(sound: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> OpenLake:
    """Open the lake in which everything happens that can: sets, re-arms, late ends, conflicts."""
    return OpenLake(sound.write(tmp_path_factory.mktemp("sound") / "lake"))


@pytest.fixture
def job(tmp_path: Path) -> PaperJob:
    return PaperJob(tmp_path / "lake", check_max=2)


def opened(job: PaperJob) -> OpenLake:
    return OpenLake(Lake(job.lake.path))


# The lake as SQL sees it.


def test_a_folder_without_a_lake_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotALakeError, match=r"is not a lake.*`make demo`.*TXLAKE_LAKE=FOLDER"):
        open_lake(str(tmp_path))


def test_a_lake_without_a_committed_epoch_says_so(job: PaperJob) -> None:
    job.half()
    job.run(commit=False)
    with pytest.raises(LakeError, match="no committed epoch yet"):
        opened(job)


def test_rows_of_an_epoch_that_is_not_committed_are_not_seen(job: PaperJob) -> None:
    job.end(COMMIT, job.half("seen"))
    job.run()
    job.end(COMMIT, job.half("early"))
    job.run(commit=False)
    lake = opened(job)
    assert lake.epoch == 1
    for table in ("half", "op", "outcomes", "messages"):
        assert lake.sql(f"SELECT count(*) FROM {table}").item() == 1, table


def test_an_open_lake_does_not_move_while_the_job_goes_on(job: PaperJob) -> None:
    job.half("first")
    job.run()
    lake = opened(job)
    job.half("second")
    job.run()
    assert lake.sql("SELECT transaction_id FROM halves").rows() == [("first",)]
    assert len(opened(job).sql("FROM halves")) == 2


def test_messages_are_those_of_all_topics(lake: OpenLake, sound: LakeRows) -> None:
    found = lake.sql("SELECT topic, queue_id, queue_offset FROM messages").rows()
    assert sorted(found) == sorted(
        (topic, row["queue_id"], row["queue_offset"])
        for topic, rows in sound.messages.items()
        for row in rows
    )


def test_a_rearmed_half_waits_a_second_time(job: PaperJob) -> None:
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
    assert [n for _, n in health.pending_over_time(lake).select("epoch", "pending").rows()] == [
        1, 1, 1, 0, 1, 0,
    ]  # fmt: skip


# Notebook 1.


def test_every_table_is_listed_with_its_rows(lake: OpenLake, sound: LakeRows) -> None:
    listed = tables.tables(lake)
    expected = {name: len(sound.tables[name]) for name in tables.ONE_ROW_IS if name != "lake"}
    topics = {row["topic"]: row["table_id"] for row in sound.tables["catalog"]}
    expected |= {f"topics/{number}": len(sound.messages[topic]) for topic, number in topics.items()}
    assert dict(listed.select("table", "rows").rows()) == {"lake": 1, **expected}
    for table, files in listed.select("table", "files").rows():
        assert files == len(list(Path(lake.path_of(table)).glob("*.parquet")))


def test_a_lake_that_nobody_reads_has_no_consumer_offsets(job: PaperJob) -> None:
    job.run()
    assert "consumer_offsets" not in tables.tables(opened(job))["table"]


def test_what_a_row_is_is_what_the_protocol_says() -> None:
    said = dict(re.findall(r"^### (`[^\n]*)\n\nOne row is ([^.]*)", PROTOCOL, re.M))
    for table, meaning in tables.ONE_ROW_IS.items():
        (sentence,) = [text for title, text in said.items() if f"`{table}`" in title]
        flat = " ".join(sentence.replace("`", "").split())
        flat = flat.replace("the half topic, of the schedule topic", f"the {table} topic")
        assert flat.startswith(meaning), table


def test_endings_are_counted_with_their_first_transaction(lake: OpenLake, sound: LakeRows) -> None:
    outcomes = sound.tables["outcomes"]
    found = tables.endings(lake)
    assert {(outcome, cause): count for outcome, cause, count, _ in found.rows()} == Counter(
        (row["outcome"], row["cause"]) for row in outcomes
    )
    for outcome, cause, _, first in found.rows():
        same = [row for row in outcomes if (row["outcome"], row["cause"]) == (outcome, cause)]
        oldest = min(same, key=lambda row: (row["epoch"], row["queue_id"], row["queue_offset"]))
        assert first == oldest["transaction_id"]


def test_every_committed_half_is_somewhere(lake: OpenLake, sound: LakeRows) -> None:
    found = dict(tables.where_committed_went(lake).rows())
    assert sum(found.values()) == sum(
        row["outcome"] == "COMMITTED" for row in sound.tables["outcomes"]
    )
    assert set(found) == {"delivered in its own epoch", "delivered later", "undeliverable",
                          "cancelled"}  # fmt: skip


def test_a_committed_half_may_wait_for_its_time(job: PaperJob) -> None:
    job.end(COMMIT, job.half(deliver_at=START_AT + 7_200_000))
    job.run()
    assert tables.where_committed_went(opened(job)).rows() == [("waits for its time", 1)]


def test_the_transaction_told_of_is_one_that_a_check_ended(job: PaperJob) -> None:
    job.end(COMMIT, job.half("quick"))
    offset = job.half("asked")
    job.run()
    job.run(7_000)
    job.end(COMMIT, offset, from_check=True, check_id=f"0-{offset}-0-1")
    job.run()
    lake = opened(job)
    assert tables.most_telling(lake) == "asked"
    events = tables.life(lake, "asked")
    assert events["kind"].to_list() == ["half", "check", "operation", "outcome", "delivered"]
    assert events["when"].to_list()[0] == instant(START_AT)
    assert tables.verdict(lake, "asked").startswith("transaction asked, half 0-1, group g: COMMIT")


# Notebook 2.


def test_the_summary_counts_what_the_tables_have(lake: OpenLake, sound: LakeRows) -> None:
    numbers = dict(health.summary(lake).rows())
    halves, outcomes = sound.tables["half"], sound.tables["outcomes"]
    named = Counter(row["outcome"] for row in outcomes)
    last: dict[tuple[int, int], str] = {}
    for row in outcomes:
        last[row["queue_id"], row["queue_offset"]] = row["outcome"]
    pending = past.pending(lake, past.moment(lake, lake.last_at().isoformat()))
    assert numbers == {
        "halves that can be read": sum(row["error"] is None for row in halves),
        "halves that cannot": sum(row["error"] is not None for row in halves),
        "committed": named["COMMITTED"],
        "rolled back": named["ROLLED_BACK"],
        "discarded, not ended or re-armed since": Counter(last.values())["DISCARDED"],
        "pending": len(pending),
        "oldest pending, in seconds": int(pending["waits_s"].max() or 0),
        "attempts to ask": len(sound.tables["checks"]),
        "attempts that Kafka did not acknowledge": sum(
            not row["acknowledged"] for row in sound.tables["checks"]
        ),
        "conflicts": len(sound.tables["conflicts"]),
        "harmless conflicts": sum(
            row["reason"] == "duplicate_end" for row in sound.tables["conflicts"]
        ),
        "messages delivered": sum(
            row["reason"] is None for rows in sound.messages.values() for row in rows
        ),
    }


def test_the_age_over_time_is_that_of_the_oldest_half(job: PaperJob) -> None:
    offset = job.half("old")
    job.run(2_000)
    job.half("young")
    job.run(3_000)
    job.end(ROLLBACK, offset)
    job.run(500)
    rows = health.pending_over_time(opened(job)).select("pending", "oldest_s").rows()
    assert rows == [(1, 2.0), (2, 5.0), (1, 3.5)]


def test_waits_are_from_stored_to_decided(job: PaperJob) -> None:
    job.end(COMMIT, job.half())
    job.run(250)
    job.half("slow")
    job.run(1_000)
    job.end(ROLLBACK, 1)
    job.run(750)
    lake = opened(job)
    assert health.waits_by_end(lake).select("outcome", "waited_s").rows() == [
        ("COMMITTED", 0.25), ("ROLLED_BACK", 1.75),
    ]  # fmt: skip
    assert health.wait_figures(lake).rows() == [
        ("COMMITTED", "operation", 1, 0.25, 0.25, 0.25),
        ("ROLLED_BACK", "operation", 1, 1.75, 1.75, 1.75),
    ]


def test_each_check_has_its_first_answer(job: PaperJob) -> None:
    job.half("told", producer_group="knows")
    job.half("silent", producer_group="silent")
    job.run()
    job.run(7_000)
    job.end(UNKNOWN, 0, group="knows", from_check=True, check_id="0-0-0-1")
    job.end(COMMIT, 0, group="knows", from_check=True, check_id="0-0-0-1")
    job.run(7_000)
    job.half("away", producer_group="away")
    job.run(7_000, acknowledged=False)
    answers = health.checks_and_answers(opened(job))
    assert answers.select("check_id", "answer", "answered_after_s").rows() == [
        ("0-0-0-1", "UNKNOWN", 0.0), ("0-1-0-1", "no answer", None),
        ("0-2-0-1", "not acknowledged", None),
    ]  # fmt: skip
    by_group = health.answers_by_group(opened(job))
    assert by_group.select("producer_group", "checks", "answered", "UNKNOWN", "no answer",
                           "not acknowledged").rows() == [
        ("away", 1, 0, 0, 0, 1), ("silent", 1, 0, 0, 1, 0), ("knows", 1, 1, 1, 0, 0),
    ]  # fmt: skip


def test_conflicts_are_those_of_the_group_that_sent_them(job: PaperJob) -> None:
    offset = job.half(producer_group="shop")
    job.end(COMMIT, offset, group="shopp")
    job.end(COMMIT, offset, group="shop")
    job.end(COMMIT, offset, group="shop")
    job.end(ROLLBACK, offset, group="shop")
    job.end(COMMIT, 0, group=None, error="bad_producer_group")  # type: ignore[arg-type]
    job.run()
    assert health.conflicts_by_group(opened(job)).rows() == [
        ("(cannot be read)", "unreadable_operation", False, 1),
        ("shop", "conflicting_end", False, 1),
        ("shop", "duplicate_end", True, 1),
        ("shopp", "wrong_producer_group", False, 1),
    ]


# Notebook 3.


def test_pending_is_the_same_both_ways_after_every_epoch(lake: OpenLake) -> None:
    counts = []
    for epoch in range(1, lake.epoch + 1):
        at = lake.sql("SELECT epoch_at FROM plans WHERE epoch = $epoch", epoch=epoch).item()
        when = past.moment(lake, at.isoformat())
        rebuilt, queried = past.pending(lake, when), past.fates(lake, when)
        assert when.epoch == epoch
        assert sorted(rebuilt["half"]) == sorted(queried["half"]), epoch
        counts.append(len(rebuilt))
    assert counts == health.pending_over_time(lake)["pending"].to_list()
    assert len(set(counts)) > 3  # it is no lake in which nothing changes


def test_pending_says_what_time_would_do_next(job: PaperJob) -> None:
    job.half("young", immunity_ms=60_000)
    job.half("asked")
    job.half("given up on")
    job.run()
    job.run(7_000)
    lake = opened(job)
    found = past.pending(lake, past.moment(lake))
    named = found.select("transaction_id", "checks", "next", "next_at", "waits_s").rows()
    assert named == [
        ("young", 0, "check 1 of 2", instant(START_AT + 60_001), 8.0),
        ("asked", 1, "check 2 of 2", instant(START_AT + 38_000), 8.0),
        ("given up on", 1, "check 2 of 2", instant(START_AT + 38_000), 8.0),
    ]
    job.run(30_000)
    lake = opened(job)
    assert past.pending(lake, past.moment(lake))["next"].to_list() == [
        "check 1 of 2", "discard (check_max)", "discard (check_max)",
    ]  # fmt: skip


def test_what_became_of_a_pending_half_is_its_next_outcome(job: PaperJob) -> None:
    job.half("late")
    job.run(1_000)
    for after_ms in (7_000, 30_000, 30_000):
        job.run(after_ms)
    job.end(COMMIT, 0)
    job.run()
    lake = opened(job)
    before = past.moment(lake, instant(START_AT + 2_000).isoformat())
    assert past.fates(lake, before).select("fate", "cause", "epoch").rows() == [
        ("DISCARDED", "check_max", 4)
    ]
    assert past.fates(lake, past.moment(lake, lake.last_at().isoformat())).is_empty()


def test_an_instant_is_that_of_the_newest_epoch_before(job: PaperJob) -> None:
    job.run(1_000)
    job.run(2_000)
    lake = opened(job)
    epochs = {
        text: past.moment(lake, text).epoch
        for text in ("00:00:01", "00:00:02.999", "00:00:03", "2026-01-01 00:00:05",
                     "2026-01-01T01:00:02+01:00", "2026-02-01")
    }  # fmt: skip
    assert list(epochs.values()) == [1, 1, 2, 2, 1, 2]


def test_a_time_of_day_is_the_last_one_that_the_lake_has_reached(job: PaperJob) -> None:
    job.run(1_000)
    job.run(23 * 3_600_000)  # 23:00:01
    job.run(2 * 3_600_000)  # 01:00:01 of the next day
    lake = opened(job)
    assert past.moment(lake, "00:30").at == NOON + dt.timedelta(days=1, minutes=30)
    assert past.moment(lake, "23:30").epoch == 2
    with pytest.raises(LakeError, match="had no epoch yet"):
        past.moment(lake, "2025-12-31")
    with pytest.raises(ValueError, match="five past two"):
        past.moment(lake, "five past two")


def test_without_an_instant_it_is_the_one_with_the_most_pending(job: PaperJob) -> None:
    job.half("one")
    job.run()
    job.half("two")
    busiest = job.run()
    job.end(COMMIT, 0, 1)
    job.run()
    assert past.moment(opened(job)).epoch == busiest


def test_a_version_of_delta_has_the_rows_up_to_its_epoch(job: PaperJob) -> None:
    for number in range(3):
        job.end(COMMIT, job.half(f"tx{number}"))
        job.run()
    lake = opened(job)
    when = past.moment(lake, "00:00:02")
    found = past.versions(lake, when, "outcomes", "checks", "topics/1")
    # Version 0 made the table. The commits of topic tables name no epoch here.
    assert found.rows() == [("outcomes", 2, 2, 2), ("checks", None, None, 0),
                            ("topics/1", None, None, 2)]  # fmt: skip


def test_a_version_whose_files_are_deleted_is_none_any_more(job: PaperJob) -> None:
    for number in range(3):
        job.end(COMMIT, job.half(f"tx{number}"))
        job.run()
    table = job.lake.handle("outcomes")
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    lake = opened(job)
    found = past.versions(lake, past.moment(lake, "00:00:02"), "outcomes")
    assert found.rows() == [("outcomes", None, None, 2)]


# Figures.


@pytest.fixture(scope="module")
def pictures(lake: OpenLake) -> dict[str, Picture]:
    when = past.moment(lake)
    pending = past.pending(lake, when)
    return {
        "life": figures_life.life(tables.life(lake, tables.most_telling(lake)), "What happened"),
        "over time": figures_health.pending_over_time(health.pending_over_time(lake)),
        "ages": figures_health.pending_ages(pending, when),
        "waits": figures_health.waits_by_end(health.waits_by_end(lake)),
        "answers": figures_health.answers_by_group(health.answers_by_group(lake)),
        "conflicts": figures_health.conflicts_by_group(health.conflicts_by_group(lake)),
        "fates": figures_life.fates(past.fates(lake, when), when, lake.last_at()),
    }


def test_every_figure_has_a_title_and_named_axes(pictures: dict[str, Picture]) -> None:
    for name, figure in pictures.items():
        assert figure.get_suptitle(), name
        assert all(axes.get_ylabel() for axes in figure.axes), name
        assert figure.axes[-1].get_xlabel(), name
        assert figure._repr_png_().startswith(b"\x89PNG"), name


def test_bars_are_as_long_as_what_they_count(lake: OpenLake, pictures: dict[str, Picture]) -> None:
    answers, conflicts = health.answers_by_group(lake), health.conflicts_by_group(lake)

    def widths(name: str) -> float:
        return sum(bar.get_width() for bar in pictures[name].axes[0].patches)

    assert widths("answers") == answers["checks"].sum() > 0
    assert widths("conflicts") == conflicts["conflicts"].sum() > 0
    pending = past.pending(lake, past.moment(lake))
    assert sum(bar.get_height() for bar in pictures["ages"].axes[0].patches) == len(pending) > 0
    shown = [bar for bar in pictures["fates"].axes[0].patches if bar.get_width() > 0]
    assert len(shown) == len(past.fates(lake, past.moment(lake)))


def test_figures_without_anything_to_draw_say_so(job: PaperJob) -> None:
    job.run()
    lake = opened(job)
    when = past.moment(lake)
    texts = [
        axes_text.get_text()
        for figure in (
            figures_health.pending_ages(past.pending(lake, when), when),
            figures_health.waits_by_end(health.waits_by_end(lake)),
            figures_health.answers_by_group(health.answers_by_group(lake)),
            figures_health.conflicts_by_group(health.conflicts_by_group(lake)),
            figures_life.fates(past.fates(lake, when), when, lake.last_at()),
        )
        for axes_text in figure.axes[0].texts
    ]
    assert texts == [
        "Nothing was pending.", "No half has ended yet.",
        "No group was asked: every transaction ended in time.",
        "There is no conflict: every operation had its effect.", "Nothing was pending.",
    ]  # fmt: skip


def test_many_pending_halves_are_cut_and_the_title_says_so(job: PaperJob) -> None:
    for number in range(50):
        job.half(f"tx{number}")
    job.run()
    lake = opened(job)
    when = past.moment(lake)
    figure = figures_life.fates(past.fates(lake, when), when, lake.last_at())
    assert "(the 40 oldest of 50)" in figure.get_suptitle()
    assert len([bar for bar in figure.axes[0].patches if bar.get_width() > 0]) == 40


def test_frames_are_polars(lake: OpenLake) -> None:
    values: dict[str, Any] = {"one": 1}
    assert lake.sql("SELECT $one AS one", **values).equals(pl.DataFrame({"one": [1]}))

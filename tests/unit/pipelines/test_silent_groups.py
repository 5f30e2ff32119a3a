"""Groups that do not answer: the metric counts epoch by epoch what `txlake groups` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from checker.frames import ATTEMPTS, HALVES
from pipelines.health.groups import ANSWER_MS, NEWEST_CHECKS, read_answers, read_groups
from pipelines.health.transactions import state_of
from pipelines.metrics.groups import GroupReplies, Groups
from storage.lake.lake import Lake
from tests.support.decided_rows import decided_rows
from tests.support.histories import random_world
from tests.support.metrics_client import ReportedHistory
from tests.support.notebook_lake import EPOCHS, Shop

GROUPS = ("legacy", "nobody")
NO_HALVES = HALVES.empty_table()


def attempts(*places: int, group: str = "g", arm: int = 0) -> pa.Table:
    """Return checks of halves of queue 0."""
    rows = [
        {
            "queue_id": 0,
            "queue_offset": offset,
            "arm": arm,
            "check_times": 1,
            "check_id": f"0-{offset}",
            "producer_group": group,
            "acknowledged": True,
        }
        for offset in places
    ]
    return pa.Table.from_pylist(rows, schema=ATTEMPTS)


def answered(offset: int, at_ms: int, arm: int = 0) -> GroupReplies:
    """Return what an epoch hears of a half that answered UNKNOWN."""
    rows = [{"queue_id": 0, "queue_offset": offset, "arm": arm, "last_answer_at": at_ms}]
    return GroupReplies(answered=pa.Table.from_pylist(rows, schema=GroupReplies().answered.schema))


def ended(offset: int, cause: str, arm: int = 0) -> GroupReplies:
    """Return what an epoch hears of a half that ended."""
    rows = [{"queue_id": 0, "queue_offset": offset, "arm": arm, "cause": cause}]
    return GroupReplies(ended=pa.Table.from_pylist(rows, schema=GroupReplies().ended.schema))


@pytest.mark.parametrize(
    ("heard", "unanswered"),
    [
        pytest.param(GroupReplies(), 5, id="of the newest five none is answered"),
        pytest.param(answered(6, 9), 5, id="an answer from before the check"),
        pytest.param(answered(6, 10), 4, id="one says UNKNOWN"),
        pytest.param(answered(1, 11), 5, id="an older one answers: the newest do not"),
        pytest.param(ended(6, "operation"), 4, id="the group ends one itself"),
        pytest.param(ended(6, "late_end"), 4, id="the group ends one late"),
        pytest.param(ended(6, "operator"), 4, id="an operator ends one"),
        pytest.param(ended(6, "check_max"), 5, id="one is given up"),
        pytest.param(ended(6, "operation", arm=1), 5, id="an end of another arm"),
    ],
)
def test_of_the_newest_checks_those_count_that_have_neither_answer_nor_end(
    heard: GroupReplies, unanswered: int
) -> None:
    groups = Groups()
    groups.observe_checks(attempts(1, 2), 5, NO_HALVES)
    groups.observe_checks(attempts(3, 4, 5, 6, 7, 8, 9), 10, NO_HALVES)  # the newest five: 3 to 7
    groups.observe_checks(attempts(20, group="other"), 10, NO_HALVES)
    groups.observe_replies(heard)
    found = groups.unanswered(10 + ANSWER_MS, {"g", "other"})
    assert (found["g"], found["other"]) == (unanswered, 1)


def test_a_check_counts_when_it_is_a_minute_old() -> None:
    groups = Groups()
    groups.observe_checks(attempts(1, 2), 1_000, NO_HALVES)
    groups.observe_checks(attempts(3), 2_000, NO_HALVES)
    assert groups.unanswered(999 + ANSWER_MS, {"g"}) == {}
    assert groups.unanswered(1_000 + ANSWER_MS, {"g"}) == {"g": 2}
    assert groups.unanswered(2_000 + ANSWER_MS, {"g"}) == {"g": 3}
    assert groups.unanswered(2_000 + ANSWER_MS, set()) == {}  # nothing of it is pending


def test_a_silent_group_costs_no_more_memory_when_nobody_scrapes() -> None:
    groups = Groups()
    for epoch in range(10_000):
        groups.observe_checks(attempts(*range(10)), epoch * 1_000, NO_HALVES)
    (epochs,) = groups._groups.values()
    assert len(epochs) <= 2 + ANSWER_MS // 1_000
    assert all(len(few) == NEWEST_CHECKS for few in epochs)


def instants(world: dict[str, Any]) -> list[int]:
    """Return when to look: at the last epoch, and at each that a check may grow old at."""
    last = world["epochs"][-1]["at"]
    ages = {max(last, epoch["at"] + ANSWER_MS) for epoch in world["epochs"]}
    return sorted({last, *ages, *(age - 1 for age in ages if age > last)})


def counted_alike(world: dict[str, Any], again: dict[str, Any], path: Path) -> int:
    """Compare at many instants; return how many counts of groups were compared."""
    lake: Lake = decided_rows(world).write(path)
    groups = ReportedHistory().tell_world(again).reporter._collector._groups
    state = state_of(lake)
    epoch = len(world["epochs"])
    compared = 0
    for now_ms in instants(world):
        rows = read_groups(lake, state, now_ms)
        read = {row["producer_group"]: row["unanswered"] for row in rows if row["unanswered"]}
        assert groups.unanswered(now_ms, read) == read, now_ms
        started = Groups(read_answers(lake, epoch, state, world["epochs"][-1]["at"])[1])
        assert started.unanswered(now_ms, read) == read, f"{now_ms}, after a start"
        compared += len(read)
    return compared


def test_the_metric_counts_what_the_command_reads_of_a_shop(tmp_path: Path) -> None:
    worlds = (Shop(8, EPOCHS, (8, 20)).run() for _ in range(2))
    assert counted_alike(*worlds, tmp_path / "lake") > len(GROUPS)


def test_the_metric_counts_what_the_command_reads_of_random_histories(tmp_path: Path) -> None:
    compared = 0
    for seed in range(12):
        worlds = (random_world(seed, 2) for _ in range(2))
        compared += counted_alike(*worlds, tmp_path / str(seed))
    assert compared > 8

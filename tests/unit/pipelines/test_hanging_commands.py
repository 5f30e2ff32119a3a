"""Commands that tell what hangs without an id: `tx list`, `conflicts list`, `groups`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.lake.lake import Lake
from tests.support.in_memory_job import InMemoryJob
from tests.support.lake_rows import LakeRows
from tests.support.notebook_lake import EPOCHS, START_AT, STEP_MS, shop_rows, write_lake
from tests.support.operator import said
from txlake.protocol import COMMIT, UNKNOWN

NOW = START_AT + EPOCHS * STEP_MS
SOME_TIME = ("--since", "10000d", "--limit", "1000")


@pytest.fixture(scope="module")
def shop() -> LakeRows:
    return shop_rows()


@pytest.fixture(scope="module")
def lake(shop: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return write_lake(shop, tmp_path_factory.mktemp("shop") / "lake")


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: NOW * 1_000_000)


def rows(lake: Lake, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(said(*words, "--lake", lake.path, "-o", "json"))
    return found


def targets(found: list[dict[str, Any]]) -> list[str]:
    return [row["target"] for row in found]


def test_what_is_pending_is_what_the_decision_left_pending(shop: LakeRows, lake: Lake) -> None:
    state = [h for h in shop.states[EPOCHS].halves.to_pylist() if h["discard_cause"] is None]
    state.sort(key=lambda half: (half["stored_at"], half["queue_id"], half["queue_offset"]))
    listed = rows(lake, "tx", "list", "--pending")
    assert targets(listed) == [f"half:{h['queue_id']}-{h['queue_offset']}" for h in state]
    assert [row["check_times"] for row in listed] == [half["check_times"] for half in state]
    assert {row["status"] for row in listed} == {"PENDING"}
    assert {row["keys"] for row in listed} == {"k"}


def test_every_transaction_has_its_last_outcome_or_is_pending(shop: LakeRows, lake: Lake) -> None:
    ends = {}
    for row in shop.tables["outcomes"]:
        ends[f"half:{row['queue_id']}-{row['queue_offset']}"] = row["outcome"]
    pending = targets(rows(lake, "tx", "list", "--pending"))
    listed = rows(lake, "tx", "list", *SOME_TIME)
    assert len(listed) == len(shop.tables["half"])
    for row in listed:
        wanted = "PENDING" if row["target"] in pending else ends.get(row["target"], "UNREADABLE")
        assert row["status"] == wanted, row


@pytest.mark.parametrize(
    ("words", "is_wanted"),
    [
        (["--group", "legacy"], lambda half: half["producer_group"] == "legacy"),
        (["--topic", "orders"], lambda half: half["real_topic"] == "orders"),
        (["--keys", "k"], lambda half: half["keys"] == "k"),
        (["--older-than", "9m"], lambda half: half["stored_at"] <= NOW - 540_000),
        (["--since", "5m"], lambda half: half["stored_at"] >= NOW - 300_000),
        (["--group", "shop", "--topic", "invoices"], lambda half: False),
    ],
)
def test_filters_choose_transactions(
    words: list[str], is_wanted: Any, shop: LakeRows, lake: Lake
) -> None:
    rearmed = {row["stored_at"] for row in shop.tables["pending"] if row.get("arm")}
    halves = [half for half in shop.tables["half"] if half["stored_at"] not in rearmed]
    listed = rows(lake, "tx", "list", *SOME_TIME, *words)
    wanted = {f"half:{h['queue_id']}-{h['queue_offset']}" for h in halves if is_wanted(h)}
    assert len(wanted ^ set(targets(listed))) <= 1  # the one that was re-armed is younger


def test_conflicts_are_listed_with_who_sent_them(shop: LakeRows, lake: Lake) -> None:
    listed = rows(lake, "conflicts", "list", "--limit", "1000")
    assert len(listed) == len(shop.tables["conflicts"])
    strangers = rows(lake, "conflicts", "list", "--reason", "wrong_producer_group")
    assert strangers and {row["producer_group"] for row in strangers} == {"shopp"}
    assert rows(lake, "conflicts", "list", "--group", "shopp") == strangers
    (unreadable,) = [row for row in listed if row["reason"] == "unreadable_operation"]
    assert (unreadable["half"], unreadable["error"]) == (None, "bad_offsets")
    lately = rows(lake, "conflicts", "list", "--since", "5m")
    assert 0 < len(lately) < len(listed)
    assert lately == listed[-len(lately) :]


def test_a_group_that_does_not_answer_is_told_from_one_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake", check_max=15)
    job.half("a", producer_group="silent")
    job.half("b", producer_group="unsure")
    job.half("c", producer_group="gone")
    job.half("young", producer_group="young")
    job.end(COMMIT, 3, group="young")
    job.run(1_000)
    job.run(6_000)
    for number in range(1, 6):
        job.end(UNKNOWN, 1, group="unsure", from_check=True, check_id=f"0-1-0-{number}")
        if number == 5:
            job.end(COMMIT, 2, group="gone")  # it ended the half itself
        job.run(30_000)
    now = job.at + 60_000
    monkeypatch.setattr("time.time_ns", lambda: now * 1_000_000)
    found = {row["producer_group"]: row for row in rows(job.lake, "groups")}
    told = {
        group: (row["pending"], row["unanswered"], row["of_checks"], row["members"])
        for group, row in found.items()
    }
    assert told == {
        "silent": (1, 5, 5, None),
        "unsure": (1, 1, 5, None),
        "gone": (0, 0, 5, None),
    }
    assert found["silent"]["oldest_at"] == "2026-01-01T00:00:00.000Z"
    assert found["silent"]["answered_at"] is None
    assert found["unsure"]["answered_at"] is not None
    monkeypatch.setattr("time.time_ns", lambda: (now - 1) * 1_000_000)
    young = {row["producer_group"]: row["of_checks"] for row in rows(job.lake, "groups")}
    assert young["silent"] == 5  # the newest one is too young to be answered, an older one counts


def test_a_group_that_was_asked_a_moment_ago_is_named_without_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("a", producer_group="young")
    job.run(1_000)
    job.run(6_000)
    monkeypatch.setattr("time.time_ns", lambda: (job.at + 1_000) * 1_000_000)
    (group,) = rows(job.lake, "groups")
    assert (group["producer_group"], group["of_checks"]) == ("young", 0)
    assert group["asked_at"] is not None


def test_wrong_filters_are_exit_code_2(lake: Lake) -> None:
    for words in (["--older-than", "long"], ["--since", "-1"], ["--limit", "0"]):
        said("tx", "list", *words, "--lake", lake.path, code=2)
    said("groups", code=2)

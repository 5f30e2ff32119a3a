"""A reader of the SDK's own tables has no row that a compaction has left out."""

from __future__ import annotations

import json
import random
import uuid
from datetime import datetime, timezone
from pathlib import Path

import pytest

from txlake import StoreAwayError
from txlake._members import ConsumerMembers, Membership
from txlake._retries import (
    DEAD,
    WAITING,
    Attempt,
    ConsumerRetries,
    GroupRetries,
    Retry,
    RetryPolicy,
    dropped,
    resumed,
)

FILES_MAX = 6
POLICY = RetryPolicy((0,), 16)
KEY = ("points", "orders", 0, 5)


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlake._compare_and_set._FILES_MAX", FILES_MAX)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "consumer_retries")


def retries(uri: str) -> GroupRetries:
    return GroupRetries(ConsumerRetries(uri), "points")


def refuse(group: GroupRetries, offset: int, reason: str | None = "no") -> None:
    now = datetime.now(timezone.utc)
    group.write([Attempt(("orders", 0), offset, 0, 1, reason, now)], POLICY)


def fill(group: GroupRetries, first: int) -> int:
    """Write until the next write finds too many files. Output: how many rows."""
    group.refresh()
    count = 0
    while len(group.table._files.files) < FILES_MAX:
        refuse(group, first + count)
        group.refresh()
        count += 1
    return count


def states(uri: str) -> dict[int, str]:
    """Return the states that a new reader sees, by offset."""
    return {row.queue_offset: row.state for row in ConsumerRetries(uri).newest().values()}


def test_a_message_that_is_done_does_not_wait_again_by_the_next_compaction(uri: str) -> None:
    one, two = retries(uri), retries(uri)
    refuse(two, 5)
    others = range(100, 100 + fill(two, 100))
    one.refresh()
    assert one.waiting_offsets(("orders", 0)) == dict.fromkeys((5, *others), 1)

    refuse(two, 5, None)  # the row says that it is done, and is dropped at once
    one.refresh()
    assert len(one.table._files.files) == 1
    assert one.waiting_offsets(("orders", 0)) == dict.fromkeys(others, 1)

    fill(one, 200)
    refuse(one, 300)  # it compacts
    assert 5 not in states(uri)
    two.refresh()
    assert two.row(("orders", 0), 5) is None


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))]
)
def test_what_changes_leaves_what_a_new_reader_finds(uri: str, seed: int) -> None:
    """Two members of a group, an operator and compactions: each reads what the others change."""
    chance = random.Random(seed)
    members = [retries(uri), retries(uri)]
    policy = RetryPolicy((0, 3_600_000), 2)
    queues = [("orders", 0), ("orders", 1), ("bills", 0)]

    for turn in range(40):
        member = chance.choice(members)
        member.due(lambda _: False, 64)  # not its queues now: due again as soon as a row is new
        now = datetime.now(timezone.utc)
        attempts = [Attempt(("orders", 1), 100 + turn, 0, 1, "no", now)]
        for _ in range(chance.randint(1, 4)):
            queue, offset = chance.choice(queues), chance.randrange(6)
            row = member.row(queue, offset)
            reason = None if row is not None and chance.random() < 0.4 else "no"
            attempts.append(Attempt(queue, offset, row.retries if row else 0, 1, reason, now))
        member.write(
            list({(each.queue, each.queue_offset): each for each in attempts}.values()), policy
        )

        if chance.random() < 0.3:
            dead = [row for row in member.table.newest().values() if row.state == DEAD]
            member.table.write(
                lambda newest, at, dead=dead: [dropped(row, "ada", "why", at) for row in dead[:1]]
            )
        for each in members:
            each.refresh()
            new = retries(uri)
            new.refresh()
            assert each._rows == new._rows
            for queue in queues:
                assert each.waiting_offsets(queue) == new.waiting_offsets(queue)
            due = {row.key for row in new.due(lambda _: True, 1_000)}
            assert sorted(row.key for row in rows_due(each)) == sorted(due)


def test_a_refusal_looks_at_the_rows_that_are_new_and_at_no_other(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = retries(uri)
    refuse(group, 0)
    monkeypatch.delattr(GroupRetries, "_take_all")  # what reads all of them anew
    refuse(group, 1)
    refuse(group, 0, None)
    assert group.waiting_offsets(("orders", 0)) == {1: 1}


def test_what_is_written_is_written_though_the_compaction_after_it_fails(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = retries(uri)
    offsets = range(fill(group, 0) + 1)
    refresh, calls = ConsumerRetries._refresh, 0

    def failing(table: ConsumerRetries, from_checkpoint: bool) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # after the append
            raise StoreAwayError("the store does not answer")
        refresh(table, from_checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(ConsumerRetries, "_refresh", failing)
        refuse(group, offsets[-1])
    assert calls == 3
    assert states(uri) == dict.fromkeys(offsets, WAITING)

    refuse(group, len(offsets))  # it compacts
    group.refresh()
    assert len(group.table._files.files) == 1


def rows_due(group: GroupRetries) -> list[Retry]:
    """Return what is due in a group's heap, and leave the heap as it is."""
    due, passed_over = list(group._due), list(group._passed_over)
    rows = group.due(lambda _: True, 1_000)
    group._due, group._passed_over = due, passed_over
    return rows


def test_a_compaction_keeps_what_waits_is_dead_or_was_resumed(uri: str) -> None:
    one, two = retries(uri), retries(uri)
    refuse(two, 4)
    now = datetime.now(timezone.utc)
    dying = [Attempt(("orders", 0), offset, 16, 1, "no", now) for offset in (5, 6)]
    two.write(dying, POLICY)
    one.refresh()
    two.table.write(lambda newest, _now: [resumed(newest[KEY])])

    others = range(100, 101 + fill(two, 100))
    refuse(two, others[-1])  # it compacts
    one.refresh()
    assert len(one.table._files.files) == 1
    expected = {4: WAITING, 5: WAITING, 6: DEAD, **dict.fromkeys(others, WAITING)}
    assert states(uri) == expected
    assert {row.queue_offset: row.state for row in one.table.newest().values()} == expected
    assert one.table.newest()[KEY].retries == 0


def test_a_member_that_has_left_stays_away_after_a_compaction(tmp_path: Path) -> None:
    uri = str(tmp_path / "consumer_members")
    tables = [ConsumerMembers(uri), ConsumerMembers(uri)]
    one, two = (
        Membership(table, "points", name, ("orders",), 30_000)
        for table, name in zip(tables, ("one", "two"), strict=True)
    )
    one.heartbeat()
    two.heartbeat()
    while len(tables[1]._files.files) < FILES_MAX:
        two._write(two._row)
        two.topics_by_member()
    assert sorted(one.topics_by_member()) == ["one", "two"]

    two.leave()  # and its row is dropped at once
    assert sorted(one.topics_by_member()) == ["one"]


def test_the_second_of_two_that_make_a_table_at_once_deletes_nothing(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = retries(uri)
    one.refresh()
    create_again(uri, 1)
    one.refresh()
    refuse(one, 5)
    create_again(uri, 3)
    one.refresh()
    assert one.waiting_offsets(("orders", 0)) == {5: 1}
    assert one.table._table_id == str(one.table._files.table.metadata().id)
    assert caplog.records == []


def create_again(uri: str, version: int) -> None:
    """Write what delta-rs does when another has made the table since it looked for one."""
    log = Path(uri, "_delta_log")
    entries = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    for entry in entries:
        if "metaData" in entry:
            entry["metaData"]["id"] = str(uuid.uuid4())
    text = "\n".join(json.dumps(entry) for entry in entries)
    (log / f"{version:020}.json").write_text(text)

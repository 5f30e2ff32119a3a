"""A member of a group that is suspended for longer than its session, and goes on: a late commit."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.group_member import read_seen
from tests.support.lake_factory import LakeFactory
from tests.support.processes import is_suspended
from tests.support.suspended_member import Mode, suspended_member
from tests.support.wait import DEADLINE_S, wait_until
from txlake import Consumer
from txlake._consumer_offsets import Commit, ConsumerOffsets

QUEUES = 4
SESSION_MS = 1_500


@pytest.fixture
def orders(tmp_path: Path) -> LakeFactory:
    lake = LakeFactory(tmp_path / "lake")
    lake.make_topic("orders", QUEUES)
    return lake


def newest(lake: LakeFactory) -> list[Commit]:
    return list(ConsumerOffsets(str(lake.path / "consumer_offsets")).newest().values())


def history(lake: LakeFactory) -> list[dict[str, Any]]:
    """Return all rows that were ever committed to `consumer_offsets`, in their order.

    A file that was replaced stays for ten minutes, so no row is missed.
    """
    table = lake.path / "consumer_offsets"
    rows: list[dict[str, Any]] = []
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                rows += pq.read_table(table / action["add"]["path"]).to_pylist()
    return rows


@pytest.mark.parametrize("mode", ["poll", "run"])
def test_a_member_that_was_suspended_beyond_its_session_commits_nothing_late(
    orders: LakeFactory, tmp_path: Path, mode: Mode
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    end = 0

    def deliver() -> None:
        nonlocal end
        end += 5
        orders.deliver("orders", dict.fromkeys(range(QUEUES), 5))
        wait_until(is_committed, f"commits up to {end}", seen=lambda: newest(orders))

    def is_committed() -> bool:
        return [row.queue_offset for row in newest(orders)] == [end] * QUEUES

    def is_suspended_by_then() -> bool:
        deliver()  # the queues of the first are the second's after a session
        return is_suspended(sleeper.pid)

    def owners() -> set[str]:
        return {row.owner for row in newest(orders)}

    with (
        suspended_member(
            orders.path, mode, first, session_timeout_ms=SESSION_MS, suspends_at=3
        ) as sleeper,
        suspended_member(orders.path, mode, second, session_timeout_ms=SESSION_MS) as successor,
    ):
        wait_until(
            lambda: len(owners() - {""}) == 2 and len(newest(orders)) == QUEUES, "two owners"
        )
        # One that has no processor for a session has lost its queues before it is suspended.
        wait_until(is_suspended_by_then, "the suspension")
        in_hand = read_seen(first / "journal")
        assert in_hand and all(queue_id < QUEUES for queue_id, _ in in_hand)
        deliver()
        assert owners() == {owner for owner in owners() if f":{successor.pid}:" in owner}

        sleeper.send_signal(signal.SIGCONT)
        refusal = "refused: another consumer has taken over" if mode == "poll" else (
            "another consumer has taken it over; this one was silent for longer than its session"
        )  # fmt: skip
        said = first / "said"
        wait_until(lambda: refusal in said.read_text(), "the refusal", seen=said.read_text)
        wait_until(lambda: len(owners()) == 2, "its new share")
        deliver()
        for process in (sleeper, successor):
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0

    journals = {
        sleeper.pid: set(read_seen(first / "journal")),
        successor.pid: set(read_seen(second / "journal")),
    }
    check_commits(history(orders), journals, end)


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_listener_goes_on_where_the_group_stands_when_it_gets_its_queue_back(
    orders: LakeFactory, tmp_path: Path, is_reset: bool
) -> None:
    """Nobody has the queue any more: it is lost, and taken again, in one look."""
    orders.deliver("orders", {0: 40})
    folder = tmp_path / "sleeper"

    with suspended_member(
        orders.path, "run", folder, session_timeout_ms=SESSION_MS, suspends_at=3
    ) as sleeper:
        wait_until(lambda: is_suspended(sleeper.pid), "the suspension")
        in_hand = read_seen(folder / "journal")
        time.sleep(1.2 * SESSION_MS / 1_000)

        with Consumer(orders.path, "points", ["orders"], session_timeout_ms=SESSION_MS) as other:
            if is_reset:
                other.seek("orders", 0, 40)
            else:
                poll_until(other, 39)
            other.commit()

        sleeper.send_signal(signal.SIGCONT)
        orders.deliver("orders", {0: 5})
        wait_until(lambda: (0, 44) in read_seen(folder / "journal"), "what came last")
        sleeper.send_signal(signal.SIGTERM)
        assert sleeper.wait(DEADLINE_S) == 0

    later = read_seen(folder / "journal")[len(in_hand) :]
    assert later == [(0, offset) for offset in range(40, 45)]
    committed = [row["queue_offset"] or 0 for row in history(orders) if row["queue_id"] == 0]
    assert committed == sorted(committed) and committed[-1] == 45


def poll_until(consumer: Consumer, offset: int) -> None:
    """Poll queue 0 up to an offset."""
    while not any(message.queue_offset == offset for message in consumer.poll(1.0)):
        pass


def check_commits(
    rows: list[dict[str, Any]], journals: dict[int, set[tuple[int, int]]], count: int
) -> None:
    """Check that each message was committed once, by an owner that has handled it."""
    owner_of: dict[tuple[int, int], str] = {}  # of a queue's generation
    for queue_id in range(QUEUES):
        generation = committed = 0
        for row in rows:
            if row["queue_id"] != queue_id:
                continue
            assert row["generation"] >= generation, row
            generation = row["generation"]
            if not row["owner"]:  # given back
                continue

            owner = owner_of.setdefault((queue_id, generation), row["owner"])
            assert row["owner"] == owner
            pid = int(owner.split(":")[1])
            end = row["queue_offset"] or 0
            assert end >= committed, row
            handled = {(queue_id, offset) for offset in range(committed, end)}
            assert handled <= journals[pid], (row, handled - journals[pid])
            committed = end
        assert committed == count

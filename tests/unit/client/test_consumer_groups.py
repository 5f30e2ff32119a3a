"""Queues have one owner in a consumer group, and owners are replaced."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.lake_factory import LakeFactory, places, poll_all
from tests.support.session_clock import SessionClock
from txlake import Consumer, GroupBusyError, StaleGenerationError, UnknownTopicError
from txlake._consumer_offsets import SCHEMA, ConsumerOffsets

BOTH = {"orders": [0, 1]}


@pytest.fixture
def orders(tmp_path: Path) -> LakeFactory:
    lake = LakeFactory(tmp_path / "lake")
    lake.make_topic("orders", 2)
    return lake


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SessionClock:
    return SessionClock(monkeypatch)


def test_a_second_consumer_of_a_group_is_told_who_has_the_queues(orders: LakeFactory) -> None:
    with Consumer(orders.path, "points", ["orders"], queues=BOTH):
        with pytest.raises(GroupBusyError, match=r"topic orders queue 0: \S+:\d+:\w+ owns it"):
            Consumer(orders.path, "points", ["orders"], queues=BOTH, wait_for_owner_ms=0)
        Consumer(orders.path, "other", ["orders"], queues=BOTH).close()
    Consumer(orders.path, "points", ["orders"], queues=BOTH).close()  # given back: free at once


def test_consumers_share_a_group_by_queues(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 2, 1: 3})
    with (
        Consumer(orders.path, "points", ["orders"], queues={"orders": [0]}) as one,
        Consumer(orders.path, "points", ["orders"], queues={"orders": [1]}) as two,
    ):
        assert {message.queue_id for message in poll_all(one, 2)} == {0}
        assert {message.queue_id for message in poll_all(two, 3)} == {1}
        one.commit()
        two.commit()
        assert (one.committed(), two.committed()) == ({("orders", 0): 2}, {("orders", 1): 3})


def test_a_queue_that_the_topic_does_not_have_is_refused(orders: LakeFactory) -> None:
    with pytest.raises(UnknownTopicError, match="topic orders has 2 queues, no 2"):
        Consumer(orders.path, "points", ["orders"], queues={"orders": [2]})


@pytest.mark.usefixtures("clock")
def test_a_consumer_that_died_is_replaced_and_can_no_longer_commit(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 4})
    dead = Consumer(orders.path, "points", ["orders"], queues=BOTH, session_timeout_ms=300)
    poll_all(dead, 2, most=2)
    dead.commit()
    poll_all(dead, 1, most=1)
    new = Consumer(
        orders.path,
        "points",
        ["orders"],
        queues=BOTH,
        session_timeout_ms=300,
        wait_for_owner_ms=10_000,
    )
    assert places(poll_all(new, 2), 0) == [2, 3]
    with pytest.raises(StaleGenerationError, match="generation 1 of"):
        dead.commit()
    new.commit()
    dead.close()  # gives nothing back: it has nothing
    assert new.committed() == {("orders", 0): 4, ("orders", 1): 0}
    new.close()


def test_polling_keeps_the_queues_without_a_commit(
    orders: LakeFactory, clock: SessionClock
) -> None:
    with Consumer(
        orders.path, "points", ["orders"], queues=BOTH, session_timeout_ms=4_000
    ) as consumer:
        for _ in range(9):
            clock.pass_s(1.0)
            consumer.poll(0.0)
            with pytest.raises(GroupBusyError):
                Consumer(orders.path, "points", ["orders"], queues=BOTH, wait_for_owner_ms=0)
        consumer.commit()


@pytest.mark.usefixtures("clock")
def test_the_owners_session_counts_and_not_the_challengers(orders: LakeFactory) -> None:
    with Consumer(orders.path, "points", ["orders"], queues=BOTH, session_timeout_ms=60_000):
        with pytest.raises(GroupBusyError, match=r"UTC, for 59\.9 s more") as busy:
            Consumer(
                orders.path,
                "points",
                ["orders"],
                queues=BOTH,
                session_timeout_ms=1,
                wait_for_owner_ms=50,
            )
        assert "\n" not in str(busy.value)


def test_a_start_waits_until_the_session_of_an_owner_that_died_ends(
    orders: LakeFactory, clock: SessionClock
) -> None:
    died = Consumer(orders.path, "points", ["orders"], queues=BOTH, session_timeout_ms=700)
    new = Consumer(orders.path, "points", ["orders"], queues=BOTH, session_timeout_ms=60_000)
    assert 0.7 < clock.passed_s < 1.0, "its own session, not the challenger's"
    new.close()
    died.close()


def test_a_start_that_waits_fails_as_soon_as_the_owner_shows_that_it_lives(
    orders: LakeFactory, clock: SessionClock
) -> None:
    with Consumer(
        orders.path, "points", ["orders"], queues=BOTH, session_timeout_ms=9_000
    ) as owner:
        clock.while_waiting = lambda: owner.poll(0.0)
        with pytest.raises(GroupBusyError):
            Consumer(orders.path, "points", ["orders"], queues=BOTH)
        assert 2.9 < clock.passed_s < 3.3  # a third of the session


def test_a_commit_writes_the_queues_that_have_moved(orders: LakeFactory) -> None:
    offsets = ConsumerOffsets(f"{orders.path}/consumer_offsets")

    def rows() -> int:
        offsets.newest()
        return sum(file.row_count for file in offsets._files.files.values())

    with Consumer(orders.path, "points", ["orders"]) as consumer:
        consumer.commit()  # both queues: they begin at 0
        before = rows()
        consumer.commit()
        assert rows() == before
        orders.deliver("orders", {1: 3})
        poll_all(consumer, 3)
        consumer.commit()
        assert rows() == before + 1
        assert consumer.committed() == {("orders", 0): 0, ("orders", 1): 3}


def test_one_row_proves_that_an_owner_lives_and_holds_all_its_queues(
    orders: LakeFactory, clock: SessionClock
) -> None:
    offsets = ConsumerOffsets(f"{orders.path}/consumer_offsets")

    def instants() -> dict[int, datetime]:
        return {row.queue_id: row.committed_at for row in offsets.newest().values()}

    with Consumer(orders.path, "points", ["orders"], session_timeout_ms=2_000) as consumer:
        taken = instants()
        for _ in range(5):
            clock.pass_s(0.7)  # a third of the session, and a little
            consumer.poll(0.0)
        assert (instants()[0] - taken[0]).total_seconds() == pytest.approx(3.5)
        assert instants()[1] == taken[1]
        for queue_id in (0, 1):
            with pytest.raises(GroupBusyError):
                Consumer(
                    orders.path, "points", ["orders"], queues={"orders": [queue_id]},
                    wait_for_owner_ms=0,
                )  # fmt: skip


def test_a_table_of_an_older_format_gets_the_column_and_keeps_its_rows(
    orders: LakeFactory,
) -> None:
    orders.deliver("orders", {0: 4})
    columns = [field for field in SCHEMA if field.name != "session_timeout_ms"]
    row = {
        "consumer_group": "points", "topic": "orders", "queue_id": 0, "queue_offset": 2,
        "generation": 1, "owner": "old", "committed_at": datetime.now(timezone.utc),
    }  # fmt: skip
    table = pa.Table.from_pylist([row], schema=pa.schema(columns))
    write_deltalake(f"{orders.path}/consumer_offsets", table)

    with Consumer(orders.path, "points", ["orders"], session_timeout_ms=300) as consumer:
        assert places(poll_all(consumer, 2), 0) == [2, 3]
        consumer.commit()

    newest = ConsumerOffsets(f"{orders.path}/consumer_offsets").newest()
    held = newest["points", "orders", 0]
    assert (held.queue_offset, held.generation, held.session_timeout_ms) == (4, 2, 300)

"""The services of examples/: the guard of the order service, the exactly-once of the other."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest

from examples.order_service import (
    FEW_LAMPS,
    ForgetfulListener,
    Order,
    OrderDatabase,
    OrderListener,
    messages_of,
    new_orders,
)
from examples.points_service import SCHEMA, add_points
from txlake import CheckedMessage, ConsumedMessage, HalfMessage, LocalTransactionState

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN
ORDER = Order("order-1", "Ada", "tea", 12)


def half_of(order: Order, transaction_id: str) -> HalfMessage:
    messages = messages_of(order)
    return HalfMessage(messages[0], messages, transaction_id)


def check_of(transaction_id: str) -> CheckedMessage:
    return CheckedMessage(
        transaction_id, "orders", b"", 0, (0,), 1, "0-0-0-1", None, None, {}, False
    )


def count_orders(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        (count,) = database.execute("SELECT count(*) FROM orders").fetchone()
    return int(count)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.sqlite"


def test_committed_order_is_answered_commit_however_often_it_is_asked(path: Path) -> None:
    listener = OrderListener(OrderDatabase(path))
    assert listener.execute_local_transaction(half_of(ORDER, "t1"), ORDER) is COMMIT
    assert [listener.check_local_transaction(check_of("t1")) for _ in range(2)] == [COMMIT] * 2


def test_slow_local_transaction_cannot_commit_after_its_check_was_answered_rollback(
    path: Path,
) -> None:
    listener = OrderListener(OrderDatabase(path))
    assert listener.check_local_transaction(check_of("t1")) is ROLLBACK
    assert listener.execute_local_transaction(half_of(ORDER, "t1"), ORDER) is ROLLBACK
    assert listener.check_local_transaction(check_of("t1")) is ROLLBACK
    assert count_orders(path) == 0


def test_order_out_of_stock_is_rolled_back_and_stays_so(path: Path) -> None:
    listener = OrderListener(OrderDatabase(path))
    lamps = [Order(f"order-{number}", "Ada", "lamp", 99) for number in range(FEW_LAMPS + 1)]
    states = [
        listener.execute_local_transaction(half_of(lamp, lamp.order_id), lamp) for lamp in lamps
    ]
    assert states == [COMMIT] * FEW_LAMPS + [ROLLBACK]
    assert listener.check_local_transaction(check_of(lamps[-1].order_id)) is ROLLBACK
    assert count_orders(path) == FEW_LAMPS


def test_database_that_does_not_answer_is_an_exception_which_counts_as_unknown(path: Path) -> None:
    listener = OrderListener(OrderDatabase(path))
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE transaction_ends")
    with pytest.raises(sqlite3.OperationalError):
        listener.check_local_transaction(check_of("t1"))


def test_order_of_a_lamp_sends_its_reminder_with_a_delay_in_the_same_transaction() -> None:
    (tea,) = messages_of(ORDER)
    lamp, reminder = messages_of(Order("order-2", "Ben", "lamp", 99))
    assert (tea.topic, tea.delay_level) == (lamp.topic, lamp.delay_level) == ("orders", None)
    assert (reminder.topic, reminder.delay_level, reminder.keys) == ("reminders", 2, "order-2")
    assert reminder.body == b"Ben, please pay for your lamp"


def test_stock_survives_a_restart(path: Path) -> None:
    OrderListener(OrderDatabase(path)).execute_local_transaction(half_of(ORDER, "t1"), ORDER)
    OrderDatabase(path)
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT quantity FROM stock WHERE item = 'tea'").fetchall()
    assert rows == [(999_999,)]


def test_forgetful_listener_never_knows() -> None:
    listener = ForgetfulListener()
    assert listener.execute_local_transaction(half_of(ORDER, "t1"), ORDER) is UNKNOWN
    assert listener.check_local_transaction(check_of("t1")) is UNKNOWN


def consumed(order: Order, queue_id: int, queue_offset: int) -> ConsumedMessage:
    """Return a message whose half stands where it stands."""
    body = messages_of(order)[0].body
    return ConsumedMessage(
        topic="orders",
        queue_id=queue_id,
        queue_offset=queue_offset,
        body=body,
        keys=order.order_id,
        tags=order.item,
        properties={},
        transaction_id=order.order_id,
        producer_group="order-service",
        stored_at=datetime.now(timezone.utc),
        born_at=None,
        source="half",
        real_topic="orders",
        asked_queue_id=None,
        reason=None,
        half_queue_id=queue_id,
        half_queue_offset=queue_offset,
        raw_headers=None,
        epoch=1,
    )


def test_message_that_comes_again_adds_no_points(tmp_path: Path) -> None:
    orders = list(new_orders(6))
    messages = [consumed(order, number % 2, number // 2) for number, order in enumerate(orders)]
    with closing(sqlite3.connect(tmp_path / "points.sqlite")) as database:
        database.executescript(SCHEMA)
        assert add_points(database, messages[:4]) == 4
        assert add_points(database, messages[2:]) == 2
        balances = dict(database.execute("SELECT customer, points FROM balances"))
        rows = database.execute("SELECT order_id, points FROM points").fetchall()
    assert sum(balances.values()) == sum(order.points for order in orders)
    assert sorted(rows) == sorted((order.order_id, order.points) for order in orders)


def test_batch_that_fails_adds_nothing(tmp_path: Path) -> None:
    good, bad = [consumed(order, 0, number) for number, order in enumerate(new_orders(2))]
    bad = bad._replace(body=json.dumps({"order_id": "no points"}).encode())
    with closing(sqlite3.connect(tmp_path / "points.sqlite")) as database:
        database.executescript(SCHEMA)
        with pytest.raises(KeyError):
            add_points(database, [good, bad])
        assert database.execute("SELECT count(*) FROM points").fetchone() == (0,)
        assert add_points(database, [good]) == 1

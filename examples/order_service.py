"""An order service: each order is a row in its own SQLite and a message `orders`, both or neither.

    python -m examples.order_service --database orders.sqlite --orders 20

It needs a broker and a running job. After its orders it goes on answering checks until Ctrl-C.

An order of a lamp, which is dear, also sends a reminder to pay, in the same transaction and with a
delay level: 5 s after the order it is in the topic `reminders`. No order, no reminder.

What its listener may answer, and why:

    COMMIT      this transaction's row says `committed`: the order is in the database, for ever
    ROLLBACK    this transaction's row says `refused`: no order can be committed under it any more
    UNKNOWN     the database did not answer; ask again

To answer a check it is not enough that there is no row yet: a slow local transaction might still
be running, and commit after we said ROLLBACK. So whoever finds no row writes `refused` first (the
guard). The transaction id is the table's primary key: the slow transaction then fails on it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from txlake import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    Message,
    ProducerOptions,
    TransactionListener,
    TransactionProducer,
)

TOPIC, REMINDERS_TOPIC = "orders", "reminders"
COMMITTED, REFUSED = "committed", "refused"
CUSTOMERS = ("Ada", "Ben", "Cleo", "Dan", "Eve")
PRICES = {"tea": 12, "cup": 8, "pot": 45, "lamp": 99}
PLENTY, FEW_LAMPS = 1_000_000, 5
REMINDED_ITEM = "lamp"
REMINDER_LEVEL = 2  # of the job's [delay] levels: 5 s
# A dead service's checks go to its successor after this; Kafka's brokers allow no less by default.
SESSION_TIMEOUT_MS = 6_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS stock (
    item TEXT PRIMARY KEY, quantity INTEGER NOT NULL CHECK (quantity >= 0));
CREATE TABLE IF NOT EXISTS orders (
    order_id TEXT PRIMARY KEY, customer TEXT NOT NULL, item TEXT NOT NULL REFERENCES stock,
    points INTEGER NOT NULL, transaction_id TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS transaction_ends (
    transaction_id TEXT PRIMARY KEY, state TEXT CHECK (state IN ('committed', 'refused')),
    reason TEXT);
"""


@dataclass(frozen=True)
class Order:
    """An order, as it is stored and published."""

    order_id: str
    customer: str
    item: str
    points: int


class OrderDatabase:
    """Keep orders, the stock they are taken from, and how each message transaction ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as database:
            database.execute("PRAGMA journal_mode = WAL")  # others may read meanwhile
        with self._transaction() as database:
            for statement in _SCHEMA.split(";"):
                database.execute(statement)
            stock = [(item, FEW_LAMPS if item == "lamp" else PLENTY) for item in PRICES]
            database.executemany("INSERT OR IGNORE INTO stock VALUES (?, ?)", stock)

    def create(self, order: Order, transaction_id: str) -> None:
        """Take the item from the stock and store the order: one local transaction.

        Errors: sqlite3.IntegrityError when the item is out of stock (quantity >= 0), or when the
        transaction was refused meanwhile (primary key of `transaction_ends`). Nothing is changed.
        """
        with self._transaction() as database:
            database.execute(
                "INSERT INTO transaction_ends VALUES (?, ?, NULL)", (transaction_id, COMMITTED)
            )
            database.execute(
                "UPDATE stock SET quantity = quantity - 1 WHERE item = ?", (order.item,)
            )
            database.execute(
                "INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
                (order.order_id, order.customer, order.item, order.points, transaction_id),
            )

    def end_of(self, transaction_id: str, reason_if_none: str) -> str:
        """Return how a transaction ended; one that has not ended is refused, for ever.

        Output: COMMITTED or REFUSED, whichever row was first.
        """
        with self._transaction() as database:
            database.execute(
                "INSERT OR IGNORE INTO transaction_ends VALUES (?, ?, ?)",
                (transaction_id, REFUSED, reason_if_none),
            )
            (state,) = database.execute(
                "SELECT state FROM transaction_ends WHERE transaction_id = ?", (transaction_id,)
            ).fetchone()
        return str(state)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a connection of this thread's own, and one transaction: all or nothing."""
        with closing(self._connect()) as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10.0, isolation_level=None)


class OrderListener(TransactionListener):
    """Run the local transaction of an order, and answer for it later."""

    def __init__(self, orders: OrderDatabase, crash_after: int = 0) -> None:
        self._orders = orders
        self._crash_after = crash_after
        self._commits = 0

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        """Store the order `arg`, or refuse it by a rule of the business."""
        try:
            self._orders.create(arg, message.transaction_id)
        except sqlite3.IntegrityError as error:
            return _state(self._orders.end_of(message.transaction_id, f"{arg.item}: {error}"))
        self._commits += 1
        if self._commits == self._crash_after:
            print(f"order {arg.order_id} is in the database; kill -9 before its COMMIT", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        """Answer what is true for ever. A database that does not answer raises: UNKNOWN."""
        state = _state(self._orders.end_of(message.transaction_id, "asked before it was committed"))
        print(f"check {message.check_id} of {message.transaction_id}: {state.name}", flush=True)
        return state


class ForgetfulListener(TransactionListener):
    """Never know anything: what a service does that has lost its database."""

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        """Commit nothing."""
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        """Answer UNKNOWN, however often it is asked."""
        print(f"check {message.check_id} of {message.transaction_id}: UNKNOWN", flush=True)
        return LocalTransactionState.UNKNOWN


def _state(end: str) -> LocalTransactionState:
    if end == COMMITTED:
        return LocalTransactionState.COMMIT_MESSAGE
    return LocalTransactionState.ROLLBACK_MESSAGE


def new_orders(count: int) -> Iterator[Order]:
    """Return orders: every customer in turn, every item in turn."""
    items = itertools.cycle(PRICES)
    for customer in itertools.islice(itertools.cycle(CUSTOMERS), count):
        item = next(items)
        yield Order(uuid.uuid4().hex[:12], customer, item, points=PRICES[item])


def messages_of(order: Order) -> list[Message]:
    """Return the messages that are to be published if, and only if, the order is stored."""
    body = json.dumps(asdict(order)).encode()
    messages = [Message(TOPIC, body, keys=order.order_id, tags=order.item)]
    if order.item == REMINDED_ITEM:
        text = f"{order.customer}, please pay for your {order.item}".encode()
        messages.append(
            Message(REMINDERS_TOPIC, text, keys=order.order_id, delay_level=REMINDER_LEVEL)
        )
    return messages


def serve(options: argparse.Namespace, ended: threading.Event) -> None:
    """Create the orders, then answer checks until `ended`."""
    listener: TransactionListener
    if options.forgetful:
        listener = ForgetfulListener()
    else:
        listener = OrderListener(OrderDatabase(options.database), options.crash_after)

    producer = TransactionProducer(
        options.bootstrap_servers,
        options.group,
        listener,
        options=ProducerOptions(check_session_timeout_ms=SESSION_TIMEOUT_MS),
    )

    with producer:
        ends = dict.fromkeys(LocalTransactionState, 0)
        for order in new_orders(options.orders):
            if ended.is_set():
                return
            result = producer.send_messages_in_transaction(messages_of(order), order)
            ends[result.local_state] += 1

        told = ", ".join(f"{count} {state.name}" for state, count in ends.items() if count)
        print(f"orders created: {options.orders} ({told})", flush=True)
        print("answering checks until Ctrl-C", flush=True)
        ended.wait()


def main() -> None:
    """Read the command line and serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092")
    parser.add_argument("--database", type=Path, default=Path("orders.sqlite"))
    parser.add_argument("--group", default="order-service", help="the producer group")
    parser.add_argument("--orders", type=int, default=20, help="how many to create")
    parser.add_argument(
        "--crash-after",
        type=int,
        default=0,
        metavar="N",
        help="die by kill -9 after the Nth local commit, before its COMMIT operation",
    )
    parser.add_argument("--forgetful", action="store_true", help="answer everything UNKNOWN")
    options = parser.parse_args()

    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    serve(options, ended)


if __name__ == "__main__":
    main()

"""Read what the demo shows: two SQLite databases, the lake's Delta tables, a Kafka topic."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from examples.demo_agreement import Seen
from examples.demo_kafka import KafkaTopic
from examples.order_service import REMINDED_ITEM, REMINDERS_TOPIC, TOPIC
from storage.lake.lake import Lake

ORDER_GROUP, FORGETFUL_GROUP = "order-service", "forgetful-service"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"

Rows = list[dict[str, Any]]


class Sources:
    """Look at databases, lake and Kafka; each look is one `Seen`. Missing ones are empty.

    `kafka`: the topic that is published to; None before there is a broker.
    """

    def __init__(self, lake: Path, orders: Path, points: Path) -> None:
        self._lake = Lake(str(lake))
        self._orders = orders
        self._points = points
        self.kafka: KafkaTopic | None = None
        self.killed = ""

    def look(self) -> Seen:
        """Read everything once, the lake from its end to its beginning.

        In this order nothing is seen downstream that is not yet seen upstream.
        """
        published = () if self.kafka is None else self.kafka.transaction_ids()
        pointed = _ids(self._points, "SELECT transaction_id FROM points")
        balance_points = _sum(self._points, "SELECT points FROM balances")

        table_ids = {row["topic"]: row["table_id"] for row in self._read("catalog")}
        reminded = self._topic(table_ids, REMINDERS_TOPIC)
        delivered = self._topic(table_ids, TOPIC)
        given_up = self._topic(table_ids, GIVEN_UP_TOPIC)

        checks = self._read("checks", "queue_id", "queue_offset", "acknowledged")
        outcomes = [
            row
            for row in self._read("outcomes", "transaction_id", "real_topic", "outcome", "cause")
            if row["real_topic"] == TOPIC  # a reminder ends as its order does
        ]
        halves = self._halves()
        places = {(row["queue_id"], row["queue_offset"]): row["transaction_id"] for row in halves}

        return Seen(
            committed=_ids(self._orders, "SELECT transaction_id FROM orders ORDER BY rowid"),
            refused=_ids(
                self._orders, "SELECT transaction_id FROM transaction_ends WHERE state = 'refused'"
            ),
            order_points=_sum(self._orders, "SELECT points FROM orders"),
            to_remind=_ids(
                self._orders, "SELECT transaction_id FROM orders WHERE item = ?", REMINDED_ITEM
            ),
            halves=_of_group(halves, ORDER_GROUP),
            forgotten=_of_group(halves, FORGETFUL_GROUP),
            delivered=_transaction_ids(delivered),
            published=published,
            rolled_back=tuple(
                row["transaction_id"] for row in outcomes if row["outcome"] == "ROLLED_BACK"
            ),
            causes={row["transaction_id"]: row["cause"] for row in outcomes},
            reminded=_transaction_ids(reminded),
            reminded_after_ms=_after_ms(delivered, reminded),
            given_up=_transaction_ids(given_up),
            checks=Counter(
                places[row["queue_id"], row["queue_offset"]]
                for row in checks
                if row["acknowledged"]
            ),
            pointed=pointed,
            balance_points=balance_points,
            killed=self.killed,
        )

    def newest_order(self) -> str:
        """Return the transaction id of the order that was committed last."""
        return _ids(self._orders, "SELECT transaction_id FROM orders ORDER BY rowid")[-1]

    def _topic(self, table_ids: dict[str, int], topic: str) -> Rows:
        if topic not in table_ids:
            return []
        return self._read(f"topics/{table_ids[topic]}", "transaction_id", "stored_at")

    def _halves(self) -> Rows:
        """Read each transaction's first half."""
        rows = self._read(
            "half", "producer_group", "transaction_id", "queue_id", "queue_offset", "tran_seq"
        )
        return [row for row in rows if not row["tran_seq"]]

    def _read(self, table: str, *columns: str) -> Rows:
        path = self._lake.table_path(table)
        # A topic's table is made a moment after its row in the catalog.
        if not DeltaTable.is_deltatable(path):
            return []
        # Arrow's own files: delta-rs's would call Python from Arrow's threads, and some of them
        # still do while the demo ends, which aborts it.
        files = SubTreeFileSystem(path, LocalFileSystem())
        dataset = self._lake.handle(table).to_pyarrow_dataset(filesystem=files)
        rows: Rows = dataset.to_table(columns=list(columns) or None).to_pylist()
        return rows


def _transaction_ids(rows: Rows) -> tuple[str, ...]:
    return tuple(row["transaction_id"] for row in rows)


def _of_group(halves: Rows, group: str) -> tuple[str, ...]:
    return _transaction_ids([row for row in halves if row["producer_group"] == group])


def _after_ms(orders: Rows, reminders: Rows) -> dict[str, int]:
    """Tell by transaction how long after the order its reminder was delivered."""
    ordered_at = {row["transaction_id"]: row["stored_at"] for row in orders}
    return {
        row["transaction_id"]: (
            (row["stored_at"] - ordered_at[row["transaction_id"]]) // timedelta(milliseconds=1)
        )
        for row in reminders
        if row["transaction_id"] in ordered_at
    }


def _query(path: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=10.0)) as database:
        try:
            return database.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # its service has only just started
                return []
            raise


def _ids(path: Path, query: str, *values: str) -> tuple[str, ...]:
    return tuple(row[0] for row in _query(path, query, *values))


def _sum(path: Path, query: str) -> int:
    return sum(row[0] for row in _query(path, query))

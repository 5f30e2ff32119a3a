"""Read what the demo shows: two SQLite databases and the lake's Delta tables."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from examples.demo_agreement import Seen
from storage.lake import Lake

ORDER_GROUP, FORGETFUL_GROUP = "order-service", "forgetful-service"
TOPIC, GIVEN_UP_TOPIC = "orders", "TRANS_CHECK_MAX_TIME_TOPIC"

Rows = list[dict[str, Any]]


class Sources:
    """Look at databases and lake; each look is one `Seen`. Missing ones are empty."""

    def __init__(self, lake: Path, orders: Path, points: Path) -> None:
        self._lake = Lake(str(lake))
        self._orders = orders
        self._points = points
        self.killed = ""

    def look(self) -> Seen:
        """Read everything once, the lake from its end to its beginning.

        In this order nothing is seen downstream that is not yet seen upstream.
        """
        pointed = _ids(self._points, "SELECT transaction_id FROM points")
        balance_points = _sum(self._points, "SELECT points FROM balances")
        table_ids = {row["topic"]: row["table_id"] for row in self._read("catalog")}
        delivered = self._topic(table_ids, TOPIC)
        given_up = self._topic(table_ids, GIVEN_UP_TOPIC)
        checks = self._read("checks", "queue_id", "queue_offset", "acknowledged")
        outcomes = self._read("outcomes", "transaction_id", "outcome", "cause")
        halves = self._read("half", "producer_group", "transaction_id", "queue_id", "queue_offset")
        places = {(row["queue_id"], row["queue_offset"]): row["transaction_id"] for row in halves}
        state = "SELECT transaction_id FROM transaction_ends WHERE state = '{}'"
        return Seen(
            committed=_ids(self._orders, "SELECT transaction_id FROM orders ORDER BY rowid"),
            refused=_ids(self._orders, state.format("refused")),
            order_points=_sum(self._orders, "SELECT points FROM orders"),
            halves=_of_group(halves, ORDER_GROUP),
            forgotten=_of_group(halves, FORGETFUL_GROUP),
            delivered=delivered,
            rolled_back=tuple(
                row["transaction_id"] for row in outcomes if row["outcome"] == "ROLLED_BACK"
            ),
            causes={row["transaction_id"]: row["cause"] for row in outcomes},
            given_up=given_up,
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
        """Give the transaction id of the order that was committed last."""
        return _ids(self._orders, "SELECT transaction_id FROM orders ORDER BY rowid")[-1]

    def _topic(self, table_ids: dict[str, int], topic: str) -> tuple[str, ...]:
        if topic not in table_ids:
            return ()
        rows = self._read(f"topics/{table_ids[topic]}", "transaction_id")
        return tuple(row["transaction_id"] for row in rows)

    def _read(self, table: str, *columns: str) -> Rows:
        # A topic's table is made a moment after its row in the catalog.
        if not DeltaTable.is_deltatable(self._lake.table_path(table)):
            return []
        rows: Rows = self._lake.read(table, columns or None).to_pylist()
        return rows


def _of_group(halves: Rows, group: str) -> tuple[str, ...]:
    return tuple(row["transaction_id"] for row in halves if row["producer_group"] == group)


def _query(path: Path, query: str) -> list[tuple[Any, ...]]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=10.0)) as database:
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # its service has only just started
                return []
            raise


def _ids(path: Path, query: str) -> tuple[str, ...]:
    return tuple(row[0] for row in _query(path, query))


def _sum(path: Path, query: str) -> int:
    return sum(row[0] for row in _query(path, query))

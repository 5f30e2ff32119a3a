"""A points service: each order of the topic `orders` adds points to its customer, exactly once.

    python -m examples.points_service --lake demo-lake --database points.sqlite

It needs only the lake: no Kafka, no Java. It goes on until SIGTERM or Ctrl-C, or `--until-idle`;
then it gives its queues back, and the next start has them at once.

Exactly once, though every step may be cut off by a crash:

    1. poll()      gives messages; (topic, id) names each, in a lake that is made anew too
    2. one SQLite transaction stores that name (primary key) and the points, or finds it stored
    3. commit()    stores in the lake how far this group is

A crash between 2 and 3 makes poll() give the same messages again; 2 then changes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from txlake import ConsumedMessage, Consumer

TOPIC = "orders"

SCHEMA = """
CREATE TABLE IF NOT EXISTS points (
    topic TEXT, id TEXT, transaction_id TEXT, order_id TEXT, customer TEXT, points INTEGER,
    PRIMARY KEY (topic, id));
CREATE TABLE IF NOT EXISTS balances (
    customer TEXT PRIMARY KEY, points INTEGER NOT NULL);
"""


def add_points(database: sqlite3.Connection, messages: Iterable[ConsumedMessage]) -> int:
    """Add the points of each message that is not in yet, in one transaction; tell how many were.

    Replay: messages that are in change nothing.
    """
    added = 0

    with database:  # commits, or rolls back when anything is raised
        for message in messages:
            order = json.loads(message.body or b"{}")
            row = (
                message.topic,
                message.id,
                message.transaction_id,
                order["order_id"],
                order["customer"],
                order["points"],
            )

            cursor = database.execute("INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?, ?, ?)", row)
            if cursor.rowcount == 1:
                added += 1
                database.execute(
                    "INSERT INTO balances VALUES (?, ?) ON CONFLICT (customer) "
                    "DO UPDATE SET points = points + excluded.points",
                    (order["customer"], order["points"]),
                )
    return added


def serve(options: argparse.Namespace, ended: threading.Event) -> None:
    """Add points until `ended`."""
    # A predecessor that died owns the queues for one session more: this waits for it.
    consumer = Consumer(
        options.lake, options.group, [TOPIC], session_timeout_ms=options.session_timeout_ms
    )

    with closing(sqlite3.connect(options.database, timeout=10.0)) as database, consumer:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(SCHEMA)
        total = 0

        while not ended.is_set():
            messages = consumer.poll(1.0)
            if not messages:
                if options.until_idle:
                    return
                continue

            added = add_points(database, messages)
            total += added
            print(f"{len(messages)} messages, {added} of them new", flush=True)

            if options.crash_after and total >= options.crash_after:
                print("points are in the database; kill -9 before the offsets", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

            consumer.commit()


def main() -> None:
    """Read the command line and serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lake", default="demo-lake")
    parser.add_argument("--database", type=Path, default=Path("points.sqlite"))
    parser.add_argument("--group", default="points-service", help="the consumer group")
    parser.add_argument("--session-timeout-ms", type=int, default=5_000)
    parser.add_argument("--until-idle", action="store_true", help="end when nothing is left")
    parser.add_argument(
        "--crash-after",
        type=int,
        default=0,
        metavar="N",
        help="die by kill -9 with N points rows in the database, before the offsets are committed",
    )
    options = parser.parse_args()

    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    serve(options, ended)


if __name__ == "__main__":
    main()

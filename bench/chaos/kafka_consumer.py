"""The Kafka consumer of the chaos run: reads what is published, by `read_committed`, until killed.

It writes down what comes, then commits its offsets. Now and then it kills itself between the two:
what it wrote down then comes again, from the same Kafka offsets.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError

from bench.chaos.journal import database_at, transaction_on
from bench.chaos.names import PUBLISHED_PREFIX
from txlake import protocol as p

GROUP = "chaos-kafka"
SESSION_TIMEOUT_MS = 6_000
_DEATHS = 0.02  # of the polls that gave something
_SEEN = """
CREATE TABLE IF NOT EXISTS published (
    topic TEXT, queue_id INTEGER, queue_offset INTEGER, kafka_offset INTEGER, body BLOB,
    times INTEGER, PRIMARY KEY (topic, queue_id, kafka_offset)
)
"""
_TRANSIENT = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE)


class SeenInKafka:
    """What the Kafka consumer saw, and how often, by Kafka's offsets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        database_at(path, _SEEN)

    def add(self, messages: Iterable[Any]) -> None:
        """Writes down the messages of a poll; all or none."""
        with transaction_on(self.path) as database:
            database.executemany(
                "INSERT INTO published VALUES (?, ?, ?, ?, ?, 1)"
                " ON CONFLICT DO UPDATE SET times = times + 1",
                [
                    (m.topic(), m.partition(), queue_offset_of(m), m.offset(), m.value())
                    for m in messages
                ],
            )

    def rows(self) -> list[tuple[str, int, int, int, bytes | None, int]]:
        """Returns (topic, partition, queue offset, Kafka offset, body, times), in Kafka's order."""
        with closing(sqlite3.connect(self.path, timeout=30.0)) as database:
            return database.execute(
                "SELECT topic, queue_id, queue_offset, kafka_offset, body, times FROM published"
                " ORDER BY topic, queue_id, kafka_offset"
            ).fetchall()

    def count(self) -> int:
        """Returns the number of records seen."""
        with closing(sqlite3.connect(self.path, timeout=30.0)) as database:
            return int(database.execute("SELECT count(*) FROM published").fetchone()[0])


def queue_offset_of(message: Any) -> int:
    """Returns the queue offset in a published record."""
    return int(dict(reversed(message.headers()))[p.QUEUE_OFFSET])


def consume(
    consumer: Consumer, seen: SeenInKafka, rng: random.Random, ended: threading.Event
) -> None:
    """Consumes until `ended`."""
    while not ended.is_set():
        messages = []
        for message in consumer.consume(100, 0.5):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() not in _TRANSIENT and not error.retriable():
                print(error.str(), flush=True)

        if messages:
            seen.add(messages)
            if rng.random() < _DEATHS:
                os.kill(os.getpid(), signal.SIGKILL)
            consumer.commit(asynchronous=True)


def main() -> None:
    """Consumes until SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--seen", type=Path, required=True)
    parser.add_argument("--name", required=True, help="different for each start")
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap_servers,
            "group.id": GROUP,
            "client.id": options.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "isolation.level": "read_committed",
            "topic.metadata.refresh.interval.ms": 2_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([f"^{PUBLISHED_PREFIX}.*"])
    try:
        rng = random.Random(f"{options.seed}/{options.name}")
        consume(consumer, SeenInKafka(options.seen), rng, ended)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()

"""A consumer of the benchmark that reads Kafka, where a publisher writes what is committed.

It counts as the SDK's does (`bench/load_consumer.py`): messages that only a check ended are left
out. How old a message is begins with the time at which its half was stored.
"""

from __future__ import annotations

import json
import threading
import time

from confluent_kafka import Consumer

from bench.counter_file import CounterFile
from bench.load_consumer import EVERY, GROUP, RECORDS_MAX, begin
from bench.load_producer import LATE
from bench.sample_data import TOPIC
from pipelines.settings import PublisherSettings, load

_LATE = LATE.encode()


def consume(
    publisher: PublisherSettings, consumed: CounterFile, ended: threading.Event
) -> list[tuple[float, float]]:
    """Consume until `ended`. Output: samples: when a message came (s), how old it was then (ms)."""
    samples: list[tuple[float, float]] = []
    count = 0

    consumer = Consumer(
        {
            "bootstrap.servers": publisher.bootstrap_servers,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "topic.metadata.refresh.interval.ms": 500,  # the publisher makes the topic
            "log_level": 0,
        }
    )
    consumer.subscribe([publisher.destination_of(TOPIC)])

    try:
        while not ended.is_set():
            messages = [m for m in consumer.consume(RECORDS_MAX, 0.2) if m.error() is None]
            now = time.time()
            own = [m for m in messages if m.key() != _LATE]
            count += len(own)
            consumed.write(count)
            samples += [(now, round(now * 1000 - m.timestamp()[1])) for m in own[::EVERY]]
    finally:
        consumer.close()
    return samples


def main() -> None:
    """Consume until SIGTERM, then write the samples."""
    options, ended = begin(__doc__ or "")
    (publisher,) = load(options.conf).publish.values()
    samples = consume(publisher, CounterFile(options.consumed, 1), ended)
    options.samples.write_text(json.dumps(samples), "utf-8")


if __name__ == "__main__":
    main()

"""A producer group of the benchmark that floods, in each way in which one group could delay others.

It sends at a rate until SIGTERM, one kind of record after the other: a half that nobody ends, and
whose checks nobody answers; a half of a set that never becomes complete; a half that is committed
to one of very many topics; an operation that names halves that never come.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from pipelines.settings import Settings, load
from txlake import Message, protocol
from txlake._half import group_headers, message_headers
from txlake._identifiers import TransactionIds

FLOOD_GROUP = "bench-flood"
TOPICS = 2_000
_BODY = b"f" * 256
_TICK_S = 0.01
_FLUSH_S = 10.0
_NAMED = 20  # halves that an operation names
_NEVER = 1 << 40  # an offset that no half queue reaches


class Flood:
    """Write records of all kinds, in turn."""

    def __init__(self, settings: Settings) -> None:
        kafka = settings.kafka
        self._half, self._op, self._queues = kafka.half_topic, kafka.op_topic, kafka.queues
        self._ids, self._group = TransactionIds(), group_headers(FLOOD_GROUP)
        self._producer: Any = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "log_level": 0}
        )
        self._numbers = itertools.count()
        self._kinds = itertools.cycle((self._silent, self._member, self._topic, self._orphan))
        self.sent = 0

    def send(self) -> None:
        """Write the next record; a committed half is two."""
        next(self._kinds)(next(self._numbers))
        self.sent += 1
        self._producer.poll(0)

    def close(self) -> None:
        """Wait until Kafka has all."""
        self._producer.flush(_FLUSH_S)

    def _silent(self, number: int) -> None:
        self._write_half(number, "flooded")

    def _member(self, number: int) -> None:
        self._write_half(number, "flooded", (2, 0))

    def _topic(self, number: int) -> None:
        topic, queue = f"flooded-{number % TOPICS}", number % self._queues

        def commit(error: Any, record: Any) -> None:
            if error is None:
                self._end(queue, [record.offset()])

        self._write_half(number, topic, on_delivery=commit)

    def _orphan(self, number: int) -> None:
        first = _NEVER + number * _NAMED
        self._end(number % self._queues, range(first, first + _NAMED))

    def _write_half(
        self, number: int, topic: str, place: tuple[int, int] | None = None,
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> None:  # fmt: skip
        now_ms = time.time_ns() // 1_000_000
        id_ = self._ids.next(now_ms)
        headers = message_headers(Message(topic, b""), self._group, id_, now_ms, place)
        self._produce(self._half, _BODY, number % self._queues, headers, on_delivery)

    def _end(self, queue: int, offsets: Any) -> None:
        ids = ["flood"] * len(offsets)
        headers = protocol.operation_headers(FLOOD_GROUP, protocol.COMMIT, ids)
        self._produce(self._op, protocol.operation_body(offsets), queue, headers)

    def _produce(
        self, topic: str, value: bytes, partition: int, headers: Any,
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> None:  # fmt: skip
        while True:
            try:
                self._producer.produce(
                    topic, value, partition=partition, headers=headers, on_delivery=on_delivery
                )
                return
            except BufferError:
                self._producer.poll(0.1)


def main() -> None:
    """Send until SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--conf", required=True, help="the job's settings")
    parser.add_argument("--rate", type=float, required=True, help="records a second")
    options = parser.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    flood = Flood(load(options.conf))
    began = time.monotonic()
    while not ended.wait(_TICK_S):
        for _ in range(int((time.monotonic() - began) * options.rate) - flood.sent):
            flood.send()
    flood.close()


if __name__ == "__main__":
    main()

"""Write many records into Kafka quickly, in the wire form of the SDK: what a job finds waiting.

The SDK waits for the offset of every half before it ends it. Here one process alone writes into new
topics, so a half's offset is known when it is written: its end can follow at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.bodies import JSON, bodies
from storage.wire.record_kinds import HALF, OP
from txlake import Message, protocol
from txlake._half import group_headers, message_headers
from txlake._identifiers import TransactionIds

GROUP = "bench"
TOPIC = "bench-orders"
_STICKY_RUN = 16  # as the SDK: so many halves in a row go to one half queue
_CHUNK = 20_000  # transactions whose halves are written before their ends
_TEMPLATES = 1_000
_FLUSH_S = 120.0


@dataclass(frozen=True)
class Mix:
    """What the transactions are like.

    Bodies are of a kind of `bench.bodies`. Ends of one queue and one decision share an operation
    record, as those of the SDK do.
    """

    body_bytes: int = 256
    body: str = JSON
    topics: tuple[str, ...] = (TOPIC,)
    rolled_back: float = 0.02
    unanswered: float = 0.01
    ends_per_operation: int = 20


@dataclass
class Written:
    """How many records were written."""

    halves: int = 0
    operations: int = 0
    committed: int = 0

    @property
    def records(self) -> int:
        """Return all of them."""
        return self.halves + self.operations


class Writer:
    """Write into the Kafka topics of one job, from their first offsets on, and nobody else does.

    Input: `topics`: kind -> Kafka topic, made already; `queues` of the half and op topic.
    """

    def __init__(
        self, bootstrap_servers: str, topics: Mapping[str, str], queues: int, seed: int = 1
    ) -> None:
        self._servers = bootstrap_servers
        self._topics = dict(topics)
        self._queues = queues
        self._seed = seed
        self._random = random.Random(seed)
        self._ids = TransactionIds()
        self._group = group_headers(GROUP)
        self._sent = 0

        self._next: dict[tuple[str, int], int] = {}
        self._templates: dict[Mix, list[Message]] = {}
        self._bodies: dict[tuple[str, int], Iterator[bytes]] = {}

        # Any: the client's annotations do not take a list of (str, bytes), the client does.
        self._producer: Any = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 1_000_000,
                "message.max.bytes": 2 << 20,
                "queue.buffering.max.kbytes": 1 << 20,
                "log_level": 0,
            }
        )

    def transactions(self, count: int, mix: Mix) -> Written:
        """Write transactions: halves, and the ends of those that are answered."""
        written = Written()
        for start in range(0, count, _CHUNK):
            places = self._halves(min(_CHUNK, count - start), mix)
            written.halves += len(places)
            self._ends(places, mix, written)
        self._check()
        return written

    def halves(self, count: int, mix: Mix) -> Written:
        """Write halves that nobody ends."""
        for start in range(0, count, _CHUNK):
            self._halves(min(_CHUNK, count - start), mix)
        self._check()
        return Written(halves=count)

    def _halves(self, count: int, mix: Mix) -> list[tuple[int, int, str]]:
        """Write halves. Output: half queue, offset and transaction id of each."""
        topic = self._topics[HALF]
        now_ms = _now_ms()
        places = []

        for number in range(self._sent, self._sent + count):
            transaction_id = self._ids.next(now_ms)
            headers = message_headers(
                self._template(number, mix), self._group, transaction_id, now_ms
            )
            queue = number // _STICKY_RUN % self._queues
            offset = self._produce(topic, queue, self._body(mix), headers)
            places.append((queue, offset, transaction_id))

        self._sent += count
        return places

    def _ends(self, places: Sequence[tuple[int, int, str]], mix: Mix, written: Written) -> None:
        rolled_back = mix.rolled_back
        unanswered = mix.rolled_back + mix.unanswered
        collected: dict[int, tuple[str, list[int], list[str]]] = {}

        for queue, offset, transaction_id in places:
            drawn = self._random.random()
            if rolled_back <= drawn < unanswered:
                continue

            decision = protocol.ROLLBACK if drawn < rolled_back else protocol.COMMIT
            written.committed += decision == protocol.COMMIT

            known = collected.get(queue)
            if known and (known[0] != decision or len(known[1]) >= mix.ends_per_operation):
                self._operation(queue, *collected.pop(queue))
                written.operations += 1

            _, offsets, ids = collected.setdefault(queue, (decision, [], []))
            offsets.append(offset)
            ids.append(transaction_id)

        for queue, ends in collected.items():
            self._operation(queue, *ends)
            written.operations += 1

    def _operation(self, queue: int, decision: str, offsets: list[int], ids: list[str]) -> None:
        headers = protocol.operation_headers(GROUP, decision, ids)
        headers.append((protocol.TXV, protocol.WIRE_VERSION.encode()))
        self._produce(self._topics[OP], queue, protocol.operation_body(offsets), headers)

    def _body(self, mix: Mix) -> bytes:
        kind, size = mix.body, mix.body_bytes
        if (kind, size) not in self._bodies:
            self._bodies[kind, size] = bodies(kind, size, self._seed)
        return next(self._bodies[kind, size])

    def _template(self, number: int, mix: Mix) -> Message:
        """Return a message with everything but its body; a thousand different ones come in turn."""
        if mix not in self._templates:
            self._templates[mix] = [self._message(n, mix) for n in range(_TEMPLATES)]
        return self._templates[mix][number % _TEMPLATES]

    def _message(self, number: int, mix: Mix) -> Message:
        return Message(
            mix.topics[number % len(mix.topics)], b"", properties=user_properties(number)
        )

    def _produce(self, topic: str, partition: int, body: bytes | None, headers: Any) -> int:
        """Hand over one record. Output: the offset it will have."""
        while True:
            try:
                self._producer.produce(topic, body, partition=partition, headers=headers)
                break
            except BufferError:
                self._producer.poll(0.1)
        place = (topic, partition)
        offset = self._next.get(place, 0)
        self._next[place] = offset + 1
        return offset

    def _check(self) -> None:
        """Wait for Kafka, and compare its offsets with ours.

        Errors: RuntimeError: somebody else writes there, or records were lost.
        """
        if self._producer.flush(_FLUSH_S):
            raise RuntimeError(f"Kafka did not take all records within {_FLUSH_S:.0f} s")
        settings = {"bootstrap.servers": self._servers, "group.id": "bench-look", "log_level": 0}
        kafka = Consumer(settings)
        try:
            for (topic, partition), expected in self._next.items():
                ends = kafka.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
                if ends is None or ends[1] != expected:
                    raise RuntimeError(f"{topic} {partition} ends at {ends}, not at {expected}")
        finally:
            kafka.close()


def user_properties(number: int) -> dict[str, str]:
    """Return four properties as applications send them: two of few values, two of many."""
    return {
        "region": ("eu-north", "eu-west", "us-east")[number % 3],
        "source": "checkout",
        "customer": f"c-{number * 7919 % 100_000:06d}",
        "trace": f"{number * 2_654_435_761 % 2**64:016x}",
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

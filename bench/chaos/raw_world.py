"""What a story of the raw producer can do: send halves, operations and commands, look, promise.

A story is a generator. It sends what it sends, yields the seconds to wait before it goes on, and
writes a promise when Kafka has all the records that the promise is about.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.chaos.names import KAFKA_QUEUES, RAW_GROUP, RAW_TOPIC, STRANGER_GROUP
from bench.chaos.raw_journal import DELIVERED, RawJournal, RawRecord
from bench.chaos.raw_kafka import Header, RawKafka
from bench.chaos.raw_look import LakeLook
from bench.chaos.settings import RETENTION_MS_MIN
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake import protocol as p

Story = Generator[float, None, None]
# Promises build on ends that come well before any half is too old.
SPAN_MS_MAX = RETENTION_MS_MIN // 3
_UNCHECKED_S = 3_600  # an immunity that outlives the run
_LOOK_S = 0.5
NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Transaction:
    """Where the halves of one transaction go, and what they carry."""

    transaction_id: str
    queue_id: int
    group: str = RAW_GROUP
    topic: str = RAW_TOPIC
    size: int = 1
    is_checked: bool = False  # else its immunity outlives the run

    def headers(self, seq: int) -> list[tuple[str, str]]:
        """Returns the headers of one of its halves; a half alone says its size, or not."""
        values = [
            (p.TRAN_MSG, "true"),
            (p.PGROUP, self.group),
            (p.UNIQ_KEY, self.transaction_id),
            (p.REAL_TOPIC, self.topic),
        ]
        if not self.is_checked:
            values.append((p.CHECK_IMMUNITY, str(_UNCHECKED_S)))
        if self.size > 1 or seq:
            values += [(p.TRAN_SIZE, str(self.size)), (p.TRAN_SEQ, str(seq))]
        return values


class World:
    """Kafka, the journal, the lake and the dice of one raw producer."""

    def __init__(self, kafka: RawKafka, journal: RawJournal, look: LakeLook, seed: str) -> None:
        self.kafka, self.journal, self.look = kafka, journal, look
        self.rng = random.Random(seed)
        self.story = ""  # whose turn it is

    def pause(self, mean_s: float) -> float:
        """Returns a time to wait."""
        return self.rng.uniform(0.0, 2 * mean_s)

    def one_of(self, **weights: int) -> str:
        """Returns one of the names, by its weight."""
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def transaction(self, **values: Any) -> Transaction:
        """Returns a new transaction; its queue is drawn."""
        return Transaction(self.kafka.new_id(), self.rng.randrange(KAFKA_QUEUES), **values)

    def half(
        self,
        of: Transaction,
        seq: int = 0,
        extra: Mapping[str, str] = NO_HEADERS,
        *,
        with_marker: bool = False,
    ) -> RawRecord:
        """Sends a half of a transaction, with `extra` headers. Errors: NotStoredError."""
        id_ = self.kafka.new_id()
        headers = _encoded([*of.headers(seq), (p.KEYS, id_), *extra.items()])
        about = {"transaction_id": of.transaction_id, "size": of.size, "seq": seq}

        return self.kafka.send(
            HALF,
            self.story,
            of.queue_id,
            self._body(id_),
            [*headers, *self._odd_headers()],
            about,
            record_id=id_,
            with_marker=with_marker,
        )

    def scheduled(self, extra: Mapping[str, str]) -> RawRecord:
        """Sends a schedule record with these headers. Errors: NotStoredError."""
        id_ = self.kafka.new_id()
        headers = _encoded([(p.REAL_TOPIC, RAW_TOPIC), (p.KEYS, id_), *extra.items()])
        return self.kafka.send(
            SCHEDULE,
            self.story,
            0,
            self._body(id_),
            [*headers, *self._odd_headers()],
            {"transaction_id": id_},
            record_id=id_,
        )

    def end(
        self,
        decision: str,
        halves: Sequence[RawRecord],
        *,
        group: str = RAW_GROUP,
        with_ids: bool | None = None,
    ) -> RawRecord:
        """Sends an operation that names halves of one queue, in this order."""
        offsets = [half.queue_offset or 0 for half in halves]
        ids = [half.transaction_id for half in halves]
        carries_ids = self.rng.random() < 0.5 if with_ids is None else with_ids
        queue_id = halves[0].queue_id
        return self.operation(decision, queue_id, offsets, ids, group, carries_ids=carries_ids)

    def operation(
        self,
        decision: str,
        queue_id: int,
        offsets: Sequence[int],
        ids: Sequence[str],
        group: str = RAW_GROUP,
        *,
        carries_ids: bool = True,
    ) -> RawRecord:
        """Sends an operation: a producer's own, the answer to a check, or an operator's."""
        origin = self.one_of(own=2, answer=1, operator=1)
        extra = {
            "own": [(p.REMARK, "none")],
            "answer": [(p.FROM_CHECK, "true"), (p.CHECK_ID, p.check_id(queue_id, 0, 0, 1))],
            "operator": [(p.ACTOR, "chaos"), (p.REASON, "to see what happens")],
        }[origin]

        headers = p.operation_headers(group, decision, ids, extra)
        if not carries_ids and origin == "operator":  # others have to name their transactions
            headers = [header for header in headers if header[0] != p.UNIQ_KEY]

        body = p.operation_body(offsets)
        if self.rng.random() < 0.3:
            body = body.rstrip(b",")

        ends = [] if group == STRANGER_GROUP else sorted(set(ids))
        about = {"decision": decision, "ends": ends}
        return self.kafka.send(OP, self.story, queue_id, body, headers, about)

    def command(self, command: str, target: str | None) -> RawRecord:
        """Sends an operator's command."""
        values = [(p.COMMAND, command), (p.ACTOR, "chaos"), (p.REASON, "to see what happens")]
        if target is not None:
            values.insert(1, (p.TARGET, target))
        about = {"command": command, "target": target}
        return self.kafka.send(ADMIN, self.story, 0, None, _encoded(values), about)

    def promise(self, kind: str, records: Sequence[RawRecord], **facts: Any) -> None:
        """Notes what has to hold of records that Kafka has."""
        self.journal.promise(kind, [record.id for record in records], **facts)

    def promise_delivery(
        self, of: Transaction, halves: Sequence[RawRecord], end: RawRecord
    ) -> None:
        """Notes that a transaction's messages are delivered, if the end came in time for all."""
        if is_in_time(*halves, end):
            self.promise(DELIVERED, halves, is_set=of.size > 1)

    def wait_for_outcome(self, half: RawRecord, outcomes: Sequence[str], limit_s: float) -> Story:
        """Waits until one of these outcomes holds for a half, or the time is up."""
        for _ in range(int(limit_s / _LOOK_S)):
            if self.look.outcome_of(half) in outcomes:
                return
            yield _LOOK_S

    def some(self, halves: Sequence[RawRecord]) -> list[RawRecord]:
        """Returns some of these halves in any order, now and then one of them twice."""
        found = self.rng.sample(halves, self.rng.randint(1, len(halves)))
        if self.rng.random() < 0.2:
            found.append(self.rng.choice(found))
        return found

    def _body(self, id_: str) -> bytes | None:
        size = self.rng.choice((None, 0, 20, 200, 2_000))
        return None if size is None else id_.encode() + self.rng.randbytes(size)

    def _odd_headers(self) -> list[Header]:
        """Returns headers of a user's, some of which are no text."""
        headers: list[Header] = [("who", self.story.encode())]
        if self.rng.random() < 0.1:
            headers.append(self.rng.choice((("odd", b"\xff"), ("odd", None), ("who", b"again"))))
        return headers


def is_in_time(*records: RawRecord) -> bool:
    """Returns whether the records came so soon one after another that no half was too old."""
    times = [record.stored_ms or 0 for record in records]
    return max(times) - min(times) <= SPAN_MS_MAX


def _encoded(values: Sequence[tuple[str, str]]) -> list[Header]:
    return [(name, value.encode()) for name, value in values]

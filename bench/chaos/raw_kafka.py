"""The raw producer's way to Kafka: one record at a time, in the journal before and after."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.chaos.raw_journal import RawJournal, RawRecord
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake import protocol as p

TOPIC_OF = {
    HALF: p.HALF_TOPIC,
    OP: p.OP_TOPIC,
    SCHEDULE: p.SCHEDULE_TOPIC,
    ADMIN: p.ADMIN_TOPIC,
}
_TIMEOUT_S = 20.0
_TRY_AGAIN_S = 0.5
Header = tuple[str, bytes | None]


class NotStoredError(Exception):
    """Kafka did not say that it has a record: it has it, or not."""


class RawKafka:
    """Kafka, as one raw producer uses it. `name` differs for each start: ids begin with it."""

    def __init__(self, bootstrap_servers: str, journal: RawJournal, name: str) -> None:
        self._servers: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
        }
        self._journal = journal
        self._name = name
        self._numbers = itertools.count(1)
        self._producer = self._new_producer()
        self._in_transactions: Producer | None = None
        self._looker = Consumer({**self._servers, "group.id": "raw-look"})

    def new_id(self) -> str:
        """Returns an id that no other record or transaction has."""
        return f"{self._name}-{next(self._numbers)}"

    def send(
        self,
        kind: str,
        story: str,
        queue_id: int,
        value: bytes | None,
        headers: Sequence[Header],
        about: Mapping[str, Any],
        *,
        record_id: str | None = None,
        with_marker: bool = False,
    ) -> RawRecord:
        """Sends one record; its id is its Kafka key. Output: the record, with its offset.

        Input: `with_marker`: in a Kafka transaction of its own, whose marker takes the next offset.
        Errors: NotStoredError.
        """
        record_id = record_id or self.new_id()
        record = RawRecord(record_id, kind, story, queue_id, value, about)
        self._journal.sending(record)
        reports: list[tuple[Any, Any]] = []
        producer = self._transactional() if with_marker else self._producer
        try:
            if with_marker:
                producer.begin_transaction()
            producer.produce(
                TOPIC_OF[kind],
                value=value,
                key=record_id.encode(),
                partition=queue_id,
                headers=list(headers),
                on_delivery=lambda *report: reports.append(report),
            )
            producer.flush(_TIMEOUT_S)
            if with_marker:
                producer.commit_transaction(_TIMEOUT_S)
        except KafkaException as error:
            reports = [(error, None)]
        if not reports or reports[0][0] is not None:
            self._producer = self._new_producer()
            self._in_transactions = None
            raise NotStoredError(f"{record_id} to {TOPIC_OF[kind]}: {reports[:1]}")

        message = reports[0][1]
        record = replace(record, queue_offset=message.offset(), stored_ms=message.timestamp()[1])
        self._journal.stored(record_id, message.offset(), message.timestamp()[1])
        return record

    def end_of(self, topic: str, queue_id: int) -> int:
        """Returns the offset that comes next in a partition. Errors: NotStoredError."""
        try:
            place = TopicPartition(topic, queue_id)
            return int(self._looker.get_watermark_offsets(place, timeout=5.0)[1])
        except KafkaException as error:
            raise NotStoredError(f"the end of {topic} is not known: {error}") from error

    def make_check_topic(self, group: str) -> None:
        """Makes a group's check topic where it is missing, and waits until it is there."""
        topic = p.check_topic(group)
        admin = AdminClient(self._servers)
        while True:
            try:
                if topic in admin.list_topics(timeout=_TIMEOUT_S).topics:
                    return
                new = NewTopic(topic, 1, config={"message.timestamp.type": "LogAppendTime"})
                admin.create_topics([new])[topic].result(timeout=_TIMEOUT_S)
            except KafkaException as error:
                print(f"{topic}: {error}", flush=True)
                time.sleep(_TRY_AGAIN_S)

    def _new_producer(self) -> Producer:
        return Producer(
            {
                **self._servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": int(_TIMEOUT_S * 900),
                "error_cb": lambda error: None,
            }
        )

    def _transactional(self) -> Producer:
        if self._in_transactions is None:
            self._in_transactions = Producer(
                {
                    **self._servers,
                    "transactional.id": "raw",
                    "linger.ms": 0,
                    "transaction.timeout.ms": int(_TIMEOUT_S * 1000),
                    "message.timeout.ms": int(_TIMEOUT_S * 900),
                    "error_cb": lambda error: None,
                }
            )

            self._in_transactions.init_transactions(_TIMEOUT_S)
        return self._in_transactions

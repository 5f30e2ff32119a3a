"""Write an operator's operation or command to Kafka, and look for what the job made of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from pipelines.errors import KafkaAwayError, LostInputError, StartError
from pipelines.explain.rows import Row, newest_epochs, plain
from pipelines.kafka_topics import producer_config
from pipelines.settings import KafkaSettings
from storage.kafka_rows import ADMIN, OP
from storage.lake import Lake
from storage.pruned import Bounds, read_pruned
from txlake import protocol as p

_TIMEOUT_S = 10.0
_POLL_S = 0.1
_VERSION = (p.TXV, p.WIRE_VERSION.encode())
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Record:
    """A record to write: the kind of its topic, its partition, value and headers."""

    kind: str
    partition: int
    value: bytes | None
    headers: p.Headers

    def texts(self) -> dict[str, str]:
        """Return the headers as text."""
        return {name: value.decode() for name, value in self.headers}


def operation(half: Row, decision: str, actor: str, reason: str) -> Record:
    """Make the operation that ends a stored half: its own group, its own transaction id."""
    extra = ((p.ACTOR, actor), (p.REASON, reason))
    headers = p.operation_headers(half["producer_group"], decision, [half["transaction_id"]], extra)
    body = p.operation_body([half["queue_offset"]])
    return Record(OP, half["queue_id"], body, [*headers, _VERSION])


def command(name: str, target: str | None, actor: str, reason: str) -> Record:
    """Make a command for the admin topic; some have no target."""
    about = () if target is None else ((p.TARGET, target),)
    values = ((p.COMMAND, name), *about, (p.ACTOR, actor), (p.REASON, reason))
    return Record(ADMIN, 0, None, [*((key, text.encode()) for key, text in values), _VERSION])


def write(kafka: KafkaSettings, record: Record, cluster_id: str) -> int:
    """Write a record to the cluster that the lake is made from. Output: its offset.

    Input: `cluster_id` as the lake's newest plan has it; empty when there is none.
    Errors: KafkaAwayError, LostInputError, StartError: one sentence each, nothing was written.
    """
    topic = kafka.topics()[record.kind]
    config = producer_config(kafka.bootstrap_servers, kafka.client, p.MESSAGE_BYTES_MAX)
    try:
        # Asked without a name: asking for a name may create the topic.
        cluster = AdminClient(config).list_topics(timeout=_TIMEOUT_S)
    except KafkaException as error:
        raise KafkaAwayError(
            f"Kafka at {kafka.bootstrap_servers} did not answer: {error.args[0]}"
        ) from error
    if cluster_id and cluster.cluster_id != cluster_id:
        raise LostInputError(
            f"this is Kafka cluster {cluster.cluster_id}, and the lake was made from {cluster_id}: "
            "nothing was written; check bootstrap_servers"
        )
    found = cluster.topics.get(topic)
    if found is None or record.partition not in found.partitions:
        raise StartError(
            f"Kafka has no partition {record.partition} of topic {topic}: nothing was written"
        )
    return _produce(config, topic, record)


def _produce(config: dict[str, object], topic: str, record: Record) -> int:
    producer = Producer({**config, "linger.ms": 0})
    reports: list[tuple[object, object]] = []
    try:
        producer.produce(
            topic,
            value=record.value,
            partition=record.partition,
            headers=list(record.headers),
            on_delivery=lambda error, message: reports.append((error, message)),
        )
    except KafkaException as error:
        raise KafkaAwayError(f"{topic}: the record was not taken: {error.args[0]}") from error
    producer.flush(_TIMEOUT_S)
    if not reports or reports[0][0] is not None:
        why = reports[0][0] if reports else f"no answer within {_TIMEOUT_S:.0f} s"
        raise KafkaAwayError(
            f"{topic}: Kafka did not say that it has the record ({why}); it may have it"
        )
    offset: int = reports[0][1].offset()  # type: ignore[attr-defined]
    return offset


def _wait(look: Callable[[], Seen | None], wait_s: float) -> Seen | None:
    deadline = time.monotonic() + wait_s
    while True:
        seen = look()
        if seen is not None or time.monotonic() >= deadline:
            return seen
        time.sleep(_POLL_S)


def _committed(lake: Lake, table: str, columns: list[str], bounds: Bounds) -> list[Row]:
    """Return rows of committed epochs."""
    rows = plain(read_pruned(lake, table, columns, bounds))
    if not rows:
        return []
    committed, _ = newest_epochs(lake)
    return [row for row in rows if row["epoch"] <= committed]


def wait_for_result(lake: Lake, admin_offset: int, wait_s: float) -> str | None:
    """Wait for what a command did: `admin.result`. Output: None when time is up."""
    columns = ["queue_offset", "result", "epoch"]

    def look() -> str | None:
        rows = _committed(lake, "admin", columns, {"queue_offset": [admin_offset]})
        return str(rows[0]["result"]) if rows else None

    return _wait(look, wait_s) if wait_s > 0 else None


def wait_for_end(lake: Lake, half: Row, op_offset: int, wait_s: float) -> str:
    """Wait for what an operation did to a half.

    Output: the outcome it made, or the reason of its conflict; `waits` when it landed and did
    neither; empty when time is up.
    """
    queue, offset = half["queue_id"], half["queue_offset"]
    of_op: Bounds = {"queue_id": [queue], "queue_offset": [op_offset]}
    of_half: Bounds = {"queue_id": [queue], "queue_offset": [offset]}
    conflicting: Bounds = {"queue_id": [queue], "op_queue_offset": [op_offset]}

    def look() -> str | None:
        if not _committed(lake, "op", ["queue_offset", "epoch"], of_op):
            return None
        columns = ["outcome", "cause", "op_queue_offset", "epoch"]
        for row in _committed(lake, "outcomes", columns, of_half):
            if row["op_queue_offset"] == op_offset:
                return f"{row['outcome']}, cause {row['cause']}"
        for row in _committed(lake, "conflicts", ["reason", "epoch"], conflicting):
            return str(row["reason"])
        return "waits"

    return (_wait(look, wait_s) if wait_s > 0 else None) or ""

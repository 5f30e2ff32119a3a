"""Writes an operator's operation or command to Kafka, and waits for its result."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from confluent_kafka import KafkaException, Producer

from pipelines.errors import KafkaAwayError, LostInputError, StartError
from pipelines.explain.rows import Row, latest_committed, to_dicts
from pipelines.kafka_client.acls import require_rights
from pipelines.kafka_client.connection import Cluster, produce_sync, producer_config
from pipelines.settings import KafkaSettings, SecuritySettings
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.wire.record_kinds import ADMIN, OP
from txlake import protocol as p
from txlake.signing import sign_operation

_POLL_S = 0.1
_VERSION = (p.TXV, p.WIRE_VERSION.encode())


@dataclass(frozen=True)
class Record:
    """A record to write: the kind of its topic, its partition and headers.

    `half_offset`: the half that an operation ends; None in a command.
    """

    kind: str
    partition: int
    headers: p.Headers
    half_offset: int | None = None

    @property
    def value(self) -> bytes | None:
        """Returns the record's body."""
        return None if self.half_offset is None else p.operation_body([self.half_offset])

    def signature(self, security: SecuritySettings) -> str | None:
        """Returns the SIG of an operation under the first of the operators' keys, if there is one.

        A command has none.
        """
        key = next(iter(security.operators.values()), None)
        if key is None or self.value is None:
            return None
        return sign_operation(key, self.partition, self.value, dict(self.headers))

    def headers_as_text(self) -> dict[str, str]:
        """Returns the headers as text."""
        return {name: value.decode() for name, value in self.headers}


def operation(half: Row, decision: str, actor: str, reason: str) -> Record:
    """Returns the operation that ends a stored half: its own group, its own transaction id."""
    extra = ((p.ACTOR, actor), (p.REASON, reason))
    headers = p.operation_headers(half["producer_group"], decision, [half["transaction_id"]], extra)
    return Record(OP, half["queue_id"], [*headers, _VERSION], half["queue_offset"])


def command(name: str, target: str | None, actor: str, reason: str) -> Record:
    """Returns a command for the admin topic; some have no target."""
    target_header = () if target is None else ((p.TARGET, target),)
    values = ((p.COMMAND, name), *target_header, (p.ACTOR, actor), (p.REASON, reason))
    return Record(ADMIN, 0, [*((key, text.encode()) for key, text in values), _VERSION])


def write(
    kafka: KafkaSettings, record: Record, cluster_id: str, security: SecuritySettings | None = None
) -> int:
    """Writes a record to the cluster that the lake is made from. Returns its offset.

    It is signed only here: a reader of `--dry-run` cannot write the record that it shows.
    Input: `cluster_id` as the lake's newest plan has it; empty when there is none.
    Errors: KafkaAwayError, LostInputError, StartError: one sentence each, nothing was written.
    """
    topic = kafka.topics()[record.kind]
    client = Cluster(kafka.bootstrap_servers, kafka.client)
    cluster = client.metadata()
    if cluster_id and cluster.cluster_id != cluster_id:
        raise LostInputError(
            f"this is Kafka cluster {cluster.cluster_id}, and the lake was made from {cluster_id}: "
            "nothing was written; check bootstrap_servers"
        )

    require_rights(client, kafka.bootstrap_servers, {topic: ("WRITE",)})
    metadata = cluster.topics.get(topic)
    if metadata is None or record.partition not in metadata.partitions:
        raise StartError(
            f"Kafka has no partition {record.partition} of topic {topic}: nothing was written"
        )

    signature = None if security is None else record.signature(security)
    if signature is not None:
        record = replace(record, headers=[*record.headers, (p.SIG, signature.encode())])

    config = producer_config(kafka.bootstrap_servers, kafka.client, p.MESSAGE_BYTES_MAX)
    producer = Producer({**config, "linger.ms": 0})
    try:
        message, failed = produce_sync(
            producer,
            topic,
            value=record.value,
            partition=record.partition,
            headers=list(record.headers),
        )
    except KafkaException as error:
        raise KafkaAwayError(f"{topic}: Kafka did not take the record: {error.args[0]}") from error

    if failed is not None:
        raise KafkaAwayError(
            f"{topic}: Kafka did not confirm the record ({failed}); it can be stored all the same"
        )

    return int(message.offset())


def wait_for_result(lake: Lake, record: Record, offset: int, deadline: float) -> str | None:
    """Returns the result of a written record; None when time is up. Input: monotonic s.

    A command has a result; an operation an outcome, the reason of its conflict, or `waits`.
    """
    while True:
        result = result_of(lake, record, offset)
        if result is not None or time.monotonic() >= deadline:
            return result
        time.sleep(_POLL_S)


def result_of(lake: Lake, record: Record, offset: int) -> str | None:
    """Returns the result of a record at an offset of its partition; None if it is not landed."""
    if record.half_offset is None:
        return command_result(lake, offset)
    return _operation_result(lake, record, offset)


def command_result(lake: Lake, offset: int) -> str | None:
    """Returns the result of the command at an offset of the admin topic; None if there is none."""
    rows = _committed_rows(lake, "admin", ["queue_offset", "result"], queue_offset=offset)
    return str(rows[0]["result"]) if rows else None


def _operation_result(lake: Lake, record: Record, offset: int) -> str | None:
    queue = {"queue_id": record.partition}
    if not _committed_rows(lake, "op", ["queue_offset"], queue_offset=offset, **queue):
        return None

    columns = ["outcome", "cause", "op_queue_offset"]
    for row in _committed_rows(lake, "outcomes", columns, queue_offset=record.half_offset, **queue):
        if row["op_queue_offset"] == offset:
            return _outcome_text(row)

    for row in _committed_rows(lake, "conflicts", ["reason"], op_queue_offset=offset, **queue):
        return str(row["reason"])

    # A duplicate names its set, and its own outcome names no operation. The outcomes are looked
    # through last: they are sorted by their halves.
    for row in _committed_rows(lake, "outcomes", columns, op_queue_offset=offset, **queue):
        return _outcome_text(row)

    return "waits"


def _outcome_text(row: Row) -> str:
    return f"{row['outcome']}, cause {row['cause']}"


def _committed_rows(lake: Lake, table: str, columns: list[str], **place: int | None) -> list[Row]:
    """Returns the rows of committed epochs at a place."""
    bounds: Bounds = {name: [value] for name, value in place.items()}
    rows = to_dicts(read_rows(lake, table, [*columns, "epoch"], bounds))
    newest = latest_committed(lake)[0] if rows else 0
    return [row for row in rows if row["epoch"] <= newest]

"""Checks: questions to producer groups about how their transactions ended.

One confluent-kafka producer in the driver gets a delivery report for each check. An attempt counts
only if Kafka acknowledged it in time. A check whose group has no topic, or that Kafka refused, is
an attempt that does not count. A check that could not be handed over in time is no attempt.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer

from checker.frames import ATTEMPTS
from checker.frames_ops.columns import Mask, filter_rows, to_mask
from pipelines.kafka_client.connection import producer_config
from storage import schemas
from storage.files.messages import read_messages
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.rows import instant, to_rows
from storage.schemas import STATE_TABLES
from txlake import protocol as p
from txlake.signing import SigningKey, check_signatures

_BODY_COLUMNS = ["queue_id", "queue_offset", "keys", "tags", "properties", "raw_headers", "body"]
_METADATA_TIMEOUT_S = 2.0
# What waits for Kafka at once, in KiB: 50,000 checks can have 1 MiB each.
_WAITING_KIB: Final = 64 * 1024


@dataclass
class _Attempt:
    """One check. `half`: the half's columns but for the body, empty when Kafka has answered."""

    row: dict[str, Any]
    too_large: list[_Attempt]
    half: Mapping[str, Any] = field(default_factory=dict)
    has_body: bool = False
    acknowledged: bool = False

    @property
    def check_id(self) -> str:
        row = self.row
        return p.check_id(row["queue_id"], row["queue_offset"], row["arm"], row["check_times"])

    def report(self, error: KafkaError | None, _message: object) -> None:
        self.acknowledged = error is None
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE and self.has_body:
            self.too_large.append(self)
            return
        self.half = {}


class CheckSender(Protocol):
    """The sender of an epoch's due checks."""

    def ask(self, lake: Lake, due: pa.Table) -> pa.Table:
        """Sends due checks and returns the attempts, one row an attempt.

        Input: DUE. Output: ATTEMPTS.
        """


def send_checks_once(
    lake: Lake, asker: CheckSender, plan: Plan, due: pa.Table, *, is_resumed: bool = False
) -> pa.Table:
    """Sends due checks and records each attempt, once; returns the recorded attempts.

    Without an attempt `checks` does not hold the epoch, and the state, which is written behind it,
    can: then an epoch that is resumed makes none either.

    Input: DUE; `is_resumed`: as of `PlannedEpoch`. Output: ATTEMPTS.
    """
    tables = ("checks", *STATE_TABLES) if is_resumed else ("checks",)
    is_recorded = due.num_rows > 0 and any(lake.has_epoch(table, plan.epoch) for table in tables)

    if not is_recorded:
        attempts = asker.ask(lake, due)
        sent_at = instant(plan.epoch_at)
        rows = to_rows(attempts, schemas.CHECKS, sent_at=sent_at, epoch=plan.epoch)
        is_recorded = rows.num_rows > 0 and not lake.append("checks", rows, plan.epoch)

    if is_recorded:
        attempts = lake.read("checks", where=pc.field("epoch") == plan.epoch)
        lake.row_counts.invalidate("checks")
    return attempts


class KafkaCheckSender:
    """The sender of a job's due checks.

    Input: `keys`: the keys of each producer group that has some; the first one signs.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        client: Mapping[str, str],
        prefix: str,
        ask_timeout_ms: int,
        message_bytes_max: int,
        keys: Mapping[str, Sequence[SigningKey]] | None = None,
    ) -> None:
        self._prefix = prefix
        self._keys = keys or {}
        self._timeout_s = ask_timeout_ms / 1000

        self._producer = Producer(
            {
                **producer_config(bootstrap_servers, client, message_bytes_max),
                "linger.ms": min(5, ask_timeout_ms - 1),  # librdkafka wants it below the time-out
                "message.timeout.ms": ask_timeout_ms,
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": max(_WAITING_KIB, 2 * message_bytes_max // 1024),
                "allow.auto.create.topics": "false",
                # Every client reads it; KafkaJS stops for good at LZ4. Of 50,000 checks of 1.5 KB
                # this took 2.3 s, gzip 3.3 to 12 s of the 5 s that an epoch has for them.
                "compression.type": "none",
            }
        )

    def ask(self, lake: Lake, due: pa.Table) -> pa.Table:
        """Sends due checks and waits for Kafka, at most ask_timeout_ms in all.

        Input: DUE. The bodies of halves whose group has a topic are read from `half`, as a stream.
        Output: one row an attempt: the columns of CHECKS but sent_at and epoch.
        Memory holds the checks that wait for Kafka, some MiB, not the bodies of all.
        """
        if due.num_rows == 0:
            return ATTEMPTS.empty_table()

        deadline = time.monotonic() + self._timeout_s
        has_topic = self._has_topic(due)
        too_large: list[_Attempt] = []

        attempts = [_Attempt(row, too_large) for row in filter_rows(due, ~has_topic).to_pylist()]
        due = filter_rows(due, has_topic)
        due_by_key = {(row["queue_id"], row["queue_offset"]): row for row in due.to_pylist()}

        batches = read_messages(lake, "half", due, _BODY_COLUMNS, footers=lake.opened)
        for half in (row for batch in batches for row in batch.to_pylist()):
            row = due_by_key.pop((half["queue_id"], half["queue_offset"]), None)
            if row is None:
                continue

            body = half.pop("body")
            attempt = _Attempt(row, too_large, half, has_body=body is not None)
            if not self._produce(attempt, body, deadline):
                break
            attempts.append(attempt)
            self._resend_without_body(too_large, deadline)

        self._flush_until(deadline)
        self._resend_without_body(too_large, deadline)
        self._flush_until(deadline)

        return pa.Table.from_pylist(
            [a.row | {"check_id": a.check_id, "acknowledged": a.acknowledged} for a in attempts],
            schema=ATTEMPTS,
        )

    def close(self) -> None:
        """Drops the checks that Kafka has not taken; they are recorded as not acknowledged."""
        self._producer.purge()
        self._producer.flush(1.0)

    def _flush_until(self, deadline: float) -> None:
        self._producer.flush(max(0.0, deadline - time.monotonic()))

    def _has_topic(self, due: pa.Table) -> Mask:
        """Returns of each check whether its topic exists: without one it takes no time.

        All are true if Kafka does not say.
        """
        try:
            timeout_s = min(_METADATA_TIMEOUT_S, self._timeout_s / 2)
            topics = self._producer.list_topics(timeout=timeout_s).topics
        except KafkaException:
            return np.ones(due.num_rows, np.bool_)

        groups = pc.unique(due["producer_group"]).to_pylist()
        with_topic = [group for group in groups if p.check_topic(group, self._prefix) in topics]
        return to_mask(pc.is_in(due["producer_group"], pa.array(with_topic, pa.string())))

    def _resend_without_body(self, too_large: list[_Attempt], deadline: float) -> None:
        """Sends checks again that are too large for their topics, without the bodies."""
        while too_large:
            attempt = too_large.pop()
            is_omitted = attempt.has_body
            attempt.has_body = False
            self._produce(attempt, None, deadline, is_omitted=is_omitted)

    def _produce(
        self, attempt: _Attempt, body: bytes | None, deadline: float, *, is_omitted: bool = False
    ) -> bool:
        """Hands a check to Kafka's client. Output: whether that took it before the deadline."""
        group = attempt.row["producer_group"]
        headers = _headers(attempt, is_omitted)
        for key in self._keys.get(group, ())[:1]:
            headers += check_signatures(key, headers, body)

        while time.monotonic() < deadline:
            try:
                self._producer.produce(
                    p.check_topic(group, self._prefix),
                    value=body,
                    headers=headers,
                    on_delivery=attempt.report,
                )
                self._producer.poll(0)
                return True
            except BufferError:
                self._producer.poll(0.05)
            except KafkaException as error:  # refused by Kafka: it does not count
                attempt.report(error.args[0], None)
                return True
        return False


def _headers(attempt: _Attempt, is_body_omitted: bool) -> list[tuple[str, str | bytes | None]]:
    """Returns the check's own headers, in protocol order, and after them the user's."""
    row = attempt.row
    half = attempt.half
    offsets = ",".join(map(str, row["half_offsets"]))

    headers: list[tuple[str, str | bytes | None]] = [
        (p.PGROUP, row["producer_group"].encode()),
        (p.UNIQ_KEY, row["transaction_id"].encode()),
        (p.REAL_TOPIC, row["real_topic"].encode()),
        *(
            (name, half[column].encode())
            for name, column in ((p.KEYS, "keys"), (p.TAGS, "tags"))
            if half[column] is not None
        ),
        (p.HALF_QUEUE_ID, str(row["queue_id"]).encode()),
        (p.HALF_QUEUE_OFFSET, offsets.encode()),
        (p.CHECK_TIMES, str(row["check_times"]).encode()),
        (p.CHECK_ID, attempt.check_id.encode()),
        *([(p.BODY_OMITTED, b"true")] if is_body_omitted else ()),
    ]

    if half["raw_headers"] is not None:  # some are no text: all as they came
        users = [(header["key"], header["value"]) for header in half["raw_headers"]]
    else:
        users = [(key, value.encode()) for key, value in half["properties"] or ()]
    return headers + [(key, value) for key, value in users if p.is_property(key)]

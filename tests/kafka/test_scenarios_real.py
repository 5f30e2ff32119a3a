"""The cases named D.. of the rules' tables, through real Kafka, real Spark and a real lake.

Records carry times of their own (CreateTime topics) and epochs begin at instants handed in. Each
case has a half queue; cases of one timeline and of the same parameters share a lake.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from storage.verify.run import verify
from tests.support.cases import Case, Result
from tests.support.epoch_harness import EpochHarness
from tests.support.history import SILENT, Row
from tests.support.job import PATIENT, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter, half_headers
from tests.support.steps import world_of
from tests.support.wait import DEADLINE_S
from tests.unit.checker import (
    test_operations,
    test_operations_late,
    test_sets,
    test_sets_ended,
    test_timing,
    test_timing_rate,
)
from txlake import protocol as p

Unique = Callable[[str], str]
TABLES = (
    test_timing,
    test_timing_rate,
    test_operations,
    test_operations_late,
    test_sets,
    test_sets_ended,
)
PRODUCER_CLOCKS = ["0", "4102444800000"]  # 1970 and 2100: the producer's clock plays no part
SETTINGS = (
    "transaction_timeout_ms",
    "check_interval_ms",
    "check_max",
    "half_retention_ms",
    "check_rate_max",
    "late_end_policy",
    "orphan_operation_ttl_ms",
    "reject_after_immunity",
)


def _groups() -> list[list[Case]]:
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in (case for table in TABLES for case in table.CASES):
        if re.match(r"D\d\d\b", case.id):
            world = world_of(case.values[0])
            timeline = [(epoch["at"], epoch["behind_ms"]) for epoch in world["epochs"]]
            groups[repr((world["parameters"], timeline))].append(case)
    return list(groups.values())


class Play:
    """Some stories on one lake, each with a half queue of its own."""

    def __init__(self, stories: list[Result], settings: Settings) -> None:
        self.stories = stories
        self._settings = settings
        self._producer = Producer(
            {"bootstrap.servers": settings.kafka.bootstrap_servers, "log_level": 0}
        )

    def make_topics(self) -> None:
        kafka = self._settings.kafka
        admin = admin_client(kafka.bootstrap_servers)
        config = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        wide = [
            NewTopic(t, len(self.stories), config=config)
            for t in (kafka.half_topic, kafka.op_topic)
        ]
        groups = {
            half["producer_group"]
            for story in self.stories
            for epoch in story.world["epochs"]
            for half in epoch["halves"]
        }
        checks = [NewTopic(f"{kafka.check_topic_prefix}{group}", 1) for group in groups - {SILENT}]
        for future in admin.create_topics([*wide, *checks]).values():
            future.result(DEADLINE_S)

    def _send(self, topic: str, queue: int, value: bytes, headers: Any, at_ms: int) -> int:
        stored: list[int] = []
        self._producer.produce(
            topic,
            value,
            partition=queue,
            headers=headers,
            timestamp=at_ms,
            on_delivery=lambda error, message: stored.append(message.offset()),
        )
        assert self._producer.flush(DEADLINE_S) == 0
        return stored[0]

    def _send_half(self, queue: int, half: Row) -> None:
        extra = {p.BORN_TIMESTAMP: PRODUCER_CLOCKS[half["queue_offset"] % 2]}
        if half["immunity_ms"] is not None:
            extra[p.CHECK_IMMUNITY] = str(half["immunity_ms"] // 1_000)
        if "immunity" in half:
            extra[p.CHECK_IMMUNITY] = half["immunity"]
        if half["delay_level"] is not None:
            extra[p.DELAY] = str(half["delay_level"])
        if half["tran_size"] is not None:
            extra |= {p.TRAN_SIZE: str(half["tran_size"]), p.TRAN_SEQ: str(half["tran_seq"])}
        topic = ".." if half["error"] else half["real_topic"]
        headers = half_headers(half["transaction_id"], topic, half["producer_group"], **extra)
        half_topic = self._settings.kafka.half_topic
        at = self._send(half_topic, queue, b"body", headers, half["stored_at"])
        assert at == half["queue_offset"]

    def _send_operation(self, queue: int, operation: Row) -> None:
        headers = [(p.TAGS, "d"), (p.PGROUP, operation["producer_group"])]
        if operation["error"]:
            body = operation["body"].encode()
            headers.append((p.TRAN_TYPE, operation["tran_type"]))
        else:
            body = p.operation_body(operation["half_offsets"])
            headers.append((p.TRAN_TYPE, p.DECISION_CODES[operation["decision"]]))
        if operation["transaction_ids"]:
            headers.append((p.UNIQ_KEY, ",".join(operation["transaction_ids"])))
        op_topic = self._settings.kafka.op_topic
        at = self._send(op_topic, queue, body, headers, operation["stored_at"])
        assert at == operation["op_queue_offset"]

    def run(self, rig: EpochHarness) -> None:
        """Send and run one epoch of all stories after the other."""
        for epochs in zip(*(story.world["epochs"] for story in self.stories), strict=True):
            at, behind_ms = epochs[0]["at"], epochs[0]["behind_ms"]
            for queue, epoch in enumerate(epochs):
                for half in epoch["halves"]:
                    self._send_half(queue, half)
            if behind_ms:  # what lands behind that instant would count its age from it
                self._know_until(rig, at - behind_ms)
            for queue, epoch in enumerate(epochs):
                for operation in epoch["operations"]:
                    self._send_operation(queue, operation)
            rig.run(at, held_back=(self._settings.kafka.op_topic,) if behind_ms else ())

    def _know_until(self, rig: EpochHarness, at_ms: int) -> None:
        """Leave C at an instant: an epoch lands all there is, then operations that none lands."""
        KafkaWriter(self._settings).command(p.PING, "")
        assert rig.run(at_ms) is not None
        for queue in range(len(self.stories)):
            headers = list(p.operation_headers("g", p.UNKNOWN, ["later"]))
            self._send(self._settings.kafka.op_topic, queue, b"9", headers, at_ms)


def in_the_lake(rig: EpochHarness, queue: int) -> dict[str, list[Any]]:
    """Return what the lake says of a half queue."""

    def rows(table: str, *columns: str) -> list[Any]:
        found = [row for row in rig.lake.read(table).to_pylist() if row["queue_id"] == queue]
        return sorted((tuple(row[name] for name in columns) for row in found), key=repr)

    waiting = rig.epochs.state.waiting.to_pylist()
    delayed = rig.epochs.state.delayed.to_pylist()
    return {
        "outcomes": rows("outcomes", "queue_offset", "outcome", "cause", "op_queue_offset"),
        "conflicts": rows("conflicts", "op_queue_offset", "half_queue_offset", "reason"),
        "checks": rows("checks", "queue_offset", "check_times", "acknowledged"),
        "waiting": sorted({r["op_queue_offset"] for r in waiting if r["queue_id"] == queue}),
        "delayed": sorted(row["queue_offset"] for row in delayed if row["queue_id"] == queue),
        "unreadable": [offset for offset, error in rows("half", "queue_offset", "error") if error],
    }


def in_the_story(told: Result) -> dict[str, list[Any]]:
    """Return what the rules' table says of the same."""

    def rows(frame: str, *columns: str) -> list[Any]:
        return sorted((tuple(r[name] for name in columns) for r in told.rows(frame)), key=repr)

    ends = told.ends()
    due = rows("due", "queue_offset", "check_times", "producer_group")
    return {
        "outcomes": rows("outcomes", "queue_offset", "outcome", "cause", "op_queue_offset"),
        "conflicts": rows("conflicts", "op_queue_offset", "half_queue_offset", "reason"),
        "checks": [(offset, number, group != SILENT) for offset, number, group in due],
        "waiting": ends.get("waiting", []),
        "delayed": [half for half, became in ends.items() if str(became).endswith(", delayed")],
        "unreadable": [half for half, became in ends.items() if became == "UNREADABLE"],
    }


@pytest.mark.parametrize(
    "cases", _groups(), ids=lambda cases: "-".join(sorted({case.id[:3] for case in cases}))[:30]
)
def test_the_lake_says_what_the_vector_expects(
    broker: Broker, spark: SparkSession, tmp_path: Path, unique: Unique, cases: list[Case]
) -> None:
    stories = [Result(case.values[0]) for case in cases]
    parameters = stories[0].world["parameters"]
    values = {name: parameters[name] for name in SETTINGS}
    settings = settings_for(
        broker,
        tmp_path / "lake",
        unique("vectors"),
        transaction={**values, **PATIENT},
        security={"require_transaction_id": parameters["require_transaction_id"]},
        stream={"deliveries": "executors"},
    )
    play = Play(stories, settings)
    play.make_topics()
    with EpochHarness(spark, settings) as rig:
        rig.start()
        play.run(rig)
        for queue, (case, told) in enumerate(zip(cases, stories, strict=True)):
            assert told.ends() == case.values[1], case.id
            assert in_the_lake(rig, queue) == in_the_story(told), case.id
        report = verify(rig.lake)
        assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}

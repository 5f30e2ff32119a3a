"""The whole job, message by message: real broker, real Spark, real Delta."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.local_broker.broker import Broker
from storage.schemas import PUT
from tests.support.job import PATIENT, Job, running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.raw_record import write_raw_record
from tests.support.wait import DEADLINE_S
from txlake.protocol import (
    CHECK_MAX_TOPIC,
    COMMIT,
    CREATE_TOPIC,
    RESUME,
    ROLLBACK,
    UNDELIVERABLE_TOPIC,
)

Unique = Callable[[str], str]
pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session


def outcomes(job: Job) -> dict[tuple[int, int], tuple[str, str]]:
    return {
        (row["queue_id"], row["queue_offset"]): (row["outcome"], row["cause"])
        for row in job.rows("outcomes")
    }


def test_committed_messages_land_once_in_queue_order_and_rolled_back_ones_do_not(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("order"))
    with running(settings) as job:
        wire = KafkaWriter(settings)
        for n in range(10):
            queue = n % 2
            offset = wire.half(f"tx{n}", queue, b"body %d" % n, KEYS=f"k{n}", colour="red")
            wire.end(ROLLBACK if n == 3 else COMMIT, offset, queue=queue, ids=[f"tx{n}"])
        job.wait_for_rows("outcomes", 10)
        job.wait_for(lambda: len(job.messages("orders")) >= 9, "nine messages")
        messages = job.messages("orders")
        assert sorted(row["body"] for row in messages) == [
            b"body %d" % n for n in range(10) if n != 3
        ]
        for queue in {row["queue_id"] for row in messages}:
            offsets = [row["queue_offset"] for row in messages if row["queue_id"] == queue]
            assert offsets == list(range(len(offsets)))
            halves = [
                (row["half_queue_id"], row["half_queue_offset"])
                for row in messages
                if row["queue_id"] == queue
            ]
            for half_queue in (0, 1):
                of_queue = [offset for q, offset in halves if q == half_queue]
                assert of_queue == sorted(of_queue)
        assert {dict(row["properties"])["colour"] for row in messages} == {"red"}
        assert {row["keys"] for row in messages} == {f"k{n}" for n in range(10) if n != 3}
        assert outcomes(job)[(1, 1)] == ("ROLLED_BACK", "operation")


def test_headers_whose_names_are_no_text_keep_their_values_and_stop_nothing(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("names"))
    headers = [
        (b"TRAN_MSG", b"true"),
        (b"PGROUP", b"g"),
        (b"REAL_TOPIC", b"orders"),
        (b"caf\xe9", b"2"),
        (b"colour", b"red"),
    ]
    with running(settings) as job:
        for number in range(20):
            name = (b"UNIQ_KEY", b"tx%d" % number)
            write_raw_record(
                broker.bootstrap_servers, settings.kafka.half_topic, 0, b"body", [*headers, name]
            )

        wire = KafkaWriter(settings)
        for number in range(20):
            wire.end(COMMIT, number, ids=[f"tx{number}"])
        job.wait_for(lambda: len(job.messages("orders")) == 20, "twenty messages")

        for row in job.messages("orders"):
            assert row["properties"] == [("\ufffd", "2"), ("colour", "red")]
            assert row["raw_headers"] is None  # all are in columns


def test_a_record_that_cannot_be_read_is_a_row_with_its_reason_and_raw_bytes(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("bad"))
    with running(settings) as job:
        wire = KafkaWriter(settings)
        wire.send(settings.kafka.half_topic, 0, b"\x00\xff", [("PGROUP", b"\xff")], key=b"key")
        good = wire.half("good")
        wire.send(settings.kafka.op_topic, 0, b"abc", [("PGROUP", b"g"), ("TRAN_TYPE", b"8")])
        wire.end(COMMIT, 0, good)
        job.wait_for(lambda: job.messages("orders"), "the good message")
        (bad,) = [row for row in job.rows("half") if row["error"]]
        assert (bad["error"], bad["body"], bad["raw_key"]) == (
            "bad_producer_group",
            b"\x00\xff",
            b"key",
        )
        assert bad["raw_headers"] == [{"key": "PGROUP", "value": b"\xff"}]
        (bad_op,) = [row for row in job.rows("op") if row["error"]]
        assert (bad_op["error"], bad_op["body"]) == ("bad_offsets", b"abc")
        reasons = {row["op_queue_offset"]: row["reason"] for row in job.rows("conflicts")}
        assert reasons == {0: "unreadable_operation", 1: "unreadable_half"}


def test_an_unanswered_half_is_asked_check_max_times_and_then_given_up(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    name = unique("ask")
    settings = settings_for(
        broker,
        tmp_path / "lake",
        name,
        transaction={**PATIENT, "check_max": 3, "check_interval_ms": 500},
    )
    with running(settings) as job:
        wire = KafkaWriter(settings)
        _create_check_topic(broker, f"{name}-check-g")
        wire.half("silent", body=b"asked", colour="blue")
        wire.half("nobody", queue=1, group="no-topic")
        job.wait_for(lambda: job.messages(CHECK_MAX_TOPIC), "the copy of the discarded half")
        checks = [row for row in job.rows("checks") if row["producer_group"] == "g"]
        checks.sort(key=lambda row: row["sent_at"])
        assert [row["check_times"] for row in checks] == [1, 2, 3]
        assert all(row["acknowledged"] for row in checks)
        plans = [row for row in job.rows("epochs") if row["state"] == "planned"]
        asked = [row for row in plans if row["asked_at"] is not None]
        assert asked, "nobody asked for Kafka's end before a micro-batch was cut"
        for plan in asked:
            assert plan["asked_at"] <= plan["epoch_at"]
            ends = [r for r in plan["ranges"] if r["asked_end_offset"] is not None]
            assert all(r["asked_end_offset"] <= r["to_offset"] for r in ends)
        # It is asked about until it is ended, whenever it was stored.
        job.wait_for(lambda: _acknowledged(job, "no-topic"), "a check that nobody can get")
        assert _acknowledged(job, "no-topic") == {False}
        (copy,) = job.messages(CHECK_MAX_TOPIC)
        assert (copy["body"], copy["reason"]) == (b"asked", "check_max")
        assert copy["real_topic"] == "orders"
        records = _consume(broker, f"{name}-check-g", 3)
        ids = [dict(record.headers())["CHECK_ID"] for record in records]
        assert ids == [b"0-0-0-1", b"0-0-0-2", b"0-0-0-3"]
        assert records[0].value() == b"asked"
        assert dict(records[0].headers())["colour"] == b"blue"

        wire.end(COMMIT, 0, FROM_CHECK="true", CHECK_ID="0-0-0-3")
        job.wait_for(lambda: job.messages("orders"), "the late end")
        ends = [row for row in job.rows("outcomes") if row["queue_id"] == 0]
        ends.sort(key=lambda row: row["epoch"])
        assert [(row["outcome"], row["cause"]) for row in ends] == [
            ("DISCARDED", "check_max"),
            ("COMMITTED", "late_end"),
        ]


def test_a_discarded_half_is_rearmed_and_an_undeliverable_message_resumed(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(
        broker,
        tmp_path / "lake",
        unique("admin"),
        transaction={"check_max": 0},
        topics={"auto_create_topics": False},
    )
    with running(settings) as job:
        wire = KafkaWriter(settings)
        offset = wire.half("a", topic="closed")
        job.wait_for(lambda: job.messages(CHECK_MAX_TOPIC), "the discard")
        wire.command(RESUME, f"half:0-{offset}")
        job.wait_for(lambda: job.rows("admin") and job.rows("admin")[-1], "the command")
        wire.end(COMMIT, offset)
        (waiting,) = job.wait_for(lambda: job.messages(UNDELIVERABLE_TOPIC), "undeliverable")
        assert waiting["reason"] == "topic_not_allowed"
        wire.command(CREATE_TOPIC, "topic:closed:2")
        wire.command(RESUME, "undeliverable:0")
        (message,) = job.wait_for(lambda: job.messages("closed"), "the resumed message")
        assert message["body"] == b"body"
        results = {row["target"]: row["result"] for row in job.rows("admin") if row["target"]}
        assert results == {
            f"half:0-{offset}": "rearmed",
            "topic:closed:2": "created",
            "undeliverable:0": "resumed",
        }
        # It is discarded once more if its COMMIT came later than a second behind the command.
        discards = [row for row in job.rows("outcomes") if row["outcome"] == "DISCARDED"]
        assert len(job.messages(CHECK_MAX_TOPIC)) == len(discards) <= 2


def _has_landed(job: Job, offset: int) -> bool:
    """Return whether a half of queue 0 has landed: milliseconds after it was stored."""
    return any(row["queue_offset"] == offset for row in job.rows("half"))


def test_an_operation_without_an_id_ends_no_transaction(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("nameless"))
    with running(settings) as job:
        wire = KafkaWriter(settings)
        offset = wire.half("a")
        headers = [("PGROUP", b"g"), ("TRAN_TYPE", b"12")]  # in the wrong op queue, it may be
        wire.send(settings.kafka.op_topic, 0, b"%d," % offset, headers)
        wire.end(COMMIT, offset)
        wire.half("b")
        slow = wire.half("c", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
        headers = [("PGROUP", b"g"), ("TRAN_TYPE", b"12"), ("ACTOR", b"ada")]
        wire.send(settings.kafka.op_topic, 0, b"%d," % (offset + 1), headers)
        job.wait_for(lambda: _has_landed(job, slow), "the half in the lake")
        wire.end(ROLLBACK, slow)
        wire.end(COMMIT, slow, FROM_CHECK="true")
        job.wait_for(lambda: len(job.rows("outcomes")) == 3, "three ends")
        assert sorted(row["reason"] for row in job.rows("conflicts")) == [
            "after_immunity",
            "no_transaction_id",
        ]
        ends = {
            row["transaction_id"]: (row["outcome"], row["cause"]) for row in job.rows("outcomes")
        }
    assert ends == {
        "a": ("COMMITTED", "operation"),
        "b": ("ROLLED_BACK", "operator"),
        "c": ("COMMITTED", "check_answer"),
    }


def test_delayed_messages_are_delivered_once_and_never_early(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(
        broker, tmp_path / "lake", unique("delay"), delay={"levels": "1s 2s 3s"}
    )
    with running(settings) as job:
        wire = KafkaWriter(settings)
        offset = wire.half("a", DELAY="2")
        wire.end(COMMIT, offset)
        wire.send(
            settings.kafka.schedule_topic,
            0,
            b"later",
            [("REAL_TOPIC", b"orders"), ("DELAY", b"99")],
        )
        wire.send(settings.kafka.schedule_topic, 3, b"now", [("REAL_TOPIC", b"orders")])
        job.wait_for(lambda: len(job.messages("orders")) == 3, "three messages")
        stored = {row["queue_id"]: row["stored_at"] for row in job.rows("schedule")}
        delayed = {
            (row["source"], row["queue_id"]): row["deliver_at"]
            for row in job.rows("delayed")
            if row["change"] == PUT
        }
        assert ("half", 0) in delayed
        assert ("schedule", 3) not in delayed, "what is due at once never waits"
        # A slow machine lands the record when it is already due: it does not wait then.
        assert delayed.get(("schedule", 0), stored[0] + 3_000) == stored[0] + 3_000
        due_at = {
            ("half", 0): delayed[("half", 0)],
            ("schedule", 0): stored[0] + 3_000,
            ("schedule", 3): stored[3],
        }
        for row in job.messages("orders"):
            assert row["stored_at"] >= due_at[row["source"], row["half_queue_id"]]
        (outcome,) = job.rows("outcomes")
        assert delayed[("half", 0)] == outcome["decided_at"] + 2_000
        assert outcome["real_queue_offset"] is None
        assert sorted(row["action"] for row in job.rows("deliveries")) == ["DELIVERED"] * 3


def test_all_messages_of_one_transaction_are_delivered_in_one_epoch(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("set"))
    with running(settings) as job:
        wire = KafkaWriter(settings)
        for seq in (1, 0, 1):  # the second 1 is a duplicate
            place = {"TRAN_SIZE": "2", "TRAN_SEQ": str(seq)}
            wire.half("set", body=b"part %d" % seq, topic=f"t{seq}", **place)
        wire.end(COMMIT, 1, ids=["set"])
        job.wait_for_rows("outcomes", 3)
        job.wait_for(lambda: job.messages("t0") and job.messages("t1"), "both messages")
        assert outcomes(job) == {
            (0, 0): ("COMMITTED", "operation"),
            (0, 1): ("COMMITTED", "operation"),
            (0, 2): ("ROLLED_BACK", "duplicate_in_set"),
        }
        (first,), (second,) = job.messages("t0"), job.messages("t1")
        assert (first["body"], second["body"]) == (b"part 0", b"part 1")
        assert first["epoch"] == second["epoch"]


def _acknowledged(job: Job, group: str) -> set[bool]:
    """Return whether Kafka has confirmed the checks of a group."""
    return {row["acknowledged"] for row in job.rows("checks") if row["producer_group"] == group}


def _create_check_topic(broker: Broker, topic: str) -> None:
    from confluent_kafka.admin import NewTopic

    admin = admin_client(broker.bootstrap_servers)
    for future in admin.create_topics([NewTopic(topic, 1)]).values():
        future.result(DEADLINE_S)


def _consume(broker: Broker, topic: str, count: int) -> list:  # type: ignore[type-arg]
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "look"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        records = consumer.consume(count, timeout=DEADLINE_S)
        assert len(records) == count, f"{len(records)} of {count} records of {topic}"
        return list(records)
    finally:
        consumer.close()

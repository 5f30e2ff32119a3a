"""The operator's command line against a real broker and the real job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from pipelines.cli.main import main
from pipelines.errors import LostInputError, StartError
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.local_broker.broker import Broker
from pipelines.operate import records as operator_records
from tests.support.job import Job, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.operator import conf_of
from txlake.protocol import CHECK_MAX_TOPIC, COMMIT, PING, UNDELIVERABLE_TOPIC

NAME = "operator"
WAIT = ("--wait-s", "240")
IMMUNE = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"}
FAR_AHEAD = str(4_000_000_000_000)


@pytest.fixture(scope="module")
def job(
    broker: Broker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Job]:
    """One job for all tests here: it asks nobody, and makes no topic by itself."""
    settings = settings_for(
        broker,
        tmp_path_factory.mktemp("operator") / "lake",
        NAME,
        transaction={"check_max": 0},
        topics={"auto_create_topics": False},
    )
    with running(settings) as job:
        yield job


@pytest.fixture(scope="module")
def wire(job: Job) -> KafkaWriter:
    return KafkaWriter(job.settings)


@pytest.fixture(scope="module")
def conf(job: Job, tmp_path_factory: pytest.TempPathFactory) -> str:
    return conf_of(job.settings, tmp_path_factory.mktemp("conf"))


def run(conf: str, *words: str, code: int = 0) -> Any:
    """Run a command with JSON output; a refusal's sentence stands after it."""
    is_write = words[1] not in ("explain", "list")
    extra = ("--reason", "the customer called", "--actor", "ada") if is_write else ()
    result = CliRunner().invoke(main, [*words, *extra, "--conf", conf, "-o", "json"])
    assert result.exit_code == code, (result.output, result.exception)
    return json.loads(result.stdout)


def explain(conf: str, target: str) -> dict[str, Any]:
    (story,) = run(conf, "tx", "explain", target)["transactions"]
    return dict(story)


def codes(waits: list[dict[str, Any]]) -> list[str]:
    return [wait["code"] for wait in waits]


def wait_for_half(job: Job, transaction_id: str) -> None:
    """Wait until a half's epoch is committed."""

    def is_there() -> bool:
        rows = job.rows("half", ["transaction_id", "epoch"])
        epochs = [row["epoch"] for row in rows if row["transaction_id"] == transaction_id]
        return bool(epochs and job.plans and job.plans[-1].epoch >= epochs[0])

    job.wait_for(is_there, f"half {transaction_id}")


@pytest.fixture(scope="module")
def orders(job: Job, conf: str) -> None:
    """Topic `orders`, made by the operator."""
    told = run(conf, "topic", "create", "orders", "--queues", "2", *WAIT)
    assert told["result"] == "created"


@pytest.mark.usefixtures("orders")
def test_an_operator_ends_transactions_by_the_rules_of_all(
    job: Job, wire: KafkaWriter, conf: str
) -> None:
    first = wire.half("commit-me", queue=1, KEYS="order-1", **IMMUNE)
    second = wire.half("roll-me-back", queue=1, **IMMUNE)
    wait_for_half(job, "roll-me-back")
    assert codes(explain(conf, "commit-me")["waits"]) == ["no_end", "immune"]

    told = run(conf, "tx", "commit", f"1-{first}", *WAIT)
    assert told["expected"].startswith("COMMITTED, cause operator; delivered to topic orders")
    assert told["result"] == "COMMITTED, cause operator"
    story = explain(conf, "commit-me")
    assert (story["status"], story["decisions"][0]["cause"]) == ("COMMITTED", "operator")
    assert story["messages"][0]["delivered"]["topic"] == "orders"
    (op,) = [event for event in story["events"] if event["event"] == "operation"]
    assert (op["actor"], op["reason"], op["transaction_ids"]) == (
        "ada",
        "the customer called",
        ["commit-me"],
    )
    (message,) = job.messages("orders")
    assert message["keys"] == "order-1"

    again = CliRunner().invoke(
        main, ["tx", "commit", f"1-{first}", "--reason", "again", "--conf", conf, *WAIT]
    )
    assert again.exit_code == 1
    assert "as the lake stands" in again.stdout and ": duplicate_end: " in again.stdout
    assert again.stderr == "Error: it changed nothing: duplicate_end\n"

    assert run(conf, "tx", "rollback", f"1-{second}", *WAIT)["result"] == (
        "ROLLED_BACK, cause operator"
    )
    assert explain(conf, f"1-{second}")["status"] == "ROLLED_BACK"
    assert run(conf, "tx", "explain", "--keys", "order-1")[0]["target"] == f"half:1-{first}"


@pytest.mark.usefixtures("orders")
def test_a_discarded_half_is_listed_resumed_and_ended(
    job: Job, wire: KafkaWriter, conf: str
) -> None:
    offset = wire.half("silent", group="silent", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
    job.wait_for(lambda: job.messages(CHECK_MAX_TOPIC), "the discard")
    job.wait_for(lambda: run(conf, "dead", "list", "--group", "silent"), "its epoch's commit")
    (row,) = run(conf, "dead", "list", "--group", "silent")
    assert (row["target"], row["reason"], row["transaction_id"]) == (
        f"half:0-{offset}",
        "check_max",
        "silent",
    )
    assert codes(explain(conf, "silent")["waits"]) == ["no_end", "discarded"]

    told = run(conf, "dead", "resume", f"half:0-{offset}", *WAIT)
    assert (told["expected"], told["result"]) == (
        "rearmed: the half is pending again",
        "rearmed",
    )
    assert run(conf, "tx", "commit", f"0-{offset}", *WAIT)["result"].startswith("COMMITTED")
    assert run(conf, "dead", "list", "--group", "silent") == []
    story = explain(conf, "silent")
    assert story["status"] == "COMMITTED"
    (command,) = [event for event in story["events"] if event["event"] == "command"]
    assert (command["actor"], command["result"]) == ("ada", "rearmed")
    assert story["messages"][0]["delivered"]["topic"] == "orders"


def test_an_undeliverable_message_is_listed_and_resumed(
    job: Job, wire: KafkaWriter, conf: str
) -> None:
    offset = wire.half("stuck", topic="closed", group="stuck")
    wire.end(COMMIT, offset, group="stuck")
    job.wait_for(lambda: job.messages(UNDELIVERABLE_TOPIC), "the message")
    job.wait_for(lambda: run(conf, "dead", "list", "--topic", "closed"), "its epoch's commit")
    (row,) = run(conf, "dead", "list", "--topic", "closed")
    assert (row["target"], row["reason"]) == ("undeliverable:0", "topic_not_allowed")
    (wait,) = explain(conf, "stuck")["messages"][0]["waits"]
    assert wait["code"] == "undeliverable"

    told = CliRunner().invoke(
        main,
        ["dead", "resume", "undeliverable:0", "--reason", "try", "--conf", conf, *WAIT],
    )
    assert (told.exit_code, told.stderr) == (1, "Error: it changed nothing: still_undeliverable\n")
    run(conf, "topic", "create", "closed", "--queues", "2", *WAIT)
    told_again = run(conf, "dead", "resume", "undeliverable:0", *WAIT)
    assert "delivered to topic closed, queue" in told_again["expected"]
    assert told_again["result"] == "resumed"
    assert run(conf, "dead", "list", "--topic", "closed") == []
    story = explain(conf, "stuck")
    assert story["messages"][0]["delivered"]["topic"] == "closed"
    assert [e["event"] for e in story["events"]][-2:] == ["command", "delivered"]
    assert [row["body"] for row in job.messages("closed")] == [b"body"]


@pytest.mark.usefixtures("orders")
def test_delayed_messages_are_listed_and_cancelled(job: Job, wire: KafkaWriter, conf: str) -> None:
    offset = wire.half("later", group="later", DELIVER_AT=FAR_AHEAD)
    wire.end(COMMIT, offset, group="later")
    headers = [("REAL_TOPIC", b"orders"), ("DELAY", b"18"), ("KEYS", b"reminder")]
    scheduled = wire.send(job.settings.kafka.schedule_topic, 17, b"later", headers)
    job.wait_for(lambda: run(conf, "schedule", "list")["count"] == 2, "two delayed messages")
    listed = run(conf, "schedule", "list")
    assert [(row["level"], row["waiting"]) for row in listed["levels"]] == [(18, 1), (None, 1)]
    targets = [row["target"] for row in listed["messages"]]
    assert targets == [f"schedule:17-{scheduled}", f"half:0-{offset}"]
    assert codes(explain(conf, targets[0])["messages"][0]["waits"]) == ["delayed"]
    for target in targets:
        assert run(conf, "schedule", "cancel", target, *WAIT)["result"] == "cancelled"
        story = explain(conf, target)
        assert codes(story["messages"][0]["waits"]) == ["cancelled"]
        assert "by ada, because: the customer called" in story["messages"][0]["waits"][0]["text"]
    assert explain(conf, targets[0])["status"] == "CANCELLED"
    assert run(conf, "schedule", "list")["count"] == 0


@pytest.mark.usefixtures("orders")
def test_a_dry_run_writes_nothing(job: Job, wire: KafkaWriter, conf: str) -> None:
    kafka = KafkaAdmin(job.settings, job.settings.kafka.topics())
    offset = wire.half("dry", **IMMUNE)
    wait_for_half(job, "dry")
    before = kafka.end_offsets(kafka.partitions())
    for words in (
        ("tx", "commit", f"0-{offset}"),
        ("tx", "rollback", f"0-{offset}"),
        ("dead", "resume", f"half:0-{offset}"),
        ("schedule", "cancel", f"half:0-{offset}"),
        ("topic", "create", "dry", "--queues", "1"),
    ):
        told = run(conf, *words, "--dry-run", *WAIT)
        assert (told["offset"], told["result"]) == (None, None), words
    assert kafka.end_offsets(kafka.partitions()) == before
    assert explain(conf, "dry")["status"] == "PENDING"


def test_without_waiting_a_command_says_where_it_stands(job: Job, conf: str) -> None:
    told = run(conf, "topic", "create", "unwaited", "--queues", "1")
    assert told["result"] is None
    job.wait_for(
        lambda: told["offset"] in [r["queue_offset"] for r in job.rows("admin") if r["actor"]],
        "the command",
    )


def test_nothing_is_written_to_another_cluster_or_a_missing_partition(job: Job) -> None:
    kafka = job.settings.kafka
    record = operator_records.command(PING, "", "ada", "why")
    with pytest.raises(LostInputError, match="the lake was made from another"):
        operator_records.write(kafka, record, "another")
    half = {"queue_id": 99, "queue_offset": 0, "producer_group": "g", "transaction_id": "t"}
    operation = operator_records.operation(half, COMMIT, "ada", "why")
    with pytest.raises(StartError, match=r"no partition 99 .* nothing was written"):
        operator_records.write(kafka, operation, "")

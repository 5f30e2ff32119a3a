"""A lake is put back from a backup that was taken under traffic, and its job goes on from Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from pipelines.errors import LostInputError
from pipelines.local_broker.broker import Broker
from pipelines.publish.errors import PublishError
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.verify.run import verify
from tests.support.job import Job, refusal, running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.operator import conf_of, said
from tests.support.publishers import consumed, publish_all
from tests.support.wait import DEADLINE_S
from txlake import Consumer
from txlake.protocol import COMMIT, ROLLBACK

Unique = Callable[[str], str]


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """The job uses the run's one Spark session."""


def at(settings: Settings, path: Path) -> Settings:
    """Returns the settings of the same job with its lake in another place."""
    return replace(settings, lake=replace(settings.lake, path=str(path)))


def send(wire: KafkaWriter, *names: str) -> None:
    """Sends transactions: those whose name begins with `no` are rolled back."""
    for name in names:
        half = wire.half(name, body=name.encode())
        wire.end(ROLLBACK if name.startswith("no") else COMMIT, half)


def bodies(job: Job) -> list[str]:
    return sorted(row["body"].decode() for row in job.messages("orders"))


def destination(settings: Settings) -> tuple[str, str]:
    """Returns the broker and the topic that orders are published to."""
    topic = settings.publish["main"].destination.format(topic="orders")
    return settings.kafka.bootstrap_servers, topic


def consume(path: str) -> list[str]:
    """Reads what a group has not read yet, and commits it."""
    with Consumer(path, "points", ["orders"]) as consumer:
        messages = consumer.poll(timeout_s=DEADLINE_S)
        found = sorted(message.body.decode() for message in messages)
        while more := consumer.poll(timeout_s=1.0):
            found += [message.body.decode() for message in more]
        consumer.commit()
    return sorted(found)


def test_a_lake_put_back_from_a_backup_of_a_running_job_goes_on_from_kafka_and_loses_nothing(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    name = unique("backup")
    publisher = {"destination": f"{name}-{{topic}}", "progress_topic": f"{name}-progress"}
    settings = settings_for(
        broker,
        tmp_path / "lake",
        name,
        topics={"default_queue_count": 1},
        publish={"main": publisher},
    )
    section = ["[publish.main]", *(f'{key} = "{value}"' for key, value in publisher.items())]
    conf = conf_of(settings, tmp_path, *section)
    is_over = threading.Event()

    with running(settings) as job:
        wire = KafkaWriter(settings)
        send(wire, "a", "no-1", "b")
        job.wait_for(lambda: bodies(job) == ["a", "b"], "the first messages")
        assert consume(settings.lake.path) == ["a", "b"]

        names = [f"t{number}" for number in range(40)]

        def traffic() -> None:
            for name in names:
                send(wire, name)
            is_over.set()

        sender = threading.Thread(target=traffic)
        sender.start()
        target, number = tmp_path / "copy-0", 0
        while not is_over.is_set() or number == 0:
            target = tmp_path / f"copy-{number}"
            said("backup", str(target), "--conf", conf)  # the job runs, epoch after epoch
            number += 1
        sender.join()

        send(wire, "later", "no-2")  # after the last backup
        wire.half("open")  # nobody ends it, and nobody answers
        expected = sorted(["a", "b", *names, "later"])
        job.wait_for(lambda: bodies(job) == expected, "all messages")
        assert publish_all(settings) == len(expected)
        before = {row["transaction_id"]: row["outcome"] for row in job.rows("outcomes")}

    for copy in range(number):
        report = verify(Lake(str(tmp_path / f"copy-{copy}")))
        assert [f.invariant.name for f in report.findings if f.violations] == []
    copied = Lake(str(target)).max_value("epochs", "epoch")
    assert copied < Lake(settings.lake.path).max_value("epochs", "epoch")

    with pytest.raises(PublishError, match="the lake was put back from an older copy"):
        publish_all(at(settings, target))

    # The same Kafka, the older lake: what it lacks is landed again and decided again.
    with running(at(settings, target)) as job:
        job.wait_for(lambda: bodies(job) == expected, "all messages again")
        job.wait_for_rows("half", len(expected) + 3)
        after = {row["transaction_id"]: row["outcome"] for row in job.rows("outcomes")}
        ended = {name for name, outcome in before.items() if outcome != "DISCARDED"}
        assert {name: after.get(name) for name in ended} == {name: before[name] for name in ended}
        # What is published is compared with the lake, and then a publisher goes on behind it.
        with pytest.raises(PublishError):
            publish_all(at(settings, target))
        restored = conf_of(at(settings, target), tmp_path, *section)
        adopt = ("publish", "adopt", "--position", "published", "--reason", "put back")
        said(*adopt, "--conf", restored)
        assert publish_all(at(settings, target)) == 0
        # Its position is that of the backup: nothing is passed over, a message can come again.
        assert set(consume(str(target))) == {*names, "later"}
        send(KafkaWriter(settings), "new")
        job.wait_for(lambda: "new" in bodies(job), "a new message")
    assert len(bodies(job)) == len(expected) + 1
    assert publish_all(at(settings, target)) == 1
    published = [message.value().decode() for message in consumed(*destination(settings))]
    assert sorted(published) == sorted([*expected, "new"])


def test_a_backup_that_is_older_than_kafkas_retention_is_refused_and_a_loss_can_be_accepted(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("old-backup"))
    copy = at(settings, tmp_path / "copy")
    conf = conf_of(settings, tmp_path)

    with running(settings, verifies=False) as job:
        wire = KafkaWriter(settings)
        send(wire, "a")
        job.wait_for(lambda: bodies(job) == ["a"], "the message")
        said("backup", copy.lake.path, "--conf", conf)
        send(wire, "b", "c")
        job.wait_for(lambda: bodies(job) == ["a", "b", "c"], "the messages after it")

    admin = admin_client(settings.kafka.bootstrap_servers)
    for topic in (settings.kafka.half_topic, settings.kafka.op_topic):  # as retention does
        for future in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
            future.result(DEADLINE_S)

    error = refusal(copy)
    assert isinstance(error, LostInputError)
    assert "Kafka no longer has offsets 1 to 2" in str(error)

    said("losses", "accept", "--conf", conf_of(copy, tmp_path), "--reason", "old backup")
    with running(copy) as job:
        send(KafkaWriter(settings), "d")
        job.wait_for(lambda: bodies(job) == ["a", "d"], "what came later")

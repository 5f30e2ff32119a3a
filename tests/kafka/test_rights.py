"""With an authorizer each role does its work and nothing else; a missing right is named at once.

The rights are those that `txlake acl print` prints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from pyspark.sql import SparkSession

from pipelines.cli.main import main
from pipelines.cli.status import facts_of
from pipelines.errors import JobError, KafkaRefusedError, StartError
from pipelines.health.kafka import members_of, topic_lags
from pipelines.operate.records import command, operation, write
from pipelines.settings import Settings
from storage.lake.progress import read_progress
from tests.support.job import Job, running, settings_for
from tests.support.producers import CommitsWhenAsked, options_of
from tests.support.rights_broker import RightsBroker
from tests.support.wait import DEADLINE_S, wait_until
from txlake import (
    Consumer,
    LocalTransactionState,
    Message,
    Producer,
    SendError,
    TransactionProducer,
    TxlakeError,
)
from txlake.protocol import COMMIT, MAINTAIN

NAME = "roles"  # of the topics
USERS = (
    "shop",
    "txlake-job",
    "txlake-operator",
    "txlake-consumer",
    "txlake-metrics",
    "poor",
    "poor-seer",
    "poor-maker",
    "poor-group",
)
TOPICS = {kind: f"{NAME}-{kind}" for kind in ("half", "op", "schedule", "admin")}
TOPICS["check"] = f"{NAME}-check-shop"
# What each user may do, said a second time: by topic.
MAY_WRITE = {
    "shop": {"half", "op", "schedule"},
    "txlake-job": {"admin", "check"},
    "txlake-operator": {"op", "admin"},
    "txlake-consumer": set(),
    "txlake-metrics": set(),
}
MAY_READ = {
    "shop": {"check"},
    "txlake-job": {"half", "op", "schedule", "admin"},
    "txlake-operator": {"half", "op", "schedule", "admin"},
    "txlake-consumer": set(),
    "txlake-metrics": set(),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RightsBroker]:
    with RightsBroker(tmp_path_factory.mktemp("rights"), USERS) as started:
        yield started


def settings_of(broker: RightsBroker, lake: Path, user: str, name: str = NAME) -> Settings:
    kafka = {
        "bootstrap_servers": broker.roles_server,
        "client": {
            key: value for key, value in broker.client(user).items() if key != "sasl.password"
        },
    }
    secret = lake.parent / "password"
    secret.write_text(broker.client(user)["sasl.password"])
    kafka["client"]["sasl.password_file"] = str(secret)  # type: ignore[index]
    return settings_for(broker, lake, name, kafka=kafka)


def printed(broker: RightsBroker, lake: Path, *options: str, name: str = NAME) -> list[Any]:
    """Return the rights that `txlake acl print` prints for a lake."""
    rows = json.loads(acl_print(broker, lake, "-o", "json", *options, name=name))
    assert rows
    return list(rows)


def acl_print(broker: RightsBroker, lake: Path, *options: str, name: str = NAME) -> str:
    """Return what `txlake acl print` prints."""
    conf = lake.parent / "acl.toml"
    conf.write_text(
        f'[lake]\npath = "{lake}"\n[kafka]\nbootstrap_servers = "{broker.roles_server}"\n'
        + "".join(f'{kind}_topic = "{name}-{kind}"\n' for kind in TOPICS if kind != "check")
        + f'check_topic_prefix = "{name}-check-"\n'
    )
    words = ["acl", "print", "--conf", str(conf), *options]
    return CliRunner().invoke(main, words, catch_exceptions=False).output


def test_each_role_does_its_work_and_nothing_else(
    guarded: RightsBroker, tmp_path: Path, spark: SparkSession
) -> None:
    lake = tmp_path / "lake"
    guarded.give(printed(guarded, lake, "--group", "shop"))
    settings = settings_of(guarded, lake, "txlake-job")
    with running(settings, verifies=False) as job:
        produce_all(guarded, settings, job)
        cluster_id = job.plans[-1].cluster_id
        operator = settings_of(guarded, lake, "txlake-operator")
        write(operator.kafka, command(MAINTAIN, None, "ada", "to see"), cluster_id)
        job.wait_for(lambda: any(row["command"] == MAINTAIN for row in job.rows("admin")), "it")
        held = next(row for row in job.rows("half") if row["real_topic"] == "held")
        write(operator.kafka, operation(held, COMMIT, "ada", "asked"), cluster_id)
        job.wait_for(lambda: job.messages("held"), "what the operator commits")
        for user in ("txlake-operator", "txlake-metrics"):
            seen = settings_of(guarded, lake, user)
            assert len(topic_lags(seen, read_progress(job.lake).last)) == 4
            assert list(members_of(seen.kafka, ["shop"])) == ["shop"]
            facts = facts_of(job.lake, seen)
            assert (facts.kafka_error, facts.start_error) == (None, None)
            assert facts.drivers is not None and facts.drivers.active == job.driver.owner
        consumed(str(lake))
    admin = KafkaProducer({"bootstrap.servers": guarded.bootstrap_servers})
    for topic in TOPICS.values():  # so that whoever may read finds something
        admin.produce(topic, b"x", partition=0)
    assert admin.flush(DEADLINE_S) == 0
    allowed = {user: ({*MAY_WRITE[user]}, {*MAY_READ[user]}) for user in MAY_WRITE}
    assert {user: found(guarded, user) for user in MAY_WRITE} == allowed


def produce_all(guarded: RightsBroker, settings: Settings, job: Job) -> None:
    """Send what a producer group sends; a check ends the first transaction."""
    server, client = guarded.roles_server, guarded.client("shop")
    options = options_of(settings)
    with TransactionProducer(
        server, "shop", CommitsWhenAsked(), options=options, client=client
    ) as producer:
        producer.send_message_in_transaction(Message("orders", b"one"), None)
        job.wait_for(lambda: len(job.messages("orders")) == 1, "the committed message")
    assert [row["cause"] for row in job.rows("outcomes")] == ["check_answer"]
    with TransactionProducer(server, "shop", options=options, client=client) as producer:
        producer.send_message_in_transaction(
            Message("held", b"two"), execute=lambda *_: LocalTransactionState.UNKNOWN
        )
    with Producer(server, options=options, client=client) as plain:
        plain.send(Message("later", b"three"))
    job.wait_for(lambda: job.messages("later"), "the message without a transaction")


def consumed(lake: str) -> None:
    """Read as a consumer does: it has no client of Kafka."""
    with Consumer(lake, "readers", ["orders"]) as consumer:
        assert [message.body for message in consumer.poll(timeout_s=DEADLINE_S)] == [b"one"]
        consumer.commit()


def found(guarded: RightsBroker, user: str) -> tuple[set[str], set[str]]:
    """Return which topics Kafka lets a user write, and read; each is tried."""
    config = {"bootstrap.servers": guarded.roles_server, **guarded.client(user), "log_level": 0}
    errors: dict[str, KafkaError | None] = {}
    producer = KafkaProducer({**config, "message.timeout.ms": 60_000})
    for kind, topic in TOPICS.items():
        try:
            producer.produce(
                topic,
                b"x",
                partition=0,
                on_delivery=lambda error, _, kind=kind: errors.update({kind: error}),
            )
        except KafkaException as error:
            errors[kind] = error.args[0]
    producer.flush(DEADLINE_S)
    assert set(errors) == set(TOPICS)
    assert {error.code() for error in errors.values() if error} <= REFUSED
    can_write = {kind for kind, error in errors.items() if error is None}
    return can_write, {kind for kind, topic in TOPICS.items() if can_read(config, topic)}


REFUSED = {KafkaError.TOPIC_AUTHORIZATION_FAILED}


def can_read(config: dict[str, Any], topic: str) -> bool:
    """Return whether Kafka gives a record of a topic, all of which have some."""
    consumer = KafkaConsumer({**config, "group.id": "nobody's", "enable.auto.commit": False})
    seen = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].error
    if seen is not None:  # it may not even know of it
        consumer.close()
        assert seen.code() in REFUSED
        return False
    consumer.assign([TopicPartition(topic, 0, 0)])
    told: list[KafkaError | None] = []

    def is_told() -> bool:  # that it may not use the group is told, too
        message = consumer.poll(1.0)
        if message is not None and (message.error() is None or message.error().code() in REFUSED):
            told.append(message.error())
        return bool(told)

    try:
        wait_until(is_told, f"an answer about {topic}")
        return told[0] is None
    finally:
        consumer.close()


def without(rows: list[Any], kind: str, operation: str, instead: tuple[str, ...] = ()) -> list[Any]:
    """Return rights without one operation on one resource, whose name ends so."""
    return [
        {**row, "operations": [*(set(row["operations"]) - {operation}), *instead]}
        if row["name"].endswith(kind)
        else row
        for row in rows
    ]


# user -> which of the job's rights is missing, and the words that name it
POOR_JOBS: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "poor": (
        lambda rows: [row for row in rows if not row["name"].endswith("-half")],
        "refuses this client READ and DESCRIBE_CONFIGS on topic {name}-half;",
    ),
    "poor-seer": (
        lambda rows: without(rows, "-half", "READ", ("DESCRIBE",)),
        "refuses this client READ on topic {name}-half;",
    ),
    "poor-maker": (
        lambda rows: without(rows, "-op", "CREATE"), "refuses this client CREATE on topic {name}-op"
    ),
    "poor-group": (
        lambda rows: [row for row in rows if row["kind"] != "group"],
        "allow the job READ and DESCRIBE on the group",
    ),
}  # fmt: skip


@pytest.mark.parametrize("user", list(POOR_JOBS))
def test_a_job_without_a_right_ends_with_one_sentence_that_names_it(
    guarded: RightsBroker, tmp_path: Path, spark: SparkSession, user: str
) -> None:
    name, lake = f"of-{user}", tmp_path / "lake"
    take, said = POOR_JOBS[user]
    words = ("--role", "job", "--principal", f"job=User:{user}")
    guarded.give(take(printed(guarded, lake, *words, name=name)))
    job = Job(settings_of(guarded, lake, user, name))
    job.begin()
    job.wait_until_dead()
    assert isinstance(job.error, (KafkaRefusedError, StartError)), job.error
    assert said.format(name=name) in str(job.error)
    assert "\n" not in str(job.error)


def test_a_producer_or_an_operator_without_a_right_is_told_which(
    guarded: RightsBroker, tmp_path: Path, spark: SparkSession
) -> None:
    lake, name = tmp_path / "lake", "of-others"
    Job(settings_for(guarded, lake, name)).prepare_topics()
    metrics = printed(
        guarded, lake, "--role", "metrics", "--principal", "metrics=User:poor", name=name
    )
    seer = settings_of(guarded, lake, "poor", name)
    stranger = settings_of(guarded, lake, "txlake-consumer", name)
    guarded.give(metrics)

    def send(settings: Settings, user: str) -> str:
        with (
            TransactionProducer(
                guarded.roles_server,
                "shop",
                options=options_of(settings),
                client=guarded.client(user),
            ) as producer,
            pytest.raises(TxlakeError) as refusal,
        ):
            producer.send_message_in_transaction(
                Message("orders", b"one"), execute=lambda *_: LocalTransactionState.COMMIT_MESSAGE
            )
        return str(refusal.value)

    assert f"Kafka refuses this client WRITE on topic {name}-half" in send(seer, "poor")
    assert f"{name}-half: Kafka has no such topic" in send(stranger, "txlake-consumer")
    for settings in (seer, stranger):
        with pytest.raises(JobError, match=f"refuses this client WRITE on topic {name}-admin;"):
            write(settings.kafka, command(MAINTAIN, None, "ada", "to see"), "")
    with (
        Producer(
            guarded.roles_server, options=options_of(seer), client=guarded.client("poor")
        ) as plain,
        pytest.raises(SendError, match=f"WRITE on topic {name}-schedule"),
    ):
        plain.send(Message("later", b"three"))

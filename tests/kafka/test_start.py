"""What stops a start, and what only delays it. Each refusal is one clear sentence."""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from pyspark.sql import SparkSession

from pipelines.errors import LostInputError, StartError
from pipelines.job import driver_loop
from pipelines.jvm.spark_settings import check_in_jvm
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.local_broker.broker import Broker
from storage.errors import LakeLockedError, NewerLakeError
from storage.lake.lake import Lake
from storage.schemas import TABLES
from tests.support.job import Job, refusal, running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.operator import conf_of, said
from tests.support.wait import DEADLINE_S, wait_until
from txlake.protocol import COMMIT

Unique = Callable[[str], str]


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """The job uses the run's one Spark session."""


def test_a_second_driver_on_the_same_lake_is_refused(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("two"))
    with running(settings, verifies=False) as first:
        error = refusal(settings)
        assert isinstance(error, LakeLockedError)
        assert first.driver.owner in str(error)
        KafkaWriter(settings).half("still-running")
        first.wait_for_rows("half", 1)


def test_a_lake_of_a_newer_version_is_refused(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("newer"))
    lake = Lake(settings.lake.path)
    lake.create_table("lake")
    row = {"lake_id": "x", "format_version": 99, "created_at": dt.datetime.now(dt.timezone.utc)}
    lake.append("lake", pa.Table.from_pylist([row], schema=TABLES["lake"]))
    error = refusal(settings)
    assert isinstance(error, NewerLakeError)
    assert "format 99" in str(error)


def test_a_checkpoint_of_another_lake_is_refused(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    name = unique("checkpoint")
    stream = {"checkpoint": str(tmp_path / "checkpoint")}
    with running(settings_for(broker, tmp_path / "a", name, stream=stream)):
        pass
    error = refusal(settings_for(broker, tmp_path / "b", name, stream=stream))
    assert isinstance(error, StartError)
    assert "belongs to lake" in str(error)


def test_a_checkpoint_that_is_a_file_is_refused(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    (tmp_path / "file").write_text("")
    stream = {"checkpoint": str(tmp_path / "file")}
    error = refusal(settings_for(broker, tmp_path / "lake", unique("file"), stream=stream))
    assert isinstance(error, StartError)
    assert "file': File exists; a folder that can be made is needed" in str(error)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("spark.sql.session.timeZone", "Nowhere/No", "Cannot resolve the given timezone"),
        ("spark.sql.shuffle.partitions", "many", "should be a/an 'int' value"),
        ("spark.ui.port", "x", "should be a/an 'int' value"),
        ("spark.task.maxFailures", "x", "should be a/an 'int' value"),
    ],
)
def test_a_setting_that_spark_does_not_take_is_named(
    spark: SparkSession, key: str, value: str, said: str
) -> None:
    with pytest.raises(StartError) as error:
        check_in_jvm(spark.sparkContext, {key: value})
    assert f"[spark] {key} = {value!r}: " in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    check_in_jvm(spark.sparkContext, {"spark.sql.shuffle.partitions": "3", "spark.any": "x"})


def test_a_deleted_checkpoint_loses_nothing(
    broker: Broker, tmp_path: Path, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = tmp_path / "checkpoint"
    settings = settings_for(
        broker, tmp_path / "lake", unique("gone"), stream={"checkpoint": str(checkpoint)}
    )
    wire = KafkaWriter(settings)
    with running(settings, verifies=False) as job:
        wire.end(COMMIT, wire.half("a"))
        job.wait_for(lambda: job.messages("orders"), "the first message")
    for path in sorted(checkpoint.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with running(settings, verifies=False) as job:
        wire.end(COMMIT, wire.half("b"))
        job.wait_for(lambda: len(job.messages("orders")) == 2, "the second message")
        assert len(job.rows("half")) == 2

        wait_until(lambda: _is_deleted(checkpoint), "a delete between two writes of the stream")
        wire.end(COMMIT, wire.half("c"))
        job.wait_for(lambda: len(job.messages("orders")) == 3, "the third message")
    assert "was deleted: nothing is lost; the stream starts again" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_system_that_deletes_old_files_in_tmpdir_leaves_a_running_jobs_checkpoint(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    checkpoint = tmp_path / "checkpoint"
    settings = settings_for(
        broker, tmp_path / "lake", unique("aged"), stream={"checkpoint": str(checkpoint)}
    )
    wire = KafkaWriter(settings)
    with running(settings, verifies=False) as job:
        days_ago = time.time() - 11 * 86_400
        for path in checkpoint.rglob("*"):
            with suppress(FileNotFoundError):  # the stream goes on
                os.utime(path, (days_ago, days_ago))
        wire.end(COMMIT, wire.half("a"))
        job.wait_for(lambda: job.messages("orders"), "the first message")

        for path in checkpoint.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file() and path.stat().st_mtime < days_ago + 86_400:
                    path.unlink()
        wire.end(COMMIT, wire.half("b"))
        job.wait_for(lambda: len(job.messages("orders")) == 2, "the second message")

    with running(settings, verifies=False) as job:
        wire.end(COMMIT, wire.half("c"))
        job.wait_for(lambda: len(job.messages("orders")) == 3, "the third message")


def _is_deleted(folder: Path) -> bool:
    """Deletes a folder that another process writes into; returns whether nothing came meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _alter(broker: Broker, topic: str, name: str, value: str) -> None:
    admin = admin_client(broker.bootstrap_servers)
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("message.timestamp.type", "CreateTime", "half"),
        ("cleanup.policy", "compact", "half"),
        ("cleanup.policy", "compact,delete", "op"),
        ("cleanup.policy", "compact", "schedule"),
        ("cleanup.policy", "compact", "admin"),
    ],
)
def test_a_topic_with_a_setting_that_breaks_a_guarantee_is_refused(
    broker: Broker, tmp_path: Path, unique: Unique, name: str, value: str, kind: str
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("time"))
    Job(settings).prepare_topics()
    topic = settings.kafka.topics()[kind]
    _alter(broker, topic, name, value)
    error = refusal(settings)
    assert isinstance(error, StartError)
    assert f"topic {topic} has {name}={value}: " in str(error)


@pytest.mark.parametrize(
    ("name", "value"), [("cleanup.policy", "compact"), ("message.timestamp.type", "CreateTime")]
)
def test_a_topic_that_gets_such_a_setting_stops_the_running_job(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    monkeypatch.setattr(driver_loop, "_TOPICS_CHECKED_S", 0.5)  # a job looks every 20 s
    settings = settings_for(broker, tmp_path / "lake", unique("altered"))
    job = Job(settings).start()
    try:
        KafkaWriter(settings).half("a")
        job.wait_for_rows("half", 1)
        _alter(broker, settings.kafka.half_topic, name, value)
        wait_until(lambda: not job.is_running(), "the job stops")
    finally:
        job.stop()
    assert isinstance(job.error, StartError), job.error
    assert f"{settings.kafka.half_topic} has {name}={value}: " in str(job.error)


def test_a_half_topic_that_grows_before_the_op_topic_stops_the_running_job_in_one_sentence(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    """What was landed stays, and with the op topic grown, too, the job goes on."""
    settings = settings_for(broker, tmp_path / "lake", unique("grown"))
    queues = settings.kafka.queues
    admin = admin_client(broker.bootstrap_servers)
    job = Job(settings).start()
    try:
        wire = KafkaWriter(settings)
        wire.half("a")
        job.wait_for_rows("half", 1)
        _grow(admin, settings.kafka.half_topic, queues + 1)
        wait_until(lambda: not job.is_running(), "the job stops")
    finally:
        job.stop()
    assert isinstance(job.error, StartError), job.error
    assert "\n" not in str(job.error)
    assert f"{settings.kafka.op_topic} has {queues} partitions" in str(job.error)
    assert f"{settings.kafka.half_topic} has {queues + 1}" in str(job.error)
    status = said("status", "--check", "--conf", conf_of(settings, tmp_path), code=3)
    assert f"a start is refused: {job.error}" in status

    _grow(admin, settings.kafka.op_topic, queues + 1)
    with running(settings, verifies=False) as job:
        KafkaWriter(settings).half("b")
        job.wait_for_rows("half", 2)


def _grow(admin: AdminClient, topic: str, partitions: int) -> None:
    for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        future.result(DEADLINE_S)
    wait_until(
        lambda: len(admin.list_topics(timeout=DEADLINE_S).topics[topic].partitions) == partitions,
        "the broker knows them",
    )


def test_a_topic_that_keeps_less_than_the_lake_is_warned_of_once(
    broker: Broker, tmp_path: Path, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("short"))
    topics = KafkaAdmin(settings, settings.kafka.topics())
    topics.create_missing()
    half_topic = settings.kafka.half_topic
    _alter(broker, half_topic, "retention.ms", "60000")

    def is_warned() -> bool:
        topics.check()
        return bool(caplog.messages)

    wait_until(is_warned, "the warning", seen=lambda: caplog.messages)
    topics.check()
    kept_ms = settings.transaction.half_retention_ms
    assert caplog.messages == [
        f"topic {half_topic} has retention.ms=60000, less than half_retention_ms = {kept_ms}: "
        "records are lost if the job is away for so long; raise it"
    ]


def test_fewer_partitions_than_queues_are_warned_of(
    broker: Broker, tmp_path: Path, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("queues"))
    KafkaAdmin(settings, settings.kafka.topics()).create_missing()
    count = settings.kafka.queues
    more = replace(settings, kafka=replace(settings.kafka, queues=8))
    topics = KafkaAdmin(more, more.kafka.topics())
    topics.check()
    (warning,) = caplog.messages
    half, op = settings.kafka.half_topic, settings.kafka.op_topic
    assert warning.startswith(f"[kafka] queues = 8, and topic {half} has {count} partitions: the")
    assert warning.endswith(f"to {op} first and then to {half}, or set queues = {count}")


def test_fewer_op_partitions_than_half_partitions_are_refused(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("fewer"))
    admin = admin_client(broker.bootstrap_servers)
    config = {"message.timestamp.type": "LogAppendTime"}
    topics = [
        NewTopic(settings.kafka.half_topic, 3, config=config),
        NewTopic(settings.kafka.op_topic, 2, config=config),
    ]
    for future in admin.create_topics(topics).values():
        future.result(DEADLINE_S)
    error = refusal(settings)
    assert isinstance(error, StartError)
    assert "2 partitions" in str(error) and "has 3" in str(error)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_deleted_topic_stops_the_job_and_says_what_is_lost(
    broker: Broker, tmp_path: Path, unique: Unique, is_made_again: bool
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("again"))
    wire = KafkaWriter(settings)
    with running(settings) as job:
        wire.half("a")
        job.wait_for_rows("half", 1)
    admin = admin_client(broker.bootstrap_servers)
    for future in admin.delete_topics([settings.kafka.half_topic]).values():
        future.result(DEADLINE_S)
    wait_until(
        lambda: settings.kafka.half_topic not in admin.list_topics(timeout=DEADLINE_S).topics,
        "deletion",
    )
    if is_made_again:
        Job(settings).prepare_topics()
    error = refusal(settings)
    assert isinstance(error, LostInputError)
    said = "was deleted and made again" if is_made_again else "was deleted (id"
    assert f"{settings.kafka.half_topic} {said}" in str(error)


def test_records_deleted_before_they_landed_stop_the_job_and_are_named(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    from confluent_kafka import TopicPartition

    settings = settings_for(broker, tmp_path / "lake", unique("lost"))
    wire = KafkaWriter(settings)
    with running(settings) as job:
        wire.half("a")
        job.wait_for_rows("half", 1)
    for _ in range(3):
        wire.half("lost")
    admin = admin_client(broker.bootstrap_servers)
    for future in admin.delete_records([TopicPartition(settings.kafka.half_topic, 0, 3)]).values():
        future.result(DEADLINE_S)
    error = refusal(settings)
    assert isinstance(error, LostInputError)
    assert "offsets 1 to 2" in str(error)


def test_a_broker_that_is_away_at_the_start_is_waited_for(
    tmp_path: Path, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    own = Broker(tmp_path / "broker")
    own.start()
    own.stop()
    settings = settings_for(own, tmp_path / "lake", unique("away"))
    caplog.set_level(logging.WARNING, "txlake.driver")
    job = Job(settings)
    job.begin()
    try:
        wait_until(lambda: "is away" in caplog.text, "the job says that Kafka is away")
        own.start()
        wait_until(lambda: job.driver.is_streaming, "the job streams")
        wait_until(lambda: "is back" in caplog.text, "the job says that Kafka is back")
        wire = KafkaWriter(settings)
        wire.end(COMMIT, wire.half("a"))
        job.wait_for(lambda: job.messages("orders"), "the message")
    finally:
        job.stop()
        own.stop()
    assert job.error is None

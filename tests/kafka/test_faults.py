"""What goes wrong at the broker: it is away, its topics are deleted, its records are gone.

Kills are in bench/tests/kafka/test_kills.py, crashes between two writes in test_crashes.py, what is
wrong at the start in test_start.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from pipelines.epoch.runner import EpochRunner, LandedBatch
from pipelines.errors import KafkaAwayError, LostInputError
from pipelines.job import stream
from pipelines.kafka_client.connection import Partition
from pipelines.kafka_client.options import spark_options
from pipelines.local_broker.broker import Broker
from pipelines.settings import KafkaSettings
from tests.support.job import Job, running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.transactions import bodies, commit, wait_for_bodies
from tests.support.wait import DEADLINE_S, wait_until
from txlake.protocol import COMMIT

Unique = Callable[[str], str]
pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_the_job_goes_on_by_itself_when_the_broker_comes_back(
    tmp_path: Path, unique: Unique, is_killed: bool
) -> None:
    with Broker(tmp_path / "broker") as own:
        settings = settings_for(own, tmp_path / "lake", unique("broker"))
        with running(settings) as job:
            wire = KafkaWriter(settings)
            commit(wire, "before")
            wait_for_bodies(job, "before")
            waiting = wire.half("waiting", body=b"waiting")
            job.wait_for_rows("half", 2)
            if is_killed:
                own.kill()
            own.restart()
            wire.end(COMMIT, waiting)
            commit(wire, "after")
            wait_for_bodies(job, "before", "waiting", "after")
        assert len(job.rows("half")) == 3


def _delete_topic(admin: AdminClient, topic: str) -> None:
    for future in admin.delete_topics([topic]).values():
        future.result(DEADLINE_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, "deletion")


def test_a_half_topic_that_is_made_again_stops_the_running_job(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("topic"))
    job = Job(settings).start()
    try:
        commit(KafkaWriter(settings), "before")
        wait_for_bodies(job, "before")
        admin = admin_client(broker.bootstrap_servers)
        _delete_topic(admin, settings.kafka.half_topic)
        job.prepare_topics()
        KafkaWriter(settings).half("of another log")
        wait_until(lambda: not job.is_running(), "the job stops", seen=lambda: job.error)
    finally:
        job.stop()
    assert isinstance(job.error, LostInputError), job.error
    assert f"{settings.kafka.half_topic} was deleted" in str(job.error)
    assert "\n" not in str(job.error)
    assert bodies(job) == ["before"]
    assert len(job.rows("half")) == 1


def test_records_that_retention_deletes_before_they_land_stop_the_running_job(
    broker: Broker, tmp_path: Path, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_batch, may_land = EpochRunner.land_batch, threading.Event()
    may_land.set()

    def land_then(epochs: EpochRunner, ends: Mapping[Partition, int]) -> LandedBatch:
        assert may_land.wait(DEADLINE_S)
        return land_batch(epochs, ends)

    monkeypatch.setattr(EpochRunner, "land_batch", land_then)
    settings = settings_for(broker, tmp_path / "lake", unique("retention"))
    job = Job(settings).start()
    try:
        wire = KafkaWriter(settings)
        wire.half("landed")
        job.wait_for_rows("half", 1)
        job.wait_for(lambda: job.plans, "the epoch's commit")
        may_land.clear()
        for _ in range(3):
            wire.half("lost")
        admin = admin_client(broker.bootstrap_servers)
        place = TopicPartition(settings.kafka.half_topic, 0, 3)
        for future in admin.delete_records([place]).values():
            future.result(DEADLINE_S)
        may_land.set()
        wait_until(lambda: not job.is_running(), "the job stops", seen=lambda: job.error)
    finally:
        may_land.set()
        job.stop()
    assert isinstance(job.error, LostInputError), job.error
    assert "offsets 1 to 2" in str(job.error)
    assert not list(tmp_path.rglob("landing.json")), "the next start would take smaller steps"
    assert len(job.rows("half")) == 1


def test_an_outage_goes_on_until_a_micro_batch_is_done_and_is_one_in_the_log(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A broker that has just started elects drivers and tells its topics, and then lets tasks wait.
    caplog.set_level("WARNING", "txlake.driver")
    settings = settings_for(broker, tmp_path / "lake", unique("shaky"))
    land = EpochRunner.land_batch
    streams_that_fail = iter(range(3))
    sent: list[str] = []

    def land_or_fail(epochs: EpochRunner, ends: Mapping[Partition, int]) -> LandedBatch:
        if "before" in sent and next(streams_that_fail, None) is not None:
            raise KafkaAwayError("the tasks got no records")
        return land(epochs, ends)

    monkeypatch.setattr(EpochRunner, "land_batch", land_or_fail)
    with running(settings) as job:
        wire = KafkaWriter(settings)
        commit(wire, "before")
        wait_for_bodies(job, "before")
        sent.append("before")
        wait_until(lambda: "is back after" in caplog.text, "it is back")
        commit(wire, "after")
        wait_for_bodies(job, "before", "after")

    away, back = [text for text in caplog.messages if text.startswith("Kafka at ")]
    assert "is away, for 0 s so far; trying again in 1 s (" in away
    assert "is back after" in back
    assert next(streams_that_fail, None) is None


def test_a_name_that_java_cannot_resolve_for_a_moment_is_an_outage(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver's own clients are connected meanwhile; Java keeps for 10 s that it found none."""
    caplog.set_level("WARNING", "txlake.driver")
    settings = settings_for(broker, tmp_path / "lake", unique("unresolved"))
    addresses = iter(["no-such-host.invalid:9092"])

    def options_of(kafka: KafkaSettings) -> dict[str, str]:
        address = next(addresses, kafka.bootstrap_servers)
        return {**spark_options(kafka), "kafka.bootstrap.servers": address}

    monkeypatch.setattr(stream, "spark_options", options_of)
    with running(settings) as job:
        commit(KafkaWriter(settings), "after")
        wait_for_bodies(job, "after")
    (away,) = [text for text in caplog.messages if "is away, for" in text]
    assert "No resolvable bootstrap urls given" in away


def test_a_job_whose_stream_gave_up_goes_on_when_kafka_is_back_and_can_be_stopped_meanwhile(
    tmp_path: Path, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "txlake.driver")
    own = Broker(tmp_path / "broker")
    own.start()
    settings = settings_for(own, tmp_path / "lake", unique("silent"))
    job = Job(settings).start()
    try:
        commit(KafkaWriter(settings), "before")
        wait_for_bodies(job, "before")
        own.kill()
        wait_until(lambda: "is away" in caplog.text, "the job says so")
        assert "is back" not in caplog.text
        own.restart()
        commit(KafkaWriter(settings), "after")
        wait_for_bodies(job, "before", "after")
        wait_until(lambda: "is back" in caplog.text, "and that it is back")
        own.kill()
    finally:
        job.driver.stop()
        own.stop()
    job.wait_until_dead(180)  # what already asks Kafka may wait until its time limits
    assert job.error is None

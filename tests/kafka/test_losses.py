"""Records that Kafka deleted before they were landed: named, accepted by an operator, passed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from pyspark.sql import SparkSession

from pipelines.cli.main import main
from pipelines.epoch.runner import EpochCommitter
from pipelines.errors import LostInputError
from pipelines.local_broker.broker import Broker
from pipelines.replay import verify as replayed
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.verify.run import verify
from tests.support.job import Job, refusal, running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.operator import conf_of
from tests.support.wait import DEADLINE_S, wait_until
from txlake.protocol import ACCEPT_LOSS, COMMIT

Unique = Callable[[str], str]
BY = ("--reason", "retention was too short", "--actor", "ada")


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """The job uses the run's one Spark session."""


@dataclass
class Cut:
    """A lake whose job is down, and Kafka topics that are cut meanwhile."""

    settings: Settings
    wire: KafkaWriter
    conf: str

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records of a partition before an offset, as retention does."""
        admin = admin_client(self.settings.kafka.bootstrap_servers)
        place = TopicPartition(topic, partition, offset)
        for future in admin.delete_records([place]).values():
            future.result(DEADLINE_S)

    def add_partition(self, topic: str, number: int) -> None:
        """Give a topic the partition of a number, as its last one."""
        admin = admin_client(self.settings.kafka.bootstrap_servers)
        for future in admin.create_partitions([NewPartitions(topic, number + 1)]).values():
            future.result(DEADLINE_S)
        topics = admin.list_topics
        wait_until(
            lambda: number in topics(timeout=DEADLINE_S).topics[topic].partitions,
            "the broker knows it",
        )
        self.wire = KafkaWriter(self.settings)  # one that has asked for the partitions keeps them

    def refusal(self) -> str:
        """Return why the job does not start."""
        error = refusal(self.settings)
        assert isinstance(error, LostInputError), error
        return str(error)

    def txlake(self, *words: str, code: int = 0) -> str:
        """Run a command, and return what it prints."""
        result = CliRunner().invoke(main, [*words, "--conf", self.conf])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    def require_exact(self) -> None:
        """Check that nothing is wrong with the lake, and that it replays as it stands."""
        path = self.settings.lake.path
        report = verify(Lake(path))
        assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}
        assert replayed(path).is_equal


@pytest.fixture
def cut(broker: Broker, tmp_path: Path, unique: Unique) -> Cut:
    settings = settings_for(broker, tmp_path / "lake", unique("cut"))
    return Cut(settings, KafkaWriter(settings), conf_of(settings, tmp_path))


def planned_losses(lake: Lake) -> list[dict[str, Any]]:
    rows = lake.read("epochs", ["state", "parameters"]).to_pylist()
    found = [dict(row["parameters"] or ()).get("losses") for row in rows]
    return [loss for losses in found if losses for loss in json.loads(losses)]


def test_an_accepted_loss_is_passed_recorded_and_explained(cut: Cut) -> None:
    half_topic, op_topic = cut.settings.kafka.half_topic, cut.settings.kafka.op_topic
    with running(cut.settings) as job:
        first = cut.wire.half("landed")
        job.wait_for_rows("half", 1)

    lost = [cut.wire.half(f"lost-{number}") for number in range(3)][-1]
    cut.wire.end(COMMIT, first)
    cut.delete_before(half_topic, 0, 4)
    cut.delete_before(op_topic, 0, 1)
    assert f"offsets 1 to 3 of {half_topic} partition 0" in cut.refusal()
    assert "lost:half:0:1-3" in cut.txlake("losses", "list")
    status = cut.txlake("status", "--check", code=3)
    assert "not_running: no driver has the lake" in status
    assert "a start is refused: Kafka no longer has offsets" in status

    said = cut.txlake("losses", "accept", "--dry-run", *BY)
    assert "would write" in said and "lost:op:0:0-0" in said
    assert "`txlake losses accept`" in cut.refusal()

    # Kafka goes on deleting: what was accepted is not all of it any more.
    cut.txlake("losses", "accept", *BY)
    cut.wire.half("lost as well")
    cut.delete_before(half_topic, 0, 5)
    assert "offsets 1 to 4" in cut.refusal()

    cut.txlake("losses", "accept", *BY)
    with running(cut.settings) as job:
        cut.wire.end(COMMIT, lost)
        cut.wire.end(COMMIT, first)
        cut.wire.end(COMMIT, cut.wire.half("after"))
        wait_until(lambda: len(job.messages("orders")) == 2, "what was not lost is delivered")

    cut.require_exact()
    (conflict,) = job.rows("conflicts", ["half_queue_offset", "reason"])
    assert conflict == {"half_queue_offset": lost, "reason": "unknown_half"}
    lake = Lake(cut.settings.lake.path)
    assert [(x["topic"], x["first"], x["last"]) for x in planned_losses(lake)] == [
        (half_topic, 1, 4),
        (op_topic, 0, 0),
    ]
    commands = lake.read("admin", ["command", "target", "actor", "reason", "result"]).to_pylist()
    assert {
        "command": ACCEPT_LOSS,
        "target": "lost:half:0:1-4",
        "actor": "ada",
        "reason": "retention was too short",
        "result": "noted",
    } in commands
    said = cut.txlake("tx", "explain", "0-2", code=1)
    assert "ada accepted that offsets 1 to" in said and "retention was too short" in said

    assert "lost:" not in cut.txlake("losses", "list")
    assert "nothing was written" in cut.txlake("losses", "accept", *BY, code=1)
    with running(cut.settings) as job:
        cut.wire.end(COMMIT, cut.wire.half("last"))
        wait_until(lambda: len(job.messages("orders")) == 3, "the next start goes on")


def test_a_planned_epoch_whose_records_are_lost_is_finished_without_them(
    cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(cut.settings) as job:
        cut.wire.half("landed")
        job.wait_for_rows("half", 1)

    def die(*_: object) -> None:
        raise RuntimeError("killed between plan and commit")

    for number in range(3):
        cut.wire.half(f"lost {number}")
    with monkeypatch.context() as patch:
        patch.setattr(EpochCommitter, "finish", die)
        job = Job(cut.settings)
        job.begin()
        wait_until(lambda: not job.is_running(), "the job dies")
    assert read_progress(Lake(cut.settings.lake.path)).unfinished is not None

    cut.wire.half("lost, and in no plan")
    cut.delete_before(cut.settings.kafka.half_topic, 0, 5)
    assert "offsets 1 to 4" in cut.refusal()
    assert "lost:half:0:1-4" in cut.txlake("losses", "list")
    cut.txlake("losses", "accept", *BY)
    with running(cut.settings) as job:
        cut.wire.end(COMMIT, cut.wire.half("after"))
        wait_until(lambda: len(job.messages("orders")) == 1, "the job goes on")
    cut.require_exact()


def test_records_lost_at_the_begin_of_a_partition_that_came_later_are_named(cut: Cut) -> None:
    """Partitions are added while the job is down, and the first records in one are deleted."""
    half_topic, op_topic = cut.settings.kafka.half_topic, cut.settings.kafka.op_topic
    with running(cut.settings) as job:
        cut.wire.half("landed")
        job.wait_for_rows("half", 1)

    added = cut.settings.kafka.queues
    cut.add_partition(op_topic, added)
    cut.add_partition(half_topic, added)
    for number in range(3):
        cut.wire.half(f"lost {number}", added)
    cut.delete_before(half_topic, added, 3)
    assert f"offsets 0 to 2 of {half_topic} partition {added}" in cut.refusal()
    assert f"lost:half:{added}:0-2" in cut.txlake("losses", "list")

    cut.txlake("losses", "accept", *BY)
    with running(cut.settings) as job:
        cut.wire.end(COMMIT, cut.wire.half("after", added), queue=added)
        wait_until(lambda: len(job.messages("orders")) == 1, "the job goes on")
    cut.require_exact()
    losses = planned_losses(Lake(cut.settings.lake.path))
    assert [(x["partition"], x["first"], x["last"]) for x in losses] == [(added, 0, 2)]


def test_records_lost_at_the_end_of_a_partition_cannot_be_accepted(
    tmp_path: Path, unique: Unique
) -> None:
    """Kafka's disk goes back to an older copy: new records would have offsets of landed ones."""
    own = Broker(tmp_path / "broker")
    own.start()
    settings = settings_for(own, tmp_path / "lake", unique("older"))
    cut = Cut(settings, KafkaWriter(settings), conf_of(settings, tmp_path))
    try:
        with running(settings) as job:
            cut.wire.half("kept")
            job.wait_for_rows("half", 1)
        own.stop()
        shutil.copytree(tmp_path / "broker", tmp_path / "older")

        own.start()
        with running(settings) as job:
            cut.wire.half("lost")
            job.wait_for_rows("half", 2)
        own.stop()
        shutil.rmtree(tmp_path / "broker")
        shutil.copytree(tmp_path / "older", tmp_path / "broker")

        own.start()
        assert "but the lake has landed it up to" in cut.refusal()
        assert "ends at 1, but the lake has landed" in cut.txlake("losses", "accept", *BY, code=1)
    finally:
        own.stop()

"""A crash, or a lost answer, at every write of an epoch whose lake is on a store: no row differs.

The epoch, its writes and what is compared are those of `tests/kafka/test_crashes.py`. The job knows
the lake by its URI; the tests read the server's files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import Store
from pipelines.settings import Settings
from storage.errors import OwnerError
from storage.files.location import lake_location
from storage.lake.lake import Lake
from storage.verify.run import verify
from tests.support.crash_scenario import ANSWERING, CrashScenario
from tests.support.epoch_harness import EpochHarness, rows_of
from tests.support.fault_points import Crash, FaultPoints, SeenError
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault, LostAnswer
from tests.support.job import settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.store import Bucket, make_bucket
from tests.support.wait import DEADLINE_S

# Of the writes of test_crashes: those that differ in how they are made, and in what a start does.
CASES = [
    ("append epochs planned", "crash after"),
    ("append half", "crash before"),
    ("append pending", "error after"),
    ("create topics/2", "crash after"),
    ("append topics/2", "crash after"),
    ("append epochs committed", "error after"),
]
OVERTAKEN = ["append half", "append topics/2", "append checks", "append epochs committed"]
LOGS = [
    "half",
    "op",
    "schedule",
    "admin",
    "outcomes",
    "conflicts",
    "deliveries",
    "pending",
    "waiting",
    "delayed",
    "checks",
    "catalog",
    "topics/1",
    "topics/2",
    "topics/3",
    "topics/4",
    "epochs",
]


@dataclass
class StoreStory(CrashScenario):
    """A story whose lakes are in a bucket, in folders of the server's."""

    bucket: Bucket | None = None
    proxy: FaultProxy | None = None

    def rig(self, folder: Path, watch: FaultPoints | None = None, **stream: Any) -> EpochHarness:
        """Return a new process on a lake, which is the driver's: as `txlake run` opens it."""
        settings = self.of(folder)
        settings = replace(settings, stream=replace(settings.stream, **stream))
        lake = (watch or FaultPoints()).lake(settings.lake.location())
        return EpochHarness(self.spark, settings, lake, (watch or FaultPoints()).asker)

    def of(self, folder: Path) -> Settings:
        """Return the settings of a lake in a folder of the server's."""
        assert self.bucket is not None
        uri = f"{self.bucket.uri}/{folder.relative_to(self.bucket.folder)}"
        lake = replace(self.settings.lake, path=uri, store=self.bucket.options)
        return replace(self.settings, lake=lake)


@pytest.fixture(scope="module")
def story(store: Store, broker: Broker, spark: SparkSession) -> Iterator[StoreStory]:
    with FaultProxy(store.port) as proxy:
        name = f"crashes-{time.time_ns()}"
        bucket = replace(make_bucket(store, name), endpoint=proxy.endpoint)
        settings = settings_for(
            broker,
            bucket.folder,
            name,
            transaction={"check_max": 1},
            lake={"pending_snapshot_epochs": 3},
        )
        admin = admin_client(broker.bootstrap_servers)
        check_topic = f"{settings.kafka.check_topic_prefix}{ANSWERING}"
        for future in admin.create_topics([NewTopic(check_topic, 1)]).values():
            future.result(DEADLINE_S)
        story = StoreStory(spark, settings, bucket.folder, bucket=bucket, proxy=proxy)
        story.begin(KafkaWriter(settings), int(time.time() * 1000))
        yield story
        shutil.rmtree(bucket.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def reference(story: StoreStory) -> dict[str, list[str]]:
    folder = copied(story, "reference")
    with story.rig(folder) as rig:
        rig.start()
        rig.run(story.at(3))
    return rows_of(folder)


def copied(story: StoreStory, name: str) -> Path:
    """Return a copy of the lake in which the epoch is still to come."""
    folder = story.folder / name
    shutil.copytree(story.folder / "before", folder)
    return folder


@pytest.fixture
def folder(story: StoreStory) -> Iterator[Path]:
    copy = copied(story, f"copy-{time.time_ns()}")
    yield copy
    shutil.rmtree(copy, ignore_errors=True)


def require_same(found: dict[str, list[str]], expected: dict[str, list[str]]) -> None:
    assert found.keys() == expected.keys()
    for table, rows in expected.items():
        assert found[table] == rows, table


@pytest.mark.usefixtures("reference")
def test_the_lake_that_all_others_must_equal_is_sound(story: StoreStory) -> None:
    lake = story.of(story.folder / "reference").lake
    report = verify(Lake(lake_location(lake.path, lake.store)))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}
    assert report.numbers["epochs"] == 3


@pytest.mark.parametrize(("write", "mode"), CASES)
def test_a_crash_at_a_write_changes_no_row(
    story: StoreStory, reference: dict[str, list[str]], folder: Path, write: str, mode: str
) -> None:
    with story.rig(folder, FaultPoints(write, mode)) as crashed:
        crashed.start()
        with pytest.raises((Crash, SeenError), match=write):
            crashed.run(story.at(3))
        if mode == "error after":  # the same process goes on
            crashed.start()
            story.go_on(crashed, 3)
    if mode != "error after":
        with story.rig(folder) as restarted:
            restarted.start()
            story.go_on(restarted, 3)
    require_same(rows_of(folder), reference)


def test_answers_that_are_lost_when_commits_were_made_add_no_row(
    story: StoreStory, reference: dict[str, list[str]], folder: Path
) -> None:
    """The client tries again and gets 412 on its own file: Delta's identifier tells it is there."""
    assert story.proxy is not None
    keys = [rf"{folder.name}/{table}/_delta_log/\d+\.json$" for table in LOGS]
    with story.rig(folder) as rig, ExitStack() as faults:
        rig.start()
        lost = [
            faults.enter_context(
                story.proxy.fault(Fault(LostAnswer(), method="PUT", key=key, times=1))
            )
            for key in keys
        ]
        rig.run(story.at(3))
        assert [one.hits for one in lost] == [1] * len(LOGS)
    require_same(rows_of(folder), reference)


@pytest.mark.parametrize("write", OVERTAKEN)
def test_a_driver_that_another_has_overtaken_writes_nothing_and_stops(
    story: StoreStory, reference: dict[str, list[str]], folder: Path, write: str
) -> None:
    """Suspended at a write, while another finishes the epoch: on a store there is no lock."""

    def take_over() -> None:
        with story.rig(folder) as other:
            other.start()
            story.go_on(other, 3)

    with story.rig(folder, FaultPoints(write, take_over=take_over)) as asleep:
        asleep.start()
        with pytest.raises(OwnerError, match=r"^epoch 3 was "):
            asleep.run(story.at(3))
    require_same(rows_of(folder), reference)

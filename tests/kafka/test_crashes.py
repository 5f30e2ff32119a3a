"""A crash at every write of an epoch: the next start makes the lake of a run that did not crash.

The processes land by themselves, which takes a third of the time; some crashes are tried with
Spark's tasks, too, on the same lake.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from storage.errors import OwnerError
from storage.lake.lake import Lake
from storage.schemas import TABLES
from storage.verify.run import verify
from tests.support.crash_scenario import ANSWERING, WRITES, CrashScenario
from tests.support.epoch_harness import rows_of, tables_of
from tests.support.fault_points import Crash, FaultPoints, SeenError
from tests.support.job import PATIENT, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.wait import DEADLINE_S

MODES = ("crash before", "crash after", "error after")
CASES = [(write, mode) for write in WRITES for mode in MODES]
CASES_ON_SPARK = [
    ("append epochs planned", "crash after"),
    ("append half", "crash before"),
    ("append half", "error after"),
    ("append outcomes", "crash after"),
    ("append topics/2", "crash after"),
    ("append epochs committed", "crash before"),
]


def committed(epoch: int) -> pc.Expression:
    return (pc.field("epoch") == epoch) & (pc.field("state") == "committed")


@pytest.fixture(scope="module")
def story(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashScenario]:
    folder = tmp_path_factory.mktemp("crashes")
    settings = settings_for(
        broker,
        folder / "before",
        f"crashes-{time.time_ns()}",
        transaction={**PATIENT, "check_max": 1},
        lake={"pending_snapshot_epochs": 3},
    )
    admin = admin_client(broker.bootstrap_servers)
    check_topic = f"{settings.kafka.check_topic_prefix}{ANSWERING}"
    for future in admin.create_topics([NewTopic(check_topic, 1)]).values():
        future.result(DEADLINE_S)
    story = CrashScenario(None, settings, folder)
    story.begin(KafkaWriter(settings), int(time.time() * 1000))
    yield story
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Reference:
    """The lake of a run without a crash, after the epoch in question and after the next one."""

    rows: dict[str, list[str]]
    later_rows: dict[str, list[str]]


@pytest.fixture(scope="module")
def reference(story: CrashScenario) -> Reference:
    folder = story.folder / "reference"
    shutil.copytree(story.folder / "before", folder)
    with story.rig(folder) as rig:
        rig.start()
        rig.run(story.at(3))
        rows = rows_of(folder)
        story.go_on(rig, 4)
    return Reference(rows, rows_of(folder))


@pytest.mark.usefixtures("reference")
def test_the_lake_that_all_others_must_equal_is_sound(story: CrashScenario) -> None:
    report = verify(Lake(str(story.folder / "reference")))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}


@pytest.mark.usefixtures("reference")
def test_the_epoch_that_crashes_writes_into_every_table(story: CrashScenario) -> None:
    lake = Lake(str(story.folder / "reference"))
    written = {
        table
        for table in tables_of(story.folder / "reference")
        if table != "lake" and lake.read(table, ["epoch"], pc.field("epoch") == 3).num_rows
    }
    assert written == {write.split()[1] for write in WRITES if write.startswith("append")}


@pytest.fixture
def folder(story: CrashScenario, tmp_path: Path) -> Path:
    """Return a copy of the lake in which the epoch is still to come."""
    shutil.copytree(story.folder / "before", tmp_path / "lake")
    return tmp_path / "lake"


def require_same(found: dict[str, list[str]], expected: dict[str, list[str]]) -> None:
    assert found.keys() == expected.keys()
    for table, rows in expected.items():
        assert found[table] == rows, table


@pytest.mark.parametrize(("write", "mode"), CASES)
def test_a_crash_at_a_write_changes_no_row(
    story: CrashScenario, reference: Reference, folder: Path, write: str, mode: str
) -> None:
    require_no_row_changes(story, reference, folder, write, mode)


@pytest.mark.parametrize(("write", "mode"), CASES_ON_SPARK)
def test_a_crash_at_a_write_changes_no_row_with_spark(
    story: CrashScenario,
    reference: Reference,
    folder: Path,
    spark: SparkSession,
    write: str,
    mode: str,
) -> None:
    require_no_row_changes(replace(story, spark=spark), reference, folder, write, mode)


def require_no_row_changes(
    story: CrashScenario, reference: Reference, folder: Path, write: str, mode: str
) -> None:
    with story.rig(folder, FaultPoints(write, mode)) as crashed:
        crashed.start()
        with pytest.raises((Crash, SeenError), match=write):
            crashed.run(story.at(3))
        if mode == "error after":  # the same process goes on
            crashed.start()
            story.go_on(crashed, 3)
            state = crashed.state()
    if mode != "error after":
        with story.rig(folder) as restarted:
            restarted.start()
            story.go_on(restarted, 3)
            state = restarted.state()
    require_same(rows_of(folder), reference.rows)
    with story.rig(folder) as rebuilt:
        assert rebuilt.start() is None
        assert rebuilt.state() == state


@pytest.mark.parametrize("write", WRITES)
def test_a_driver_that_another_has_overtaken_writes_nothing_and_stops(
    story: CrashScenario, reference: Reference, folder: Path, write: str
) -> None:
    """Suspended at a write, while another driver, without a lock, finishes the epoch."""

    def take_over() -> None:
        with story.rig(folder) as other:
            other.start()
            story.go_on(other, 3)

    with story.rig(folder, FaultPoints(write, take_over=take_over)) as asleep:
        asleep.start()
        with pytest.raises(OwnerError, match=r"^epoch 3 was "):
            asleep.run(story.at(3))
    require_same(rows_of(folder), reference.rows)
    with story.rig(folder) as rig:
        assert rig.start() is None
        story.go_on(rig, 4)
    assert rows_of(folder) == reference.later_rows


@pytest.mark.parametrize("at", ["", "append half", "append topics/2", "append topics/4"])
def test_deliveries_by_tasks_of_spark_give_the_same_rows(
    story: CrashScenario, reference: Reference, folder: Path, spark: SparkSession, at: str
) -> None:
    story = replace(story, spark=spark)
    with story.rig(folder, FaultPoints(at, "crash after"), deliveries="executors") as rig:
        rig.start()
        with pytest.raises(Crash) if at else nullcontext():
            rig.run(story.at(3))
    with story.rig(folder, deliveries="executors") as rig:
        rig.start()
        assert rows_of(folder) == reference.rows
        (row,) = Lake(str(folder)).read("epochs", where=committed(3)).to_pylist()
        assert at or dict(row["work"])["delivered_tasks"] >= 1


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_while_the_lake_is_made_is_made_good(
    story: CrashScenario, tmp_path: Path, mode: str
) -> None:
    writes = [*(f"create {table}" for table in TABLES), "append lake"]
    for number, write in enumerate(writes):
        folder = tmp_path / str(number)
        with story.rig(folder, FaultPoints(write, mode)) as crashed:
            with pytest.raises((Crash, SeenError), match=write):
                crashed.start()
            if mode == "error after":
                crashed.start()
        if mode != "error after":
            with story.rig(folder) as restarted:
                restarted.start()
        assert tables_of(folder) == sorted(TABLES), write
        assert len(Lake(str(folder)).read("lake")) == 1, write


def test_a_crash_of_the_epoch_that_finishes_another_changes_no_row(
    story: CrashScenario, reference: Reference, folder: Path
) -> None:
    """Crashes after the first write of an epoch, then of its recovery, until nothing is left."""
    crashes = 0
    while True:
        with story.rig(folder, FaultPoints("append", "crash after")) as rig:
            try:
                rig.start()
                story.go_on(rig, 4)
                break
            except Crash:
                crashes += 1
        assert crashes < 3 * len(WRITES), "a start does not get any further"
    assert crashes > 2, "the recovery of the epoch was never crashed"
    assert rows_of(folder) == reference.later_rows

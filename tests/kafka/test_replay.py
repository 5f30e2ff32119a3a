"""A lake made under faults, over real Kafka: replayed, rebuilt and continued, backfilled."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from pipelines.epoch.task_sizing import TaskSizing
from pipelines.errors import StartError
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.local_broker.broker import Broker
from pipelines.replay import rebuild, verify
from pipelines.replay.from_kafka import (
    identity_from_kafka,
    offsets_before,
    offsets_since,
    run_backfill,
)
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.verify.run import verify as verify_invariants
from tests.support.epoch_harness import EpochHarness, rows_of
from tests.support.job import PATIENT, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter, half_headers
from tests.support.wait import DEADLINE_S
from txlake.protocol import CANCEL, COMMIT, CREATE_TOPIC, RESUME, ROLLBACK, UNKNOWN

ANSWERING, SILENT = "answering", "silent"  # a producer group with a check topic, one without
# Where each of the epochs 2 to 4 dies: before and after writes of every kind.
CRASHES = {2: ("outcomes", "after"), 3: ("topics/2", "before"), 4: ("checks", "after")}


class Crash(BaseException):
    """What a test raises in place of a crash."""


@dataclass
class History:
    """The lake of a job that died in three of its epochs, and how to go on."""

    spark: SparkSession
    settings: Settings
    folder: Path
    base_ms: int

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def at(self, epoch: int) -> int:
        return self.base_ms + 600_000 * epoch  # ahead of when the broker stores, however slow

    def of(self, path: Path) -> Settings:
        return replace(self.settings, lake=replace(self.settings.lake, path=str(path)))

    def run(self, path: Path, epoch: int) -> None:
        with EpochHarness(self.spark, self.of(path)) as rig:
            assert rig.start() is None
            assert rig.run(self.at(epoch)) is not None

    def die(self, epoch: int, patch: pytest.MonkeyPatch) -> None:
        """Run an epoch that dies at one of its writes, then the start that finishes it."""
        wanted, when = CRASHES[epoch]
        append, add_files = Lake.append, Lake.add_files

        def crashing(lake: Lake, table: str, rows: Any, epoch: int | None = None) -> int:
            is_it = table == wanted and rows.num_rows > 0
            if is_it and when == "before":
                raise Crash(table)
            count = append(lake, table, rows, epoch)
            if is_it:
                raise Crash(table)
            return count

        def crashing_files(lake: Lake, table: str, files: Any, epoch: int) -> int:
            if table == wanted:
                raise Crash(table)
            return add_files(lake, table, files, epoch)

        with EpochHarness(self.spark, self.settings) as rig, patch.context() as patched:
            rig.start()
            patched.setattr(Lake, "append", crashing)
            patched.setattr(Lake, "add_files", crashing_files)
            with pytest.raises(Crash, match=wanted):
                rig.run(self.at(epoch))
        with EpochHarness(self.spark, self.settings) as rig:
            plan = rig.start()
            assert plan is not None
            assert plan.epoch == epoch


@pytest.fixture(scope="module")
def history(
    broker: Broker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[History]:
    folder = tmp_path_factory.mktemp("replay")
    settings = settings_for(
        broker,
        folder / "lake",
        f"replay-{time.time_ns()}",
        transaction={**PATIENT, "check_max": 1},
        lake={"pending_snapshot_epochs": 3},
    )
    admin = admin_client(broker.bootstrap_servers)
    check_topic = f"{settings.kafka.check_topic_prefix}{ANSWERING}"
    for future in admin.create_topics([NewTopic(check_topic, 1)]).values():
        future.result(DEADLINE_S)
    made = History(spark, settings, folder, int(time.time() * 1000))
    with pytest.MonkeyPatch.context() as patch:
        _tell(made, KafkaWriter(settings), patch)
    yield made
    shutil.rmtree(folder, ignore_errors=True)


def _tell(history: History, wire: KafkaWriter, patch: pytest.MonkeyPatch) -> None:
    kafka = history.settings.kafka
    with EpochHarness(history.spark, history.settings) as rig:
        rig.start()
        for n in range(3):  # 0 and 1 stay silent: asked in epoch 1, given up in epoch 2
            wire.half(f"first{n}", 0, b"%d" % n, group=ANSWERING)
        wire.end(COMMIT, 2, group=ANSWERING)
        wire.end(COMMIT, wire.half("odd", 1, topic="odd", REAL_QID="77"), queue=1)
        wire.end(COMMIT, wire.half("plain", 1, bytes(range(256)), colour="red"), queue=1)
        wire.send(kafka.half_topic, 0, b"raw", [("x", b"\xff")], key=b"k")
        with patch.context() as patched:  # this epoch's messages are delivered by tasks of Spark
            patched.setattr(TaskSizing, "delivery_tasks", lambda *_: 2)
            rig.run(history.at(1))
    wire.end(ROLLBACK, wire.half("back", 1), queue=1)
    wire.end(COMMIT, wire.half("delayed", 1, b"later", DELAY="3"), queue=1)
    wire.end(COMMIT, wire.half("held", 1, DELAY="18"), queue=1)
    for n in (1, 0):
        wire.half("set", 1, b"%d" % n, topic="parts", TRAN_SIZE="2", TRAN_SEQ=str(n))
    wire.end(COMMIT, 5, queue=1)
    wire.half("unheard", 0, group=SILENT)
    history.die(2, patch)
    wire.end(COMMIT, 0, group=ANSWERING)  # late
    wire.end(ROLLBACK, 2, group=ANSWERING)  # contradicts
    wire.end(UNKNOWN, 4, group=SILENT)
    wire.send(kafka.schedule_topic, 0, b"plain", half_headers("s1")[3:])
    wire.command(CANCEL, "half:1-4")
    wire.command(CREATE_TOPIC, "topic:odd:100")
    wire.end(COMMIT, wire.half("more", 1, b"more"), queue=1)
    history.die(3, patch)
    wire.command(RESUME, "half:0-1")
    wire.command(RESUME, "undeliverable:0")
    wire.end(COMMIT, 1_000_000)  # names a half still to come: it waits
    wire.half("young", 0, b"young", group=ANSWERING)
    history.die(4, patch)


def _later(history: History) -> int:
    """Send what a continued lake lands; each caller finds all that was sent so far."""
    wire = KafkaWriter(history.settings)
    offset = wire.half("later", 0, b"later", group=ANSWERING)
    wire.end(COMMIT, offset, group=ANSWERING)
    return offset


def _sound(path: Path) -> None:
    report = verify_invariants(Lake(str(path)))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}


def _ended(path: Path) -> dict[tuple[int, int], str]:
    """Return how halves ended by operations."""
    return {
        (row["queue_id"], row["queue_offset"]): row["outcome"]
        for row in Lake(str(path)).read("outcomes").to_pylist()
        if row["outcome"] != "DISCARDED"
    }


def _bodies(path: Path, topic: str) -> list[bytes]:
    lake = Lake(str(path))
    (table_id,) = {r["table_id"] for r in lake.read("catalog").to_pylist() if r["topic"] == topic}
    return sorted(lake.read(f"topics/{table_id}")["body"].to_pylist())


def test_a_lake_made_under_faults_is_replayed_bit_for_bit(history: History) -> None:
    outcomes = {
        f"{r['outcome']} {r['cause']}" for r in Lake(str(history.lake)).read("outcomes").to_pylist()
    }
    assert outcomes >= {
        "COMMITTED operation",
        "COMMITTED late_end",
        "ROLLED_BACK operation",
        "DISCARDED check_max",
    }
    verified = verify(str(history.lake))
    assert verified.differences.to_pylist() == []
    assert verified.is_equal
    assert verified.last_epoch == 4


def test_a_rebuilt_lake_goes_on_live_as_the_first_one_does(
    history: History, tmp_path: Path
) -> None:
    first, new = tmp_path / "first", tmp_path / "new"
    shutil.copytree(history.lake, first)
    rebuild(str(first), str(new))
    assert rows_of(new) == rows_of(first)
    _later(history)
    for path in (first, new):
        history.run(path, 5)
    assert rows_of(new) == rows_of(first)
    _sound(new)


def test_a_lake_from_nothing_but_half_and_op_goes_on_live(history: History, tmp_path: Path) -> None:
    rest, new = tmp_path / "rest", tmp_path / "new"
    for table in ("half", "op"):
        shutil.copytree(history.lake / table, rest / table)
    rebuild(str(rest), str(new), one_batch=True, identity=identity_from_kafka(history.settings))
    assert _ended(new) == _ended(history.lake)
    offset = _later(history)
    history.run(new, 5)
    assert _ended(new)[0, offset] == "COMMITTED"
    assert _bodies(new, "parts") == _bodies(history.lake, "parts")
    assert bytes(range(256)) in _bodies(new, "orders")
    _sound(new)
    assert verify(str(new)).is_equal


def test_kafka_is_backfilled_in_parts_and_what_was_landed_adds_nothing(
    history: History, tmp_path: Path
) -> None:
    settings, path = history.of(tmp_path / "new"), tmp_path / "new"
    half, op = settings.kafka.half_topic, settings.kafka.op_topic
    told: list[tuple[int, int]] = []
    part = run_backfill(
        history.spark,
        settings,
        "test",
        {},
        {(half, 0): 2, (half, 1): 1, (op, 0): 1},
        lambda done, total: told.append((done, total)),
    )
    lake = Lake(str(path))
    halves = lake.read("half", ["queue_id", "queue_offset"]).to_pylist()
    assert sorted((r["queue_id"], r["queue_offset"]) for r in halves) == [(0, 0), (0, 1), (1, 0)]
    assert (part.first_epoch, part.transactions) == (1, 3)
    assert told[-1][0] == told[-1][1]
    run_backfill(history.spark, settings, "test", {}, {})
    ended = _ended(path)
    assert {place: ended[place] for place in _ended(history.lake)} == _ended(history.lake)
    assert lake.read("checks").num_rows == 0
    before = rows_of(path)
    assert run_backfill(history.spark, settings, "test", {}, {}).epochs == 0
    assert rows_of(path) == before
    _sound(path)
    assert verify(str(path)).is_equal


def test_a_backfill_by_time_or_offset_begins_there(history: History, tmp_path: Path) -> None:
    settings = history.of(tmp_path / "new")
    kafka = KafkaAdmin(settings, settings.kafka.topics())
    half = settings.kafka.half_topic
    places = kafka.partitions()
    ends = kafka.end_offsets(places)
    assert kafka.offsets_at(places, 0)[half, 0] == 0
    assert kafka.offsets_at(places, history.at(100)) == ends
    starts = {**ends, (half, 0): 3}
    run_backfill(history.spark, settings, "test", starts, {})
    halves = Lake(settings.lake.path).read("half", ["queue_id", "queue_offset"]).to_pylist()
    assert {r["queue_id"] for r in halves} == {0}
    assert min(r["queue_offset"] for r in halves) == 3
    with pytest.raises(StartError, match="would be missing"):
        run_backfill(history.spark, settings, "test", {(half, 0): 10_000}, {})


def test_a_backfill_of_what_kafka_does_not_have_is_refused(
    history: History, tmp_path: Path
) -> None:
    settings = history.of(tmp_path / "new")
    kafka = KafkaAdmin(settings, settings.kafka.topics())
    half = settings.kafka.half_topic
    with pytest.raises(StartError, match=r"no record that was stored at \S+Z or later: nothing"):
        offsets_since(kafka, history.at(100))
    with pytest.raises(StartError, match="no record that was stored before 1970-"):
        offsets_before(kafka, 0)
    assert offsets_since(kafka, 0)[half, 0] == 0
    assert offsets_before(kafka, history.at(100)) == kafka.end_offsets(kafka.partitions())
    with pytest.raises(StartError, match=f"{half} partition 0 up to offset .* from offset 10000"):
        run_backfill(history.spark, settings, "test", {(half, 0): 10_000}, {})
    with pytest.raises(StartError, match=r"orders partition 0 was asked for: the job reads"):
        run_backfill(history.spark, settings, "test", {}, {("orders", 0): 3})

"""Two histories that a restart once decided otherwise, told over real Kafka and real Delta tables.

Each epoch of a story may be followed by a restart: a new `EpochHarness` knows what the lake says,
no more, as a job does that was killed by kill -9 (bench/tests/kafka/test_kills.py kills real
processes).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.verify.run import verify
from tests.support.epoch_harness import EpochHarness
from tests.support.job import PATIENT, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.wait import DEADLINE_S
from txlake.protocol import COMMIT, RESUME

Unique = Callable[[str], str]
RESTARTS = (True, False)
INTERVALS = (1, 500)  # epochs between two snapshots


@dataclass
class Told:
    """A story over one lake, an epoch at a time."""

    spark: SparkSession
    settings: Settings
    restarts: bool
    at_ms: int = field(default_factory=lambda: int(time.time() * 1000) + 600_000)

    def __post_init__(self) -> None:
        self.wire = KafkaWriter(self.settings)
        self._rig = self._new_rig()
        admin = admin_client(self.settings.kafka.bootstrap_servers)
        topic = NewTopic(f"{self.settings.kafka.check_topic_prefix}g", 1)
        for future in admin.create_topics([topic]).values():
            future.result(DEADLINE_S)

    def _new_rig(self) -> EpochHarness:
        rig = EpochHarness(self.spark, self.settings)
        rig.start()
        return rig

    def epoch(self, after_ms: int = 1_000) -> None:
        """Run an epoch over all that Kafka has; then die and start again, if the story says so."""
        self.at_ms += after_ms
        self._rig.run(self.at_ms)
        if self.restarts:
            state = self._rig.state()
            self.close()
            self._rig = self._new_rig()
            assert self._rig.state() == state

    def close(self) -> None:
        self._rig.__exit__(None, None, None)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Read a table of the lake, which has to be sound."""
        lake = Lake(self.settings.lake.path)
        found = {f.invariant.name: f.rows for f in verify(lake).findings if f.violations}
        assert found == {}
        return lake.read(table).to_pylist()


@pytest.fixture(
    params=[(r, i) for r in RESTARTS for i in INTERVALS],
    ids=lambda p: f"{'killed' if p[0] else 'not killed'}-{p[1]}",
)
def told(
    request: pytest.FixtureRequest,
    broker: Broker,
    spark: SparkSession,
    tmp_path: Path,
    unique: Unique,
) -> Any:
    restarts, interval = request.param
    settings = settings_for(
        broker,
        tmp_path / "lake",
        unique("story"),
        lake={"pending_snapshot_epochs": interval},
        transaction={**PATIENT, "check_max": 1, "late_end_policy": "reject"},
    )
    story = Told(spark, settings, restarts)
    yield story
    story.close()


def test_a_commit_that_names_a_duplicate_waits_for_its_set_across_a_restart(told: Told) -> None:
    told.wire.half("set", body=b"one", TRAN_SIZE="2", TRAN_SEQ="1")
    duplicate = told.wire.half("set", body=b"again", TRAN_SIZE="2", TRAN_SEQ="1")
    told.wire.end(COMMIT, duplicate)
    told.epoch()
    told.wire.half("set", body=b"zero", TRAN_SIZE="2", TRAN_SEQ="0")
    told.epoch()
    ends = {(row["queue_offset"], row["outcome"], row["cause"]) for row in told.rows("outcomes")}
    assert ends == {
        (0, "COMMITTED", "operation"),
        (1, "ROLLED_BACK", "duplicate_in_set"),
        (2, "COMMITTED", "operation"),
    }


def test_a_commit_that_was_refused_delivers_nothing_after_a_restart_and_a_resume(
    told: Told,
) -> None:
    first = told.wire.half("set", TRAN_SIZE="3", TRAN_SEQ="0")
    second = told.wire.half("set", TRAN_SIZE="3", TRAN_SEQ="1")
    told.epoch()  # asked
    told.epoch()  # given up
    told.wire.end(COMMIT, first, second)
    told.epoch()
    told.wire.command(RESUME, f"half:0-{first}")
    told.wire.half("set", TRAN_SIZE="3", TRAN_SEQ="2")
    told.epoch()
    told.epoch(0)
    assert {row["outcome"] for row in told.rows("outcomes")} == {"DISCARDED"}
    assert [row["reason"] for row in told.rows("conflicts")] == ["end_after_discard"]
    told.wire.end(COMMIT, second)  # another operation ends it
    told.epoch(100)
    ends = [row for row in told.rows("outcomes") if row["outcome"] == "COMMITTED"]
    assert [(row["arm"], row["op_queue_offset"]) for row in ends] == [(1, 1)] * 3

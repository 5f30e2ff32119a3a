"""The job of a soak: real epochs, maintenance and a consumer in one process, on simulated time."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

from deltalake import DeltaTable

from bench.soak.kafka import MemoryAsker, MemoryKafka
from bench.soak.stories import (
    CHECK_INTERVAL_MS,
    CHECK_MAX,
    IMMUNITY_MS,
    ORPHAN_EPOCHS,
    STORIES,
    UNDELIVERABLE,
    undeliverable,
)
from bench.soak.traffic import EPOCH_MS, MUTE, REAL_TOPICS, SHOP, Traffic, World
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.run import Epochs
from pipelines.job.memory import give_back_large_arrays
from pipelines.job.upkeep import Maintainer
from pipelines.kafka_log.topics import KafkaTopics
from pipelines.settings import Settings, parse
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.rows import instant
from storage.upkeep.limits import MaintenanceLimits
from tests.support.landed_here import NO_SPARK, land_here
from txlake import Consumer
from txlake import protocol as p

START_MS: Final = 1_767_225_600_000  # 2026-01-01
_PER_EPOCH = 2.0  # stories that begin
_CONSUMED_EPOCHS = 5  # between two looks of the consumer
# Files and logs age by the machine's clock, which a soak has little of: some twenty epochs.
_KEPT_MS = 2_000
_IDLE_S = 600.0  # every round of maintenance is taken to its end
_OFFSETS_TABLE = "consumer_offsets"


@dataclass(frozen=True)
class Spent:
    """What one epoch took, and the maintenance after it. Units: s."""

    epoch_s: float
    epoch_processor_s: float  # of all threads of this process
    upkeep_s: float


def settings_of(lake: Path, retention: int) -> Settings:
    """Returns the settings of a job, its intervals in proportion to the retention, in epochs."""
    return parse(
        {
            "lake": {
                "path": str(lake),
                "retention_ms": retention * EPOCH_MS,
                "pending_snapshot_epochs": max(2, retention // 20),
            },
            "kafka": {"bootstrap_servers": "in memory"},
            "transaction": {
                "transaction_timeout_ms": IMMUNITY_MS,
                "check_interval_ms": CHECK_INTERVAL_MS,
                "check_max": CHECK_MAX,
                "half_retention_ms": max(retention // 2, 1) * EPOCH_MS,
                "orphan_operation_ttl_ms": ORPHAN_EPOCHS * EPOCH_MS,
            },
            "topics": {"retention_ms": retention * EPOCH_MS},
            "maintenance": {
                "stream_retention_ms": 0,
                "merge_files": max(3, min(16, retention // 20)),
                "checkpoint_commits": max(4, min(32, retention // 10)),
            },
        },
        "soak",
    )


def limits_of(settings: Settings) -> MaintenanceLimits:
    """Returns when a table needs a step; files and logs are kept shorter than settings allow."""
    return replace(
        settings.maintenance_limits(),
        log_retention_ms=_KEPT_MS,
        file_retention_ms=_KEPT_MS,
        stream_retention_ms=_KEPT_MS,
    )


class SoakJob:
    """A driver's epochs, without Spark: they land their records in this process.

    Input: where its lake is, the retention in epochs, and what the traffic is drawn from.
    """

    def __init__(self, folder: Path, retention: int, seed: int) -> None:
        land_here()
        give_back_large_arrays()
        self.settings = settings_of(folder, retention)
        self.lake = Lake(str(folder), is_driver=True)
        self.lake.create(instant(START_MS))
        self.kafka = MemoryKafka()
        self._now_ms = START_MS
        self._minutes = 0
        world = World(self.kafka, random.Random(seed), retention)
        self._traffic = Traffic(world, STORIES, _PER_EPOCH)
        for number in range(UNDELIVERABLE):
            self._traffic.begin(undeliverable(world), 2 + number)
        asker = MemoryAsker((SHOP, MUTE), self._traffic.asked)
        kafka = cast(KafkaTopics, self.kafka)
        of_job = EpochSettings.of(self.settings, "soak", NO_SPARK)
        self.epochs = Epochs(NO_SPARK, self.lake, kafka, asker, of_job, lambda: self._now_ms)
        self.epochs.take_up()
        self._maintainer = Maintainer(
            self.lake, limits_of(self.settings), 0, p.ADMIN_TOPIC, lambda: False
        )
        self._consumer: Consumer | None = None
        self.consumed = 0

    def __enter__(self) -> SoakJob:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.epochs.close()
        if self._consumer is not None:
            self._consumer.close()

    @property
    def last(self) -> Plan:
        """Returns the plan of the newest epoch."""
        assert self.epochs.last is not None
        return self.epochs.last

    def run(self) -> Spent:
        """Runs the next epoch, with what was sent since the one before."""
        spent = None
        while spent is None:  # in some minutes nothing is sent, and nothing is due
            spent = self._minute()
        if self.last.epoch % _CONSUMED_EPOCHS == 0:
            self._consume()
        return spent

    def _minute(self) -> Spent | None:
        self._minutes += 1
        self._traffic.minute(self._minutes, self._now_ms)
        self._now_ms += EPOCH_MS
        records, ends = self.kafka.take(), self.kafka.end_offsets(self.kafka.places())
        began, used = time.perf_counter(), time.process_time()
        self.epochs.look_ahead()
        plan = self.epochs.run(cast(Any, records), ends)
        ended, used = time.perf_counter(), time.process_time() - used
        self._maintainer.after_batch(plan, _IDLE_S)
        if plan is None:
            return None
        return Spent(ended - began, used, time.perf_counter() - ended)

    def _consume(self) -> None:
        """Reads what was delivered, and commits, as a consumer beside the job does."""
        if self._consumer is None:
            self._consumer = Consumer(self.lake.path, "soak", REAL_TOPICS)
            kept = f"interval {_KEPT_MS // 1000} seconds"
            DeltaTable(str(Path(self.lake.path, _OFFSETS_TABLE))).alter.set_table_properties(
                {"delta.logRetentionDuration": kept, "delta.deletedFileRetentionDuration": kept}
            )
        while messages := self._consumer.poll(0.0):
            self.consumed += len(messages)
        self._consumer.commit()

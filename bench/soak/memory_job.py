"""A driver's epochs and maintenance in one process, over Kafka in memory, on a simulated clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Final, cast

from bench.soak.kafka import EPOCH_MS, MemoryAsker, MemoryKafka
from pipelines.epoch.batch import Batch
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.runner import EpochRunner
from pipelines.job.maintenance import MaintenanceScheduler
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import Partition
from pipelines.settings import Settings
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.maintenance.limits import MaintenanceLimits
from storage.rows import instant
from storage.tasks import malloc
from storage.tasks.kafka_reader import KafkaSource
from storage.tasks.land import Landing
from tests.support.local_landing import LocalLander, landed_here
from txlake import protocol as p

START_MS: Final = 1_767_225_600_000  # 2026-01-01
_IDLE_S = 600.0  # every round of maintenance is taken to its end


@dataclass(frozen=True)
class Spent:
    """What one epoch took, and the maintenance after it. Units: s."""

    epoch_s: float
    epoch_processor_s: float  # of all threads of this process
    upkeep_s: float


def mean(spent: Sequence[Spent]) -> Spent:
    """Returns the mean of what some epochs took. Errors: StatisticsError without any."""
    return Spent(*map(statistics.mean, zip(*map(astuple, spent), strict=True)))


@dataclass(frozen=True)
class MemoryLander(LocalLander):
    """A lander of records that stand in memory: each is taken from there once."""

    kafka: MemoryKafka = field(kw_only=True)

    def land(
        self,
        ranges: Mapping[Partition, range],
        landing: Landing,
        source: KafkaSource,
        tasks: int,
    ) -> Batch:
        """Lands all that waits."""
        return landed_here(self.kafka.take().to_batches(), landing, tasks)


class MemoryJob:
    """The job without Spark: its epochs land their records in this process.

    Input: what a configuration file says; when a table needs a step of maintenance.
    """

    def __init__(
        self, settings: Settings, limits: MaintenanceLimits, kafka: MemoryKafka, asker: MemoryAsker
    ) -> None:
        malloc.give_back_large_arrays()
        self.settings = settings
        self.lake = Lake(settings.lake.path, is_driver=True)
        self.lake.create(instant(START_MS))
        self.kafka = kafka
        self.now_ms = START_MS

        lander = MemoryLander(kafka=kafka)
        of_job = EpochSettings.of(settings, "bench", lander.parallelism)
        topics = cast(KafkaAdmin, kafka)

        self.epochs = EpochRunner(lander, self.lake, topics, asker, of_job, lambda: self.now_ms)
        self.epochs.resume()

        self._maintainer = MaintenanceScheduler(self.lake, limits, 0, p.ADMIN_TOPIC, lambda: False)

    def close(self) -> None:
        """Ends the epochs' threads."""
        self.epochs.close()

    @property
    def last(self) -> Plan:
        """Returns the plan of the newest epoch."""
        assert self.epochs.last is not None
        return self.epochs.last

    def epoch(self) -> Spent | None:
        """Lets a minute pass, and lands what was sent. Output: None if nothing was to be done."""
        self.now_ms += EPOCH_MS
        ends = self.kafka.end_offsets(self.kafka.partitions())

        began = time.perf_counter()
        used = time.process_time()
        self.epochs.prefetch_end_offsets()
        plan = self.epochs.run(ends)

        ended = time.perf_counter()
        used = time.process_time() - used

        self._maintainer.after_batch(plan, _IDLE_S)
        if plan is None:
            return None
        return Spent(ended - began, used, time.perf_counter() - ended)

"""The job of a soak, with its traffic and a consumer."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable

from bench.soak.kafka import EPOCH_MS, MemoryAsker, MemoryKafka
from bench.soak.memory_job import MemoryJob, Spent
from bench.soak.stories import (
    CHECK_INTERVAL_MS,
    CHECK_MAX,
    IMMUNITY_MS,
    ORPHAN_EPOCHS,
    STORIES,
    UNDELIVERABLE,
    undeliverable,
)
from bench.soak.traffic import MUTE, REAL_TOPICS, SHOP, Traffic, World
from pipelines.settings import Settings, parse
from storage.maintenance.limits import MaintenanceLimits
from txlake import Consumer

_PER_EPOCH = 2.0  # stories that begin
_CONSUMED_EPOCHS = 5  # between two looks of the consumer
# Files and logs age by the machine's clock, which a soak has little of: some twenty epochs.
_KEPT_MS = 2_000
_OFFSETS_TABLE = "consumer_offsets"


def settings_of(lake: Path, retention: int) -> Settings:
    """Returns the settings of a job, its intervals in proportion to the retention, in epochs."""
    return parse(
        {
            "lake": {
                "path": str(lake),
                "retention_ms": retention * EPOCH_MS,
                "pending_snapshot_epochs": max(2, retention // 20),
            },
            "kafka": {"bootstrap_servers": "none:1"},
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


class SoakJob(MemoryJob):
    """The job of a soak.

    Input: where its lake is, the retention in epochs, and what the traffic is drawn from.
    """

    def __init__(self, folder: Path, retention: int, seed: int) -> None:
        settings = settings_of(folder, retention)
        kafka = MemoryKafka()
        world = World(kafka, random.Random(seed), retention)
        self._traffic = Traffic(world, STORIES, _PER_EPOCH)
        for number in range(UNDELIVERABLE):
            self._traffic.begin(undeliverable(world), 2 + number)
        asker = MemoryAsker((SHOP, MUTE), self._traffic.asked)
        super().__init__(settings, limits_of(settings), kafka, asker)
        self._minutes = 0
        self._consumer: Consumer | None = None
        self.consumed = 0

    def close(self) -> None:
        """Ends the epochs' threads, and the consumer."""
        super().close()
        if self._consumer is not None:
            self._consumer.close()

    def run(self) -> Spent:
        """Runs the next epoch, with what was sent since the one before."""
        spent = None
        while spent is None:  # in some minutes nothing is sent, and nothing is due
            self._minutes += 1
            self._traffic.minute(self._minutes, self.now_ms)
            spent = self.epoch()
        if self.last.epoch % _CONSUMED_EPOCHS == 0:
            self._consume()
        return spent

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

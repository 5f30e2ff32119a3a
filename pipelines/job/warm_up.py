"""The warm-up of a standby while it waits, so that its take-over is short."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from pipelines.epoch.land import land, warm_up
from pipelines.epoch.recorded_state import restore
from pipelines.job.stream import QUERY_NAME, STALL_TIMEOUT_S, kafka_stream
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import Partition
from pipelines.kafka_client.intake import Intake
from pipelines.kafka_client.record_reader import kafka_source
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.tasks.land import Landing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("txlake.driver")

_NO_EPOCH = 0


class StandbyWarmUp:
    """A take-over that changes nothing; each time it runs it keeps Spark's Python workers alive.

    Errors are ignored: the take-over meets them, too.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        intake: Intake,
        kafka: KafkaAdmin,
        lake: Lake,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._intake = intake
        self._kafka = kafka
        self._lake = lake
        self._landing = Landing(lake.location, _NO_EPOCH, settings.wire_limits())
        self._is_first = True

    def run(self) -> None:
        """Reads the lake and lands the newest admin record; after the first time lands nothing."""
        if not self._is_first:
            warm_up(self._spark, self._landing, 1)
            return

        self._is_first = False
        with suppress(Exception):
            if self._lake.exists():
                restore(self._lake, read_progress(self._lake))
            self._stream()
        log.info("standby: ready")

    def _stream(self) -> None:
        """Runs one micro-batch: the JVM and the Python workers load what a stream needs."""
        starts = self._kafka.end_offsets(self._kafka.partitions())
        admin = self._settings.kafka.admin_topic, 0
        beginning = self._kafka.beginning_offsets([admin])[admin]
        newest = range(max(starts[admin] - 1, beginning), starts[admin])
        starts[admin] = newest.start

        with tempfile.TemporaryDirectory(prefix="txlake-rehearsal-") as checkpoint:
            query = (
                kafka_stream(self._spark, self._settings, self._intake, starts)
                .writeStream.queryName(f"{QUERY_NAME}-rehearsal")
                .foreachBatch(lambda *_: self._land({admin: newest}))
                .option("checkpointLocation", checkpoint)
                .trigger(once=True)
                .start()
            )
            try:
                query.awaitTermination(int(STALL_TIMEOUT_S))
            finally:
                query.stop()

    def _land(self, ranges: Mapping[Partition, range]) -> None:
        """Lands narrow records: it writes no file."""
        land(self._spark, ranges, self._landing, kafka_source(self._settings.kafka), 1)

"""Three epochs of real records; the third writes into every table, for tests to crash in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.settings import Settings
from storage.schemas import TABLES
from tests.support.epoch_harness import EpochHarness
from tests.support.fault_points import CHECKS_ARE_SENT, FaultPoints
from tests.support.kafka_writer import KafkaWriter, half_headers
from txlake.protocol import CANCEL, COMMIT, CREATE_TOPIC, RESEND, ROLLBACK, UNKNOWN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWERING, SILENT = "answering", "silent"  # a producer group with a check topic, one without

# The epoch writes into every table there is, and into two topics that it makes.
APPENDED = [table for table in TABLES if table not in ("lake", "epochs")]
WRITES = [
    "append epochs planned",
    *(f"append {table}" for table in APPENDED),
    *(f"create topics/{number}" for number in (2, 4)),
    *(f"append topics/{number}" for number in (1, 2, 3, 4)),
    CHECKS_ARE_SENT,
    "append epochs committed",
]


@dataclass
class CrashScenario:
    """Two epochs that went well, and one over whose every write a test may stumble.

    `spark`: None: its processes land by themselves.
    """

    spark: SparkSession | None
    settings: Settings
    folder: Path
    base_ms: int = 0

    def at(self, epoch: int) -> int:
        """Return the T of an epoch."""
        return self.base_ms + 600_000 * epoch  # ahead of when the broker stores, however slow

    def rig(self, folder: Path, watch: FaultPoints | None = None, **stream: Any) -> EpochHarness:
        """Return a new process on a lake in a folder; `stream` changes settings of that section."""
        watch = watch or FaultPoints()
        settings = self.of(folder)
        settings = replace(settings, stream=replace(settings.stream, **stream))
        return EpochHarness(self.spark, settings, watch.lake(str(folder)), watch.asker)

    def of(self, folder: Path) -> Settings:
        """Return the settings of a lake in a folder."""
        return replace(self.settings, lake=replace(self.settings.lake, path=str(folder)))

    def begin(self, wire: KafkaWriter, base_ms: int) -> None:
        """Run the first two epochs."""
        self.base_ms = base_ms

        with self.rig(self.folder / "before") as rig:
            rig.start()
            for n in range(4):  # all but 2 stay open: asked in epoch 1, given up in epoch 2
                wire.half(f"first{n}", 0, b"%d" % n, group=ANSWERING)
            wire.end(COMMIT, 2, group=ANSWERING)
            wire.end(COMMIT, wire.half("odd", 1, topic="odd", REAL_QID="77"), queue=1)

            rig.run(self.at(1))

            late = wire.half("late", 1, b"late", group=ANSWERING, DELAY="2")
            wire.end(COMMIT, late, queue=1, group=ANSWERING)
            soon = wire.half("soon", 1, b"soon", group=ANSWERING, DELAY="3")
            wire.end(COMMIT, soon, queue=1, group=ANSWERING)
            cancelled = wire.half("cancelled", 1, b"no", group=ANSWERING, DELAY="18")
            wire.end(COMMIT, cancelled, queue=1, group=ANSWERING)

            for n in range(3):  # asked in epoch 2; nobody hears the silent group's: again in 3
                wire.half(f"second{n}", 0, b"2%d" % n, group=SILENT if n else ANSWERING)
            rig.run(self.at(2))

        self._third_epoch(wire, cancelled)

    def _third_epoch(self, wire: KafkaWriter, cancelled: int) -> None:
        """Send what fills every table in the epoch that is to crash."""
        kafka = self.settings.kafka

        wire.end(UNKNOWN, 3, group=ANSWERING)
        wire.end(COMMIT, 2, group=ANSWERING)  # again: a conflict

        for n in range(6):
            offset = wire.half(f"third{n}", n % 2, b"3%d" % n, topic="third")
            wire.end(ROLLBACK if n == 5 else COMMIT, offset, queue=n % 2)

        wire.end(COMMIT, wire.half("odd2", 1, topic="odd", REAL_QID="88"), queue=1)
        wire.end(COMMIT, wire.half("held", 1, DELAY="9"), queue=1)
        wire.end(COMMIT, 1_000_000)  # names a half still to come: it waits

        wire.send(kafka.half_topic, 0, b"raw", [("x", b"y")], key=b"k")
        wire.send(kafka.schedule_topic, 0, b"plain", half_headers("s1")[3:])
        wire.send(kafka.schedule_topic, 1, b"timed", [*half_headers("s2")[3:], ("DELAY", b"18")])

        wire.command(CANCEL, f"half:1-{cancelled}")
        wire.command(CREATE_TOPIC, "topic:orders:9")
        wire.command(RESEND, "half:0-6")

    def go_on(self, rig: EpochHarness, to_epoch: int) -> None:
        """Run what is left of the story, from wherever the lake is."""
        last = rig.epochs.last
        assert last is not None
        for number in range(3, to_epoch + 1):
            if last.epoch_at < self.at(number):
                rig.run(self.at(number))

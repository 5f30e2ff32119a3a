"""Records that compress well: few bytes in Kafka, more than the heap when they are unpacked."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.wire.record_kinds import ADMIN, HALF, OP
from tests.support.job import Job, running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import half_headers
from tests.support.processes import Process
from tests.support.standby_processes import drivers_of
from tests.support.wait import DEADLINE_S, wait_until
from txlake import protocol as p

Unique = Callable[[str], str]
MIB = 1 << 20
HEAP_MIB = 768  # of conf/spark-defaults.conf
# What a process has beside the heap: its code, its threads, and portions of 16 MiB on their way.
BESIDE_MIB = 512
WORKER_MIB = 512
LEGAL_BYTES = 996_147  # 0.95 MiB: below message_bytes_max
HEADERS: dict[str, list[tuple[str, bytes]]] = {
    HALF: half_headers("tx"),
    OP: [(p.PGROUP, b"shop"), (p.TRAN_TYPE, b"8")],
    ADMIN: [("COMMAND", b"PING")],
}


def take_records_of(settings: Settings, size: int) -> None:
    """Raise max.message.bytes of all topics."""
    admin = admin_client(settings.kafka.bootstrap_servers)
    change = ConfigEntry(
        "max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET
    )
    resources = [
        ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
        for name in settings.kafka.topics().values()
    ]
    for future in admin.incremental_alter_configs(resources).values():
        future.result(DEADLINE_S)


def send(settings: Settings, kinds: Sequence[str], count: int, size: int, codec: str) -> None:
    """Send records of equal bytes, spread over the topics of some kinds and their partitions."""
    producer = Producer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "log_level": 0,
            "compression.type": codec,
            "message.max.bytes": 64 * MIB,
            "linger.ms": 5,
            "queue.buffering.max.kbytes": 64 * 1024,
        }
    )
    topics, body = settings.kafka.topics(), b"z" * size
    for number in range(count):
        kind = kinds[number % len(kinds)]
        partition = 0 if kind == ADMIN else number // len(kinds) % 2
        producer.produce(topics[kind], body, partition=partition, headers=HEADERS[kind])
        if number % 6 == 5:  # so that not all of them wait in the producer
            assert producer.flush(DEADLINE_S) == 0
    assert producer.flush(DEADLINE_S) == 0


class Peaks:
    """The largest resident sets in MiB of a job's JVM, "java", and of one of its workers."""

    def __init__(self, job: Process) -> None:
        self._job = job
        self.mib: Counter[str] = Counter()

    def look(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._job.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    # A child that Java has just made still has Java's memory, by another name.
                    is_worker = "pyspark.daemon" in process.cmdline()
                    name = "worker" if is_worker else process.name()
                    resident = process.memory_info().rss // MIB
                    self.mib[name] = max(self.mib[name], resident)


def landed(settings: Settings) -> Counter[str | None]:
    """Count what was landed of `HEADERS`, by its error; the job's own PINGs have none."""
    lake = Lake(settings.lake.location())
    if not lake.exists():
        return Counter()
    errors: Counter[str | None] = Counter()
    for kind in HEADERS:
        of_kind = Counter(row["error"] for row in lake.read(kind, ["error"]).to_pylist())
        if kind != HALF:
            del of_kind[None]
        errors += of_kind
    return errors


def test_records_that_compress_well_are_landed_in_the_heap_there_is(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    """Unpacked they are more than the heap, and 64 KiB of Kafka's log hold 90 of them."""
    settings = settings_for(broker, tmp_path / "lake", unique("packed"))
    Job(settings).prepare_topics()
    take_records_of(settings, 9 * MIB)

    send(settings, list(HEADERS), 132, 8 * MIB, "zstd")
    for codec in ("gzip", "lz4", "snappy"):
        send(settings, list(HEADERS), 6, 8 * MIB, codec)
    send(settings, [HALF], 60, LEGAL_BYTES, "zstd")
    expected = {"too_large": 150, None: 60}

    with drivers_of(settings, tmp_path) as drivers:
        job = drivers.start()
        peaks, said = Peaks(job), 0

        def are_landed() -> bool:
            assert job.code is None, job.log.read_text()[-2_000:]
            peaks.look()
            nonlocal said
            had, said = said, job.log.stat().st_size  # an epoch is a line
            return said > had and landed(settings) == expected

        wait_until(are_landed, "all records", seen=lambda: (landed(settings), peaks.mib))

    print(f"the largest resident sets, in MiB: {dict(peaks.mib)}")
    assert peaks.mib["java"] < HEAP_MIB + BESIDE_MIB, peaks.mib
    assert peaks.mib["worker"] < WORKER_MIB, peaks.mib


def test_operations_that_are_too_many_bytes_for_one_epoch_are_landed_in_several(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The driver has an operation's texts in memory, and here they are the heap's half."""
    count = 600
    settings = settings_for(
        broker, tmp_path / "lake", unique("texts"), stream={"max_offsets_per_trigger": count}
    )
    Job(settings).prepare_topics()
    producer = Producer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "compression.type": "zstd",
        }
    )
    headers = [*HEADERS[OP], (p.REMARK, b"z" * 600_000)]
    for number in range(count):
        producer.produce(settings.kafka.op_topic, b"1", partition=number % 2, headers=headers)
        if number % 50 == 49:
            assert producer.flush(DEADLINE_S) == 0

    caplog.set_level(logging.INFO, "txlake")
    with running(settings) as job:
        job.wait_for(lambda: len(job.rows("op", ["epoch"])) == count, "all operations")
        job.wait_for(lambda: "usual steps again" in caplog.text, "the usual steps")
        assert len({row["epoch"] for row in job.rows("op", ["epoch"])}) > 1
    assert "records were too large for one epoch: until they are landed, 1/4 of" in caplog.text

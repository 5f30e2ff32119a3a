"""Hostile records through the real job: none stops it, each is one row, none makes a path outside.

    python -m bench.fuzz --records 200000 --seed 1

Writes records of each kind to a broker of its own: headers missing, doubled, huge, not UTF-8, with
numbers at every limit, paths, SQL, escapes of terminals, HTML; bodies at the limit and one byte
above; a few records with 100,000 headers. A committed transaction every 1,000 records must be
delivered all the same, once. Prints JSON: records, rows by table and by reason, where
the time went.

Its errors are `FuzzError`: what was lost, doubled, or written where nothing should be.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.compute as pc
from confluent_kafka import Producer

from bench.hostile import BODY_BYTES_MAX, QUEUES, Header, hostile
from bench.job_process import JobProcess, toml
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings, parse
from storage import schemas
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.verify.run import verify
from storage.wire.record_kinds import HALF, KINDS, OP
from txlake import protocol as p

_CANARY_EVERY = 1_000
_CANARY_TOPIC = "canary"
_POLL_EVERY = 200
# Where the time goes, one after another; the job lands while the records are written, too.
_PARTS = ("start", "write", "land the rest", "stop and count", "verify")


class FuzzError(Exception):
    """What should have been one row each was not."""


def settings_of(servers: str, lake: Path, name: str) -> dict[str, dict[str, Any]]:
    """Returns settings with topics of their own; halves are asked about while they land."""
    topics = {f"{kind}_topic": f"{name}-{kind}" for kind in KINDS}

    return {
        "lake": {"path": str(lake)},
        "kafka": {
            "bootstrap_servers": servers,
            "queues": QUEUES,
            "check_topic_prefix": f"{name}-check-",
            **topics,
        },
        "transaction": {"message_bytes_max": BODY_BYTES_MAX, "transaction_timeout_ms": 1_000},
        "topics": {"topics_max": 50},
        "stream": {"max_offsets_per_trigger": 100_000},
    }


class Written:
    """What was written to Kafka: how many records, and the canaries among them."""

    def __init__(self, settings: Settings) -> None:
        self.records = 0
        self.canaries: list[bytes] = []

        self._topics = settings.kafka.topics()
        self._producer = Producer(
            {
                "bootstrap.servers": settings.kafka.bootstrap_servers,
                "linger.ms": 20,
                "message.max.bytes": p.batch_bytes_max(4 * BODY_BYTES_MAX),
            }
        )

        self._refused: list[Any] = []
        self._to_end: list[tuple[int, list[Header]]] = []  # canaries that Kafka has

    def write(self, records: int, seed: int) -> None:
        """Writes so many hostile records, and a committed transaction now and then."""
        rng = random.Random(seed)
        for number in range(records):
            self._send(*hostile(rng, number), self._report)
            if number % _CANARY_EVERY == 0:
                self._canary(b"canary %d" % number)
            if number % _POLL_EVERY == 0:
                self._producer.poll(0)
                self._end_canaries()
        self._flush()
        self._end_canaries()
        self._flush()

    def _canary(self, body: bytes) -> None:
        ids: list[Header] = [(p.PGROUP, b"canaries"), (p.UNIQ_KEY, body.replace(b" ", b"-"))]

        def is_there(error: Any, message: Any) -> None:
            self._report(error, message)
            self._to_end.append((message.offset(), ids))

        self._send(HALF, 0, body, [*ids, (p.REAL_TOPIC, _CANARY_TOPIC.encode())], is_there)
        self.canaries.append(body)

    def _end_canaries(self) -> None:
        ended = self._to_end
        self._to_end = []
        for offset, ids in ended:
            self._send(OP, 0, b"%d" % offset, [*ids, (p.TRAN_TYPE, b"8")], self._report)

    def _send(
        self,
        kind: str,
        partition: int,
        body: bytes | None,
        headers: list[Header],
        report: Callable[[Any, Any], None],
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topics[kind],
                    body,
                    partition=partition,
                    headers=headers,
                    on_delivery=report,
                )
                break
            except BufferError:
                self._producer.poll(0.1)

        self.records += 1

    def _report(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._refused.append(error)

    def _flush(self) -> None:
        if self._producer.flush(300) or self._refused:
            raise FuzzError(f"Kafka has not taken all: {self._refused[:3]}")


def rows_of(lake: Lake, ends: dict[tuple[str, int], int], topics: dict[str, str]) -> Counter[str]:
    """Returns rows by table and reason; each offset that Kafka has is one row.

    Errors: FuzzError.
    """
    found: Counter[str] = Counter()
    for kind in KINDS:
        table = lake.read(kind, ["queue_id", "queue_offset", "error"])
        queues, offsets = (table[name].to_numpy() for name in ("queue_id", "queue_offset"))
        of_kind = {queue: end for (topic, queue), end in ends.items() if topic == topics[kind]}

        for queue, end in of_kind.items():
            _require_each_once(f"{kind} queue {queue}", offsets[queues == queue], end)
        if table.num_rows != sum(of_kind.values()):
            raise FuzzError(f"{kind}: {table.num_rows} rows of {sum(of_kind.values())} records")

        found[kind] = table.num_rows
        for row in pc.value_counts(table["error"]).to_pylist():
            if row["values"]:
                found[f"{kind} {row['values']}"] = row["counts"]

    return found


def _require_each_once(where: str, offsets: Any, end: int) -> None:
    wanted = np.arange(end)
    if not np.array_equal(np.sort(offsets), wanted):
        lost = np.setdiff1d(wanted, offsets)
        seen, counts = np.unique(offsets, return_counts=True)
        raise FuzzError(
            f"{where}: lost {lost[:5]}, twice {seen[counts > 1][:5]}, beyond {end}: "
            f"{seen[seen >= end][:5]}"
        )


def strange_paths(folder: Path, lake: Path) -> list[str]:
    """Returns what stands where nothing should: beside the lake, or in it beside its tables."""
    tables = {
        *schemas.TABLES,
        "topics",
        "consumer_offsets",
        "consumer_members",
        "consumer_retries",
        "consumer_dead_letters",
    }

    strange = [str(at) for at in folder.iterdir() if at != lake and not at.name.startswith("job.")]
    strange += [str(at) for at in lake.iterdir() if at.name not in tables and at.name[0] != "_"]

    numbers = lake / "topics"
    return strange + [str(at) for at in numbers.iterdir() if not re.fullmatch(r"\d+", at.name)]


def messages(lake: Lake, topic: str) -> list[bytes]:
    """Returns the bodies that a real topic has."""
    ids = {row["topic"]: row["table_id"] for row in lake.read("catalog").to_pylist()}
    return list(lake.read(f"topics/{ids[topic]}", ["body"])["body"].to_pylist())


def fuzz(broker: Broker, folder: Path, temp: Path, records: int, seed: int) -> dict[str, Any]:
    """Runs the whole. Output: the report. Errors: FuzzError, BenchError."""
    lake = folder / "lake"
    name = f"fuzz-{seed}"
    sections = settings_of(broker.bootstrap_servers, lake, name)
    settings = parse(sections, "fuzz")
    (folder / "job.toml").write_text(toml(sections), "utf-8")
    topics = KafkaAdmin(settings, settings.kafka.topics())
    topics.create_missing()
    written = Written(settings)
    times = [time.monotonic()]
    with JobProcess(settings, folder / "job.toml", temp) as job:
        job.wait_until_streaming(300)
        times.append(time.monotonic())
        written.write(records, seed)
        times.append(time.monotonic())
        ends = topics.end_offsets(topics.partitions())

        def is_landed() -> bool:
            last = read_progress(job.lake).last if job.lake.exists() else None
            landed = {} if last is None else last.landed()
            return all(landed.get(place, 0) >= end for place, end in ends.items())

        job.wait_for(is_landed, f"{records} records landed", 600 + records / 100)
        times.append(time.monotonic())
    opened = Lake(str(lake))
    last = read_progress(opened).last
    assert last is not None
    rows = rows_of(opened, dict(last.landed()), settings.kafka.topics())
    strange = strange_paths(folder, lake)
    delivered = messages(opened, _CANARY_TOPIC)
    if strange or sorted(delivered) != sorted(written.canaries):
        raise FuzzError(
            f"paths {strange[:5]}; {len(delivered)} of {len(written.canaries)} canaries"
        )
    times.append(time.monotonic())
    broken = {f.invariant.name: f.rows[:3] for f in verify(opened).findings if f.violations}
    if broken:
        raise FuzzError(f"verify: {broken}")
    times.append(time.monotonic())
    spans = (round(to - at, 1) for at, to in pairwise(times))
    return {
        "records": written.records,
        "rows": dict(sorted(rows.items())),
        "canaries": len(delivered),
        "checks": opened.read("checks", ["epoch"]).num_rows,
        "epochs": last.epoch,
        "seconds": dict(zip(_PARTS, spans, strict=True)),
    }


@click.command()
@click.option("--records", default=200_000, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=1, show_default=True)
def main(records: int, seed: int) -> None:
    """Write hostile records, and look what the job made of them."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        at = Path(place)
        (at / "own").mkdir()
        (at / "temp").mkdir()
        with Broker(at / "broker") as broker:
            click.echo(json.dumps(fuzz(broker, at / "own", at / "temp", records, seed), indent=2))


if __name__ == "__main__":
    main()

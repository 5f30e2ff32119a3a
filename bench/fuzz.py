"""Hostile records through the real job: none stops it, each is one row, none makes a path outside.

    python -m bench.fuzz --records 200000 --seed 1

Writes records of each kind to a broker of its own: headers missing, doubled, huge, not UTF-8, with
numbers at every limit, paths, SQL, escapes of terminals, HTML; bodies at the limit and one byte
above; a few records with 100,000 headers. A committed transaction every 1,000 records must be
delivered all the same, once. Prints JSON: records, rows by table and by reason, seconds.

Its errors are `FuzzError`: what was lost, doubled, or written where nothing should be.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click
from confluent_kafka import Producer

from bench.job_process import JobProcess, toml
from pipelines.kafka_log.topics import KafkaTopics
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings, parse
from storage import schemas
from storage.lake.epochs import read_progress
from storage.lake.lake import Lake
from storage.verify.run import verify
from storage.wire.kinds import ADMIN, HALF, KINDS, OP, SCHEDULE
from txlake import protocol as p

Header = tuple[str, str | bytes | None]
Hostile = tuple[str, int, bytes | None, list[Header]]  # kind, partition, body, headers
BODY_BYTES_MAX: Final = 65_536
QUEUES: Final = 4
_CANARY_EVERY = 1_000
_CANARY_TOPIC = "canary"
_MANY_HEADERS = 100_000
_NUMBERS = tuple(
    str(number).encode()
    for bits in (7, 8, 15, 16, 31, 32, 63, 64, 128)
    for number in (2**bits - 1, 2**bits, -(2**bits))
)  # fmt: skip
_VALUES: Final[tuple[bytes | None, ...]] = (
    None, b"", b"\0", b"a\0b", b"\xff\xfe", b" ", b"\n", b"..", b".", b"...",
    b"../../../etc/passwd", b"/etc/passwd", b"a/b", b"C:\\x", b"half", b"_delta_log", b"epoch=1",
    b"x" * 127, b"x" * 128,
    b"x" * 10_000, b"'; DROP TABLE half; --", b'" OR 1=1', b"\x1b[2J\x1b]0;x\x07",
    b"${jndi:ldap:x}", b"<script>alert(1)</script>", b"{{7*7}}", b"%s%n", "\u202egnp.exe".encode(),
    "\u0663".encode(),
    b"NaN", b"1e9", b"+1", b"007", b"0", b"1", b"2", b"8", b"12", b"true", b"shop", b"tx-1",
    b"orders", b"9" * 400, p.OP_TOPIC.encode(), b"TRANS_CHECK_x", b"PING", b"RESUME", *_NUMBERS,
)  # fmt: skip
_NAMES: Final = (
    *p.HALF_HEADERS, *p.OP_HEADERS, *p.ADMIN_HEADERS, *p.CHECK_HEADERS, "user", "../x", "\u202e",
    "n" * 1_000,
)  # fmt: skip
_READABLE: Final[dict[str, tuple[Header, ...]]] = {
    HALF: ((p.PGROUP, b"shop"), (p.UNIQ_KEY, b"tx-1"), (p.REAL_TOPIC, b"orders")),
    OP: ((p.PGROUP, b"shop"), (p.TRAN_TYPE, b"8")),
    SCHEDULE: ((p.REAL_TOPIC, b"orders"),),
    ADMIN: ((p.COMMAND, b"CANCEL"), (p.TARGET, b"half:0-1"), (p.ACTOR, b"ada")),
}


class FuzzError(Exception):
    """What should have been one row each was not."""


def hostile(rng: random.Random, number: int) -> Hostile:
    """Returns a record: a readable one of its kind, changed here and there."""
    kind = rng.choices(KINDS, (6, 4, 3, 1))[0]
    headers = [*_READABLE[kind]]
    for _ in range(rng.randrange(5)):
        change = rng.randrange(4)
        at = rng.randrange(len(headers) + 1)
        if change == 0 and headers:
            del headers[at % len(headers)]
        elif change == 1 and headers:
            headers.insert(at, rng.choice(headers))
        elif change == 2 and headers:
            name, _ = headers[at % len(headers)]
            headers[at % len(headers)] = name, rng.choice(_VALUES)
        else:
            headers.insert(at, (rng.choice(_NAMES), rng.choice(_VALUES)))
    body = rng.choice(_VALUES) if kind != OP else _offsets(rng)
    if number % 5_000 == 17:  # whole records at the limit, and one byte above
        size = sum(len(name.encode()) + len(value or b"") for name, value in headers)
        body = b"b" * (BODY_BYTES_MAX - size + number % 2)
    if number % 50_000 == 33:
        headers += [("h", b"")] * _MANY_HEADERS
    partition = 0 if kind in (ADMIN, SCHEDULE) else rng.randrange(QUEUES)
    return kind, partition, body, headers


def _offsets(rng: random.Random) -> bytes | None:
    if rng.random() < 0.3:
        return rng.choice(_VALUES)
    return b",".join(str(rng.randrange(10_000)).encode() for _ in range(rng.randrange(1, 6)))


def settings_of(servers: str, lake: Path, name: str) -> dict[str, dict[str, Any]]:
    """Returns settings with topics of their own; halves are asked about while they land."""
    topics = {f"{kind}_topic": f"{name}-{kind}" for kind in KINDS}
    return {
        "lake": {"path": str(lake)},
        "kafka": {"bootstrap_servers": servers, "queues": QUEUES,
                  "check_topic_prefix": f"{name}-check-", **topics},
        "transaction": {"message_bytes_max": BODY_BYTES_MAX, "transaction_timeout_ms": 1_000},
        "topics": {"topics_max": 50},
        "stream": {"max_offsets_per_trigger": 20_000},
    }  # fmt: skip


class Written:
    """What was written to Kafka: how many records, and the canaries among them."""

    def __init__(self, settings: Settings) -> None:
        self.records = 0
        self.canaries: list[bytes] = []
        self._topics = settings.kafka.topics()
        self._producer = Producer({
            "bootstrap.servers": settings.kafka.bootstrap_servers, "linger.ms": 20,
            "message.max.bytes": p.batch_bytes_max(4 * BODY_BYTES_MAX),
        })  # fmt: skip
        self._refused: list[Any] = []
        self._half_offset = -1

    def write(self, records: int, seed: int) -> None:
        """Writes so many hostile records, and a committed transaction now and then."""
        rng = random.Random(seed)
        for number in range(records):
            self._send(*hostile(rng, number))
            if number % _CANARY_EVERY == 0:
                self._canary(b"canary %d" % number)
        self._flush()

    def _canary(self, body: bytes) -> None:
        self._flush()
        ids = [(p.PGROUP, b"canaries"), (p.UNIQ_KEY, body.replace(b" ", b"-"))]
        self._send(HALF, 0, body, [*ids, (p.REAL_TOPIC, _CANARY_TOPIC.encode())])
        self._flush()
        end = str(self._half_offset).encode()
        self._send(OP, 0, end, [*ids, (p.TRAN_TYPE, b"8")])
        self.canaries.append(body)

    def _send(self, kind: str, partition: int, body: bytes | None, headers: list[Header]) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topics[kind], body, partition=partition, headers=headers,
                    on_delivery=self._report,
                )  # fmt: skip
                break
            except BufferError:
                self._producer.poll(0.1)
        self.records += 1

    def _report(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append(error)
        self._half_offset = message.offset()

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
        places = Counter(
            zip(*(table[name].to_pylist() for name in table.column_names[:2]), strict=True)
        )
        wanted = {
            (partition, offset)
            for (topic, partition), end in ends.items() if topic == topics[kind]
            for offset in range(end)
        }  # fmt: skip
        twice = [place for place, count in places.items() if count > 1]
        if twice or wanted != set(places):
            lost = sorted(wanted - set(places))[:5]
            raise FuzzError(f"{kind}: lost {lost}, twice {twice[:5]}, of {len(wanted)}")
        found[kind] += len(wanted)
        found.update(f"{kind} {error}" for error in table["error"].to_pylist() if error)
    return found


def strange_paths(folder: Path, lake: Path) -> list[str]:
    """Returns what stands where nothing should: beside the lake, or in it beside its tables."""
    tables = {*schemas.TABLES, "topics", "consumer_offsets"}
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
    lake, name, began = folder / "lake", f"fuzz-{seed}", time.monotonic()
    sections = settings_of(broker.bootstrap_servers, lake, name)
    settings = parse(sections, "fuzz")
    (folder / "job.toml").write_text(toml(sections), "utf-8")
    topics = KafkaTopics(settings, settings.kafka.topics())
    topics.create_missing()
    written = Written(settings)
    with JobProcess(settings, folder / "job.toml", temp) as job:
        job.wait_until_streaming(300)
        written.write(records, seed)
        ends = topics.end_offsets(topics.places())

        def is_landed() -> bool:
            last = read_progress(job.lake).last if job.lake.exists() else None
            landed = {} if last is None else last.landed()
            return all(landed.get(place, 0) >= end for place, end in ends.items())

        job.wait_for(is_landed, f"{records} records landed", 600 + records / 100)
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
    broken = {f.invariant.name: f.rows[:3] for f in verify(opened).findings if f.violations}
    if broken:
        raise FuzzError(f"verify: {broken}")
    return {"records": written.records, "rows": dict(sorted(rows.items())),
            "canaries": len(delivered), "epochs": last.epoch,
            "seconds": round(time.monotonic() - began)}  # fmt: skip


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

"""The two sides, one turn each: start everything, warm up, measure, end and delete everything."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.bodies import RANDOM
from bench.counter_file import CounterFile
from bench.figure import summary
from bench.figures.sustained import UNDER_LOAD, sustained_rate
from bench.job_process import BenchError
from bench.load import run_load
from bench.peer.rocketmq import CLIENT_JAVA, RocketMQ
from bench.peer.turns import OURS, PEER, PEER_ON_ROCKSDB, Turn
from bench.sample_data import Mix
from bench.sizes import Size
from bench.usage import processor_s
from bench.workbench import QUEUES, Workbench
from pipelines.local_broker.broker import Broker
from tests.support.processes import Process

THREADS = 32
TOPIC = "orders"
MESSAGES_AT_ONCE = 32  # as many as the client fetches at once by default
# With the first option alone RocketMQ 5.5.0 keeps half messages in their old topic, without
# RocksDB: that is the default of the second.
_ON_ROCKSDB = {"transRocksDBEnable": "true", "transWriteOriginTransHalfEnable": "false"}
# Where RocketMQ puts half messages. It ignores an option that it does not know.
_HALF_TOPIC = {
    PEER: "RMQ_SYS_TRANS_HALF_TOPIC",
    PEER_ON_ROCKSDB: "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
}
_LOOK_S = 1.0
_SETTLE_S, _END_S = 120.0, 30.0
_ENDED = (0, 143)  # Java's code after SIGTERM is the second


@dataclass(frozen=True)
class Bench:
    """What all turns share."""

    size: Size
    folder: Path
    class_path: str
    say: Callable[[str], None]


def measure(bench: Bench, side: str, body_bytes: int, number: int) -> Turn:
    """Lets one side work alone, in a folder that is deleted afterwards."""
    folder = bench.folder / folder_name(side, body_bytes, number)
    folder.mkdir()
    try:
        if side == OURS:
            return _ours(bench, folder, body_bytes, number)
        return _rocketmq(bench, folder, side, body_bytes, number)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def folder_name(side: str, body_bytes: int, number: int) -> str:
    """Returns the name of a turn's folder, without a space: it would end an option of Java."""
    return f"{side}-{body_bytes}-{number}".replace(", ", "-")


def _ours(bench: Bench, folder: Path, body_bytes: int, number: int) -> Turn:
    size = bench.size
    arguments = ["--in-flight", str(size.in_flight), *UNDER_LOAD]
    arguments += ["--body", RANDOM, "--body-bytes", str(body_bytes)]

    with Broker(folder / "kafka") as broker:
        workbench = Workbench(size, folder, broker, bench.say)
        run = run_load(workbench, "peer", size.sustained_s, arguments, watches_memory=False)
    rate, _ = sustained_rate(run)

    return Turn(
        OURS,
        body_bytes,
        number,
        rate,
        cores=run.processor,
        counts=run.counts,
        age_ms=summary(run.ages_ms(), 0),
    )


def _rocketmq(bench: Bench, folder: Path, side: str, body_bytes: int, number: int) -> Turn:
    size = bench.size
    mix = Mix()
    sent, consumed = CounterFile(folder / "sent", 3), CounterFile(folder / "consumed", 1)
    samples = folder / "samples.json"
    broker_options = _ON_ROCKSDB if side == PEER_ON_ROCKSDB else {}

    with RocketMQ(folder / "rocketmq", bench.class_path, broker_options) as rocketmq:
        producer = rocketmq.start_java(
            "producer",
            CLIENT_JAVA,
            [
                "SendTransactions",
                rocketmq.name_server,
                TOPIC,
                str(QUEUES),
                str(THREADS),
                str(body_bytes),
                str(size.in_flight),
                str(mix.rolled_back),
                str(mix.unanswered),
                str(folder / "sent"),
                str(folder / "consumed"),
            ],
        )
        # The topic is there then: a consumer that does not find it looks again after 30 s.
        rocketmq.wait_for(lambda: sent.read()[0] > 0, "transactions are sent")
        consumer = rocketmq.start_java(
            "consumer",
            CLIENT_JAVA,
            [
                "ConsumeMessages",
                rocketmq.name_server,
                TOPIC,
                str(MESSAGES_AT_ONCE),
                str(folder / "consumed"),
                str(samples),
            ],
        )

        rocketmq.wait_for(lambda: consumed.read()[0] > 0, "messages are consumed")
        if rocketmq.topics() & set(_HALF_TOPIC.values()) != {_HALF_TOPIC[side]}:
            raise BenchError(f"half messages are not in {_HALF_TOPIC[side]} alone")

        time.sleep(size.warm_up_s)
        watched = _watch(rocketmq, size.sustained_s, sent, consumed)

        # It sends nothing more, and answers checks until all is consumed.
        _end("producer", producer, _SETTLE_S)
        _end("consumer", consumer, _END_S)

    _, committed, failed = sent.read()
    ages = [
        ms
        for at, ms in json.loads(samples.read_text("utf-8"))
        if watched.counts[0][0] <= at <= watched.counts[-1][0]
    ]

    return Turn(
        side,
        body_bytes,
        number,
        watched.rate,
        watched.cores,
        watched.counts,
        summary(ages, 0),
        failed=failed,
        not_delivered=committed - consumed.read()[0],
    )


@dataclass(frozen=True)
class _Watched:
    rate: float
    cores: dict[str, float]
    counts: list[tuple[float, int, int]]


def _watch(
    rocketmq: RocketMQ, seconds: float, sent: CounterFile, consumed: CounterFile
) -> _Watched:
    def used() -> dict[str, float]:
        return {name: processor_s(process.pid) for name, process in rocketmq.processes.items()}

    counts = []
    before = used()
    began = time.monotonic()
    sent_before = sent.read()[0]
    while (left := began + seconds - time.monotonic()) > 0:
        rocketmq.check_alive()
        counts.append((time.time(), sent.read()[1], consumed.read()[0]))
        time.sleep(min(_LOOK_S, left))
    spent = time.monotonic() - began
    sent_after = sent.read()[0]
    after = used()
    cores = {name: round((after[name] - before[name]) / spent, 3) for name in before}
    return _Watched((sent_after - sent_before) / spent, cores, counts)


def _end(name: str, process: Process, timeout_s: float) -> None:
    process.terminate()
    if process.wait(timeout_s) not in _ENDED:
        raise BenchError(f"the {name} did not end in good order: {process.last_line()}")

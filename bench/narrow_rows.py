"""What one very large epoch asks of the driver: its narrow rows handed over, decided, recorded.

    python -m bench.narrow_rows --transactions 10000000

No Kafka, no Spark, no bodies: rows as tasks hand them back are made before, and the driver's own
functions do the rest on an empty lake. Ten million transactions whose ends are records of their own
are 20 M rows. It prints, by step, wall clock, processor time and the largest resident set.

Not in it: the socket on which Spark hands rows over, and the commit of the files of messages.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.usage import own_resident_bytes
from checker.decide import decide
from checker.frames import RULE_VERSION, Decision, Instants, Parameters, State
from pipelines.apply import Applier
from pipelines.batch import Batch
from pipelines.commit import decided_counts, landed_counts, state_rows
from pipelines.deliver import Deliverer, _sliced
from pipelines.epoch_settings import plan_parameters
from pipelines.lookups import inputs_of
from pipelines.plan import queues_of
from pipelines.sizes import Sizes
from storage.arrow_bytes import as_bytes
from storage.deliver import Delivery, Files
from storage.epoch_log import EpochLog
from storage.epochs import Plan, Range, read_progress
from storage.kafka_arrow import RECORDS
from storage.kafka_rows import HALF, OP, WireLimits
from storage.lake import Lake
from storage.land import LANDED, read_landed
from storage.rows import instant
from txlake import protocol as p

QUEUES = 4
_PORTION_ROWS = 16_384  # as a task hands them back
_PARALLELISM = 16  # tasks at once, on a cluster
_AT_MS = 1_767_225_600_000
_TOPICS = {"half": p.HALF_TOPIC, "op": p.OP_TOPIC, "schedule": p.SCHEDULE_TOPIC,
           "admin": p.ADMIN_TOPIC}  # fmt: skip
# Of so many transactions one is rolled back, and one has no end.
_ROLLED_BACK, _UNANSWERED = 50, 100
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)
_PAUSE_S = 0.02


@dataclass
class Step:
    """What one step took. Units: s; `resident_bytes` at the most."""

    name: str
    seconds: float = 0.0
    processor_s: float = 0.0
    resident_bytes: int = 0


@dataclass
class Meter:
    """Measure steps of this process, one after the other."""

    steps: list[Step] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a block."""
        step, ended = Step(name), threading.Event()

        def watch() -> None:
            while not ended.is_set():
                step.resident_bytes = max(step.resident_bytes, own_resident_bytes())
                ended.wait(_PAUSE_S)

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        began, used = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            step.seconds, step.processor_s = time.perf_counter() - began, time.process_time() - used
            ended.set()
            watching.join()
            step.resident_bytes = max(step.resident_bytes, own_resident_bytes())
            self.steps.append(step)


@dataclass(frozen=True)
class PackingDeliverer(Deliverer):
    """What packs the placements for tasks, and has none."""

    def deliver(self, lake: Lake, delivery: Delivery, tasks: int) -> Files:
        """Pack them as the job does. Output: no file."""
        for part in _sliced(delivery.placements, tasks):
            as_bytes(part)
        return {}


def write_narrow_rows(path: Path, transactions: int, ends_per_operation: int) -> int:
    """Write what the tasks of an epoch hand back, as an Arrow stream. Output: narrow rows."""
    each, rows = transactions // QUEUES, 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, LANDED) as stream:
        for queue in range(QUEUES):
            for start in range(0, each, _PORTION_ROWS):
                halves = _halves(queue, np.arange(start, min(each, start + _PORTION_ROWS)))
                rows += halves.num_rows
                stream.write_batch(_landed(halves))
        for queue in range(QUEUES):
            answered = np.arange(each)
            answered = answered[answered % _UNANSWERED != 1]
            portion = _PORTION_ROWS * ends_per_operation
            for start in range(0, len(answered), portion):
                first = start // ends_per_operation
                ended = answered[start : start + portion]
                operations = _operations(queue, first, ended, ends_per_operation)
                rows += operations.num_rows
                stream.write_batch(_landed(operations))
    return rows


def run_epoch(narrow_rows: Path, folder: Path, transactions: int, meter: Meter) -> Decision:
    """Do the driver's part of an epoch on a new lake."""
    lake = Lake(str(folder))
    lake.create(instant(_AT_MS))
    log, plan = EpochLog(lake), _plan(transactions)
    log.take_up(read_progress(lake))
    with meter.step("hand over"), pa.OSFile(str(narrow_rows)) as source:
        stream = pa.ipc.open_stream(source)
        batch = Batch.of((rows for row in stream for rows, _ in read_landed(row)), {})
    with meter.step("plan"):
        log.plan(plan)
    counts = landed_counts(batch)
    with meter.step("look up"):
        inputs = [inputs_of(batch, lake, State(), plan, _limits())]
    with meter.step("decide"):
        instants = Instants(plan.epoch_at, queues_of(plan, p.HALF_TOPIC))
        decision = decide(State(), inputs.pop(), instants, plan_parameters(plan))
        batch.drop(HALF)  # as the job does: its memory is needed
        pa.default_memory_pool().release_unused()
    sizes = Sizes(_PARALLELISM, "executors")
    applier = Applier(lake, plan, batch, PackingDeliverer(None), sizes, None)
    with meter.step("pack placements"), ThreadPoolExecutor(1) as pool:
        applier.create_topics(decision)
        for future in applier.deliver(decision, [], pool):
            future.result()
    with meter.step("record"):
        counts |= decided_counts(decision) | applier.record(decision)
    with meter.step("changes of the state"):
        for table, rows in state_rows(plan, decision, is_snapshot=False).items():
            if rows.num_rows:
                applier.append(table, rows)
    with meter.step("commit"):
        log.commit(plan, {}, counts, {})
    return decision


@click.command()
@click.option("--transactions", default=10_000_000, show_default=True)
@click.option("--ends-per-operation", default=1, show_default=True)
def main(transactions: int, ends_per_operation: int) -> None:
    """Run one epoch, and print what it took."""
    meter = Meter()
    with tempfile.TemporaryDirectory(prefix="txlake-narrow-") as folder:
        path = Path(folder) / "narrow-rows"
        rows = write_narrow_rows(path, transactions, ends_per_operation)
        size = path.stat().st_size
        click.echo(f"{transactions} transactions, {rows} narrow rows, {size / 1e6:.0f} MB")
        run_epoch(path, Path(folder) / "lake", transactions, meter)
    click.echo(f"{'step':22}{'s':>8}{'processor s':>13}{'us a tx':>9}{'resident GB':>13}")
    total = Step("all")
    for step in meter.steps:
        total.seconds += step.seconds
        total.processor_s += step.processor_s
        total.resident_bytes = max(total.resident_bytes, step.resident_bytes)
    for step in (*meter.steps, total):
        click.echo(
            f"{step.name:22}{step.seconds:8.2f}{step.processor_s:13.2f}"
            f"{step.processor_s / transactions * 1e6:9.2f}{step.resident_bytes / 1e9:13.2f}"
        )


def _halves(queue: int, offsets: np.ndarray) -> pa.Table:
    return _records(
        HALF, queue, offsets, real_topic=pa.repeat("orders", len(offsets)),
        transaction_id=_transaction_ids(queue, offsets),
    )  # fmt: skip


def _operations(queue: int, first: int, ended: np.ndarray, each: int) -> pa.Table:
    """Give operation records that end some halves, so many each."""
    starts = np.append(np.arange(0, len(ended), each), len(ended)).astype(np.int32)
    numbers = first + np.arange(len(starts) - 1)
    names = pa.ListArray.from_arrays(starts, pa.array(ended).cast(pa.string()))
    is_back = pa.array(numbers % _ROLLED_BACK == 0)
    return _records(
        OP, queue, numbers,
        decision=pc.if_else(is_back, p.ROLLBACK, p.COMMIT),
        half_offsets=pa.ListArray.from_arrays(starts, pa.array(ended)),
        transaction_ids=pa.ListArray.from_arrays(starts, _transaction_ids(queue, ended)),
        from_check=pa.repeat(False, len(numbers)),
        body=pc.binary_join(names, ",").cast(pa.binary()),
    )  # fmt: skip


def _records(kind: str, queue: int, offsets: np.ndarray, **columns: pa.Array) -> pa.Table:
    count = len(offsets)
    known = {
        "kind": pa.repeat(kind, count), "queue_id": pa.repeat(pa.scalar(queue, pa.int32()), count),
        "queue_offset": pa.array(offsets), "producer_group": pa.repeat("shop", count),
        "stored_at": pa.array(np.full(count, _AT_MS * 1000)), **columns,
    }  # fmt: skip
    return pa.table(
        [known[f.name].cast(f.type) if f.name in known else pa.nulls(count, f.type)
         for f in RECORDS],
        schema=RECORDS,
    )  # fmt: skip


def _transaction_ids(queue: int, offsets: np.ndarray) -> pa.Array:
    """Give ids of 32 hexadecimal digits, as the SDK's: half of them equal in neighbours."""
    high = np.full(len(offsets), _AT_MS << 16 | queue, np.uint64)
    low = offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digits = np.concatenate(
        [(part[:, None] >> shifts & np.uint64(15)).astype(np.uint8) for part in (high, low)], axis=1
    )
    starts = np.arange(0, 32 * len(offsets) + 1, 32, dtype=np.int32)
    text = np.ascontiguousarray(_HEXADECIMAL[digits])
    return pa.StringArray.from_buffers(len(offsets), pa.py_buffer(starts), pa.py_buffer(text))


def _landed(narrow: pa.Table) -> pa.RecordBatch:
    values = [pa.array([as_bytes(narrow)], pa.binary()), pa.array(["{}"])]
    return pa.RecordBatch.from_arrays(values, schema=LANDED)


def _limits() -> WireLimits:
    return WireLimits(_TOPICS, p.CHECK_TOPIC_PREFIX, p.MESSAGE_BYTES_MAX, p.MESSAGES_MAX)


def _plan(transactions: int) -> Plan:
    each = transactions // QUEUES
    ranges = [Range(topic, queue, 0, each, each)
              for topic in (p.HALF_TOPIC, p.OP_TOPIC) for queue in range(QUEUES)]  # fmt: skip
    known = dict.fromkeys(range(QUEUES), _AT_MS)
    parameters = {**asdict(Parameters()), "wire": asdict(_limits())}
    return Plan(
        1, _AT_MS, known, known, tuple(ranges), "none", {}, {}, parameters, "bench", RULE_VERSION
    )


if __name__ == "__main__":
    main()

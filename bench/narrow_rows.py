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
import pyarrow as pa

from bench.narrow_data import AT_MS, QUEUES, write_narrow_rows
from bench.usage import own_resident_bytes
from checker.decide import decide
from checker.frames import RULE_VERSION, Decision, Parameters, State
from pipelines.epoch.batch import Batch, rows_by_kind
from pipelines.epoch.counts import decided_counts, landed_counts
from pipelines.epoch.delivery import MessageDelivery, _split
from pipelines.epoch.lookups import build_inputs
from pipelines.epoch.parameters import plan_parameters
from pipelines.epoch.plan import to_instants
from pipelines.epoch.recorded_state import state_rows
from pipelines.epoch.task_sizing import TaskSizing
from pipelines.epoch.write import EpochWriter
from storage.lake.epoch_log import EpochLog
from storage.lake.epochs import Plan, Range, read_progress
from storage.lake.lake import Lake
from storage.rows import instant
from storage.tasks.arrow_bytes import as_bytes
from storage.tasks.deliver import Delivery
from storage.tasks.file_buffer import Files
from storage.tasks.land import read_landed
from storage.wire.record_kinds import HALF, WireLimits
from txlake import protocol as p

_PARALLELISM = 16  # tasks at once, on a cluster
_TOPICS = {"half": p.HALF_TOPIC, "op": p.OP_TOPIC, "schedule": p.SCHEDULE_TOPIC,
           "admin": p.ADMIN_TOPIC}  # fmt: skip
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
class PackingDeliverer(MessageDelivery):
    """What packs the placements for tasks, and has none."""

    def deliver(self, lake: Lake, delivery: Delivery, tasks: int) -> Files:
        """Pack them as the job does. Output: no file."""
        for part in _split(delivery.placements, tasks):
            as_bytes(part)
        return {}


def run_epoch(narrow_rows: Path, folder: Path, transactions: int, meter: Meter) -> Decision:
    """Do the driver's part of an epoch on a new lake."""
    lake = Lake(str(folder))
    lake.create(instant(AT_MS))
    log, plan = EpochLog(lake), _plan(transactions)
    log.take_up(read_progress(lake))
    with meter.step("hand over"), pa.OSFile(str(narrow_rows)) as source:
        stream = pa.ipc.open_stream(source)
        batch = Batch(rows_by_kind(rows for row in stream for rows, _ in read_landed(row)))
    with meter.step("plan"):
        log.plan(plan)
    counts = landed_counts(batch)
    with meter.step("look up"):
        inputs = [build_inputs(batch, lake, State(), plan, _limits())]
    with meter.step("decide"):
        instants = to_instants(plan, None, p.HALF_TOPIC)
        decision = decide(State(), inputs.pop(), instants, plan_parameters(plan))
        del batch.by_kind[HALF]  # as the job does: its memory is needed
        pa.default_memory_pool().release_unused()
    sizes = TaskSizing(_PARALLELISM, "executors")
    applier = EpochWriter(lake, plan, batch, PackingDeliverer(None), sizes, None)
    with meter.step("pack placements"), ThreadPoolExecutor(2) as pool:
        applier.create_topics(decision)
        for future in applier.deliver(decision, [], pool):
            future.result()
    with meter.step("record"), ThreadPoolExecutor(2) as pool:
        recorded, writes = applier.write_decided_rows(decision, pool)
        counts |= decided_counts(decision) | recorded
        for future in writes:
            future.result()
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


def _limits() -> WireLimits:
    return WireLimits(_TOPICS, p.CHECK_TOPIC_PREFIX, p.MESSAGE_BYTES_MAX, p.MESSAGES_MAX)


def _plan(transactions: int) -> Plan:
    each = transactions // QUEUES
    ranges = [Range(topic, queue, 0, each, each)
              for topic in (p.HALF_TOPIC, p.OP_TOPIC) for queue in range(QUEUES)]  # fmt: skip
    known = dict.fromkeys(range(QUEUES), AT_MS)
    parameters = {**asdict(Parameters()), "wire": asdict(_limits())}
    return Plan(
        1, AT_MS, known, known, tuple(ranges), "none", {}, parameters, "bench", RULE_VERSION
    )


if __name__ == "__main__":
    main()

"""Does an epoch get slower as its lake grows? The tables alone, without Kafka and Spark.

Run: python bench/table_growth.py FOLDER EPOCHS [--without] [--speed 10]

Writes the tables that a small epoch always writes (both rows of `epochs`, half, a topic; ten
messages) and reads what it reads, with the job's own maintenance between epochs; `--without` leaves
it out. Goes on where the lake in FOLDER stands, and prints for every thousand epochs how long they
took; on a busy machine the processor time tells more. Such epochs follow each other some ten times
as fast as a job's, so the retentions are by that factor (`--speed`) shorter than the defaults: as
many files and versions are kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import RULE_VERSION, Parameters
from pipelines.maintain import Maintainer
from pipelines.restore import topics_before
from pipelines.settings import MaintenanceSettings
from storage.epochs import Plan, Range, committed_row, planned_row
from storage.lake import Lake
from storage.maintenance import MaintenanceLimits
from storage.rows import instant
from txlake import protocol as p

QUEUES = 4
ROWS = 10
START_MS = 1_767_225_600_000  # 2026-01-01
_TOPICS = {p.HALF_TOPIC: QUEUES, p.OP_TOPIC: QUEUES, p.SCHEDULE_TOPIC: 19, p.ADMIN_TOPIC: 1}
_TEMPLATES: dict[str, dict[str, Any]] = {
    "half": {"producer_group": "shop", "real_topic": "orders", "body": b"x" * 256},
    "topics/1": {"source": "half", "producer_group": "shop", "real_topic": "orders",
                 "body": b"x" * 256, "half_queue_id": 0, "half_queue_offset": 1},
}  # fmt: skip


def plan_of(epoch: int) -> Plan:
    """Give the plan of an epoch, as large as a real one."""
    at = START_MS + epoch * 1_000
    known = dict.fromkeys(range(QUEUES), at)
    ranges = tuple(
        Range(topic, queue, epoch, epoch + (topic != p.ADMIN_TOPIC), epoch)
        for topic, queues in _TOPICS.items()
        for queue in range(queues)
    )
    offsets = {("orders", queue): epoch * ROWS for queue in range(QUEUES)}
    return Plan(epoch, at, known, known, ranges, "cluster", {}, offsets, asdict(Parameters()),
                "bench", RULE_VERSION)  # fmt: skip


class Epoch:
    """Write epochs: the same rows each time, but for their numbers."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._rows = {
            table: pa.Table.from_pylist([template] * ROWS, schema=lake.schema(table))
            for table, template in _TEMPLATES.items()
        }

    def run(self, plan: Plan) -> None:
        """Write one epoch."""
        lake, epoch = self._lake, plan.epoch
        lake.append("epochs", planned_row(plan, instant(plan.epoch_at)), epoch)
        self._read_owner(epoch)
        topics_before(lake, epoch)
        for table, rows in self._rows.items():
            lake.append(table, _numbered(rows, epoch), epoch)
        self._read_owner(epoch)
        row = committed_row(plan, instant(plan.epoch_at), plan.next_offsets, {}, {})
        lake.append("epochs", row, epoch)

    def _read_owner(self, epoch: int) -> None:
        assert self._lake.read("epochs", ["owner"], pc.field("epoch") == epoch).num_rows == 1


def _numbered(rows: pa.Table, epoch: int) -> pa.Table:
    first = epoch * ROWS
    values = {
        "queue_id": [n % QUEUES for n in range(ROWS)],
        "queue_offset": list(range(first, first + ROWS)),
        "transaction_id": [f"{START_MS + epoch * 1_000:012x}{n:020x}" for n in range(ROWS)],
        "epoch": [epoch] * ROWS,
    }
    for name, column in values.items():
        place = rows.schema.get_field_index(name)
        if place >= 0:
            field = rows.schema.field(place)
            rows = rows.set_column(place, field, pa.array(column, field.type))
    return rows


def open_lake(folder: str, is_maintained: bool) -> tuple[Lake, int]:
    """Open or make the lake. Output: it, and its next epoch."""
    lake = Lake(folder, is_maintained=is_maintained)
    lake.create(instant(START_MS))
    lake.create_table("topics/1")
    newest = lake.last("epochs", "epoch")
    if newest is None:
        row = {"topic": "orders", "table_id": 1, "queue_count": QUEUES, "epoch": 0,
               "created_at": instant(START_MS)}  # fmt: skip
        lake.append("catalog", pa.Table.from_pylist([row], schema=lake.schema("catalog")))
    return lake, 1 + (newest or 0)


def limits_for(speed: int) -> MaintenanceLimits:
    """Give the default limits, with retentions for epochs that follow so much faster."""
    m = MaintenanceSettings()
    limits = MaintenanceLimits(m.merge_files, m.file_bytes_max, m.checkpoint_commits,
                               m.log_retention_ms, m.file_retention_ms)  # fmt: skip
    return replace(limits, log_retention_ms=limits.log_retention_ms // speed,
                   file_retention_ms=limits.file_retention_ms // speed)  # fmt: skip


def main() -> None:
    """Run, and print a line for every thousand epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("epochs", type=int)
    parser.add_argument("--without", action="store_true")
    parser.add_argument("--speed", type=int, default=10)
    options = parser.parse_args()
    lake, first = open_lake(options.folder, is_maintained=not options.without)
    slice_ms = MaintenanceSettings().slice_ms
    maintainer = Maintainer(
        lake, limits_for(options.speed), slice_ms, p.ADMIN_TOPIC, is_stopping=lambda: False
    )
    writer = Epoch(lake)
    epoch_ms: list[float] = []
    after_ms: list[float] = []
    cpu_s = time.process_time()
    for epoch in range(first, first + options.epochs):
        plan = plan_of(epoch)
        began = time.perf_counter()
        writer.run(plan)
        ended = time.perf_counter()
        if not options.without:
            maintainer.after_batch(plan, 0.0)
        epoch_ms.append((ended - began) * 1_000)
        after_ms.append((time.perf_counter() - ended) * 1_000)
        if epoch % 1_000 == 0:
            _tell(lake, epoch, epoch_ms, after_ms, time.process_time() - cpu_s)
            epoch_ms, after_ms, cpu_s = [], [], time.process_time()


def _tell(
    lake: Lake, epoch: int, epoch_ms: list[float], after_ms: list[float], cpu_s: float
) -> None:
    folder = Path(lake.path)
    figures = {
        "epochs": f"{epoch - len(epoch_ms) + 1}-{epoch}",
        "epoch_ms_p50": round(statistics.median(epoch_ms), 1),
        "epoch_ms_p99": round(statistics.quantiles(epoch_ms, n=100)[98], 1),
        "processor_ms_an_epoch": round(cpu_s * 1_000 / len(epoch_ms), 1),
        "maintenance_ms_an_epoch": round(statistics.mean(after_ms), 1),
        "maintenance_ms_max": round(max(after_ms), 1),
        "files_of_epochs": len(lake.handle("epochs").file_uris()),
        "log_files_of_epochs": len(list((folder / "epochs" / "_delta_log").iterdir())),
        "mb": round(sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6, 1),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()

"""Is an epoch as quick on a long lake as on a short one? The tables alone, without Kafka and Spark.

Run: python bench/table_growth.py FOLDER [--young 1000] [--old 9000] [--epochs 1000]

Makes two lakes, as maintenance has them after so many epochs: files of every level, filled at once.
Then writes epochs to both in turns, so that a busy machine slows both alike, with the job's own
maintenance after each. An epoch writes the tables that a small one always writes (both rows of
`epochs`, half, a topic; ten messages) and reads what it reads. Such epochs follow each other some
ten times as fast as a job's, so the retentions are by that factor shorter than the defaults: as
many versions and replaced files are kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import RULE_VERSION, Parameters
from pipelines.epoch.recorded_state import topics_before
from pipelines.job.maintenance import MaintenanceScheduler
from pipelines.settings import MaintenanceSettings
from storage.lake.epochs import Plan, Range, committed_row, planned_row
from storage.lake.lake import Lake
from storage.maintenance import merge
from storage.maintenance.limits import MaintenanceLimits
from storage.rows import instant
from txlake import protocol as p

QUEUES = 4
ROWS = 10
SPEED = 10
START_MS = 1_767_225_600_000  # 2026-01-01
_TOPICS = {p.HALF_TOPIC: QUEUES, p.OP_TOPIC: QUEUES, p.SCHEDULE_TOPIC: 19, p.ADMIN_TOPIC: 1}
_TEMPLATES: dict[str, dict[str, Any]] = {
    "half": {"producer_group": "shop", "real_topic": "orders", "body": b"x" * 256},
    "topics/1": {"source": "half", "producer_group": "shop", "real_topic": "orders",
                 "body": b"x" * 256, "half_queue_id": 0, "half_queue_offset": 1},
}  # fmt: skip


def plan_of(epoch: int) -> Plan:
    """Return the plan of an epoch, as large as a real one."""
    at = START_MS + epoch * 1_000
    known = dict.fromkeys(range(QUEUES), at)
    ranges = tuple(
        Range(topic, queue, epoch, epoch + (topic != p.ADMIN_TOPIC), epoch)
        for topic, queues in _TOPICS.items()
        for queue in range(queues)
    )
    return Plan(epoch, at, known, known, ranges, "cluster", {}, asdict(Parameters()), "bench",
                RULE_VERSION)  # fmt: skip


def planned(plan: Plan) -> pa.Table:
    """Return the epoch's first row."""
    return planned_row(plan, instant(plan.epoch_at))


def committed(plan: Plan) -> pa.Table:
    """Return the epoch's second row."""
    offsets = {("orders", queue): plan.epoch * ROWS for queue in range(QUEUES)}
    return committed_row(plan, instant(plan.epoch_at), {}, {}, offsets, {})


class GrowingLake:
    """A lake with so many epochs, to which more are written, and how long those took."""

    def __init__(self, folder: Path, epochs: int, limits: MaintenanceLimits) -> None:
        self.lake = Lake(str(folder), is_driver=True)
        self.lake.create(instant(START_MS))
        self.lake.create_table("topics/1")
        row = {"topic": "orders", "table_id": 1, "queue_count": QUEUES, "epoch": 0,
               "created_at": instant(START_MS)}  # fmt: skip
        self.lake.append("catalog", pa.Table.from_pylist([row], schema=self.lake.schema("catalog")))
        self.epoch_ms: list[float] = []
        self.after_ms: list[float] = []
        self._next = epochs + 1
        self._rows = {
            table: pa.Table.from_pylist([template] * ROWS, schema=self.lake.schema(table))
            for table, template in _TEMPLATES.items()
        }
        slice_ms = MaintenanceSettings().slice_ms
        self._maintainer = MaintenanceScheduler(
            self.lake, limits, slice_ms, p.ADMIN_TOPIC, lambda: False
        )
        self._fill("epochs", epochs, 2, _epoch_rows)
        for table, rows in self._rows.items():
            self._fill(table, epochs, 1, partial(_numbered, rows))

    def _fill(
        self, table: str, epochs: int, files: int, rows_of: Callable[[int], pa.Table]
    ) -> None:
        """Write earlier epochs as merges leave them; each had so many files of its own."""
        first = 1
        for level in (3, 2, 1, 0):
            count = max(1, 16**level // files)
            while first + count - 1 <= epochs:
                rows = pa.concat_tables(rows_of(e) for e in range(first, first + count))
                name = f"merged-{level}-{uuid.uuid4().hex}.parquet"
                file = merge._write(self.lake, table, name, rows)
                merge.replace_files(
                    self.lake.handle(table), (), [file.add_action()], "merged 0 files"
                )
                self.lake.table(table).invalidate()
                first += count

    def run_epoch(self) -> None:
        """Write one epoch, then do maintenance as the job does."""
        plan = plan_of(self._next)
        began = time.perf_counter()
        self.lake.append("epochs", planned(plan), plan.epoch)
        self._read_owner(plan.epoch)
        topics_before(self.lake, plan.epoch)
        for table, rows in self._rows.items():
            self.lake.append(table, _numbered(rows, plan.epoch), plan.epoch)
        self._read_owner(plan.epoch)
        self.lake.append("epochs", committed(plan), plan.epoch)
        ended = time.perf_counter()
        self._maintainer.after_batch(plan, 0.0)
        self.epoch_ms.append((ended - began) * 1_000)
        self.after_ms.append((time.perf_counter() - ended) * 1_000)
        self._next += 1

    def _read_owner(self, epoch: int) -> None:
        assert self.lake.read("epochs", ["owner"], pc.field("epoch") == epoch).num_rows == 1

    def figures(self) -> dict[str, Any]:
        """Return what was measured."""
        last = self._next - 1
        return {
            "epochs": f"{last - len(self.epoch_ms) + 1}-{last}",
            "epoch_ms_p50": round(statistics.median(self.epoch_ms), 1),
            "epoch_ms_p99": round(statistics.quantiles(self.epoch_ms, n=100)[98], 1),
            "maintenance_ms_an_epoch": round(statistics.mean(self.after_ms), 1),
            "maintenance_ms_max": round(max(self.after_ms), 1),
            "files_of_epochs": len(self.lake.handle("epochs").file_uris()),
            "log_entries_of_epochs": len(list(Path(self.lake.path, "epochs/_delta_log").iterdir())),
        }


def _epoch_rows(epoch: int) -> pa.Table:
    plan = plan_of(epoch)
    return pa.concat_tables([planned(plan), committed(plan)])


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
        field = rows.schema.field(place)
        rows = rows.set_column(place, field, pa.array(column, field.type))
    return rows


def limits() -> MaintenanceLimits:
    """Return the default limits, with retentions for epochs that follow so much faster."""
    m = MaintenanceSettings()
    usual = MaintenanceLimits(
        m.merge_files, m.file_bytes_max, m.checkpoint_commits, m.log_retention_ms,
        m.file_retention_ms, m.stream_retention_ms,
    )  # fmt: skip
    return replace(usual, log_retention_ms=usual.log_retention_ms // SPEED,
                   file_retention_ms=usual.file_retention_ms // SPEED,
                   stream_retention_ms=usual.stream_retention_ms // SPEED)  # fmt: skip


def main() -> None:
    """Run, and print both lakes' figures and their ratio, every 250 epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--young", type=int, default=1_000)
    parser.add_argument("--old", type=int, default=9_000)
    parser.add_argument("--epochs", type=int, default=1_000)
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    young = GrowingLake(options.folder / "young", options.young, limits())
    old = GrowingLake(options.folder / "old", options.old, limits())
    for number in range(1, options.epochs + 1):
        for lake in (young, old) if number % 2 else (old, young):
            lake.run_epoch()
        if number % 250 == 0 or number == options.epochs:
            told = [young.figures(), old.figures()]
            ratio = told[1]["epoch_ms_p50"] / told[0]["epoch_ms_p50"]
            print(json.dumps([*told, {"ratio_p50": round(ratio, 3)}]), flush=True)


if __name__ == "__main__":
    main()

"""How many bytes the lake keeps for each byte that was sent."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bench.bodies import RANDOM
from bench.figure import Figure
from bench.figures.drain import drained
from bench.sample_data import Mix
from bench.workbench import Workbench
from storage.lake.lake import Lake
from storage.maintenance.maintenance import Maintenance
from tests.support.epoch_harness import tables_of


def measure(bench: Workbench) -> list[Figure]:
    """Compact a drained lake, and count the bytes of its live files."""
    mix = Mix(body=RANDOM)
    topics, written = bench.waiting(bench.size.disk_transactions, mix)
    drained(bench, "disk", topics, written)

    lake = Lake(str(bench.folder / "lakes" / "disk"))
    tables = tables_of(Path(lake.path))
    before = {table: _live_bytes(lake, table) for table in tables}

    bench.say("merging files, as `txlake maintain` does")
    maintenance = Maintenance(lake, bench.settings("disk", topics).maintenance_limits())
    for table in maintenance.tables():
        for _ in maintenance.steps(table, is_full=True):
            pass

    after = {table: _live_bytes(lake, table) for table in tables}
    logs = sum(p.stat().st_size for p in Path(lake.path).glob("**/_delta_log/*"))
    body = written.halves * mix.body_bytes
    bench.forget(lake)

    return [
        Figure(
            name="bytes",
            value=sum(after.values()) / body,
            unit="ratio",
            how="bytes of the live files of all tables after `txlake maintain` / bytes of the "
            "bodies, which are random and cannot be compressed",
            better="less",
            must=3.0,
            aim=2.3,
            details={
                "before_maintain": round(sum(before.values()) / body, 3),
                "by_table": {t: round(b / body, 3) for t, b in after.items() if b / body > 0.001},
                "delta_logs": round(logs / body, 3),
            },
            parameters={
                "transactions": written.halves,
                "body_bytes": mix.body_bytes,
                "body": mix.body,
            },
        )
    ]


def _live_bytes(lake: Lake, table: str) -> int:
    actions = pa.table(Lake(lake.path).handle(table).get_add_actions(flatten=True))
    return int(pc.sum(actions["size_bytes"]).as_py() or 0)

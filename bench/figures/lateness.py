"""How late delayed messages can be read, and that none is early."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc

from bench.figure import Figure, percentile, summary
from bench.load import run_load
from bench.readable import readable_at, topic_table
from bench.sample_data import TOPIC
from bench.workbench import Workbench
from checker.frames_ops.sql import run
from storage.lake.lake import Lake
from storage.schemas import PUT

_OVER_THE_TRIGGER_S = 3.0
_DUE = """
SELECT d.deliver_at, t.epoch FROM delayed d
JOIN messages t ON d.queue_id = t.half_queue_id AND d.queue_offset = t.half_queue_offset
WHERE t.source = d.source
"""


def measure(bench: Workbench) -> list[Figure]:
    """Send delayed messages at a rate: half of them by level, half by time."""
    size = bench.size
    bench.say(f"{size.delayed_rate} delayed messages/s for {size.latency_s:.0f} s")
    arguments = ["--delayed", "--rate", str(size.delayed_rate)]
    load = run_load(bench, "lateness", size.latency_s, arguments)
    lake = Lake(load.job.settings.lake.path)
    table = topic_table(lake, TOPIC)
    at = readable_at(Path(lake.path) / table)
    rows = run(
        _DUE,
        delayed=lake.read("delayed", where=pc.field("change") == PUT),
        messages=lake.read(table, ["source", "half_queue_id", "half_queue_offset", "epoch"]),
    )
    due_us = pc.cast(rows["deliver_at"], "int64").to_pylist()
    late = [
        at[epoch] - us / 1e6
        for us, epoch in zip(due_us, rows["epoch"].to_pylist(), strict=True)
        if load.began_at <= us / 1e6 <= load.ended_at
    ]
    delivered = lake.read(table, ["queue_id"]).num_rows
    trigger_s = load.job.settings.stream.trigger_interval_ms / 1000
    bench.forget(lake)
    return [Figure(
        name="lateness, p99",
        value=percentile(late, 99),
        unit="s",
        how="time of the Delta commit of the topic table - the message's due time",
        better="less",
        must=trigger_s + _OVER_THE_TRIGGER_S,
        details={
            "late_s": summary(late),
            "earliest_s": round(min(late), 3),
            "sent": load.sent,
            "delivered": delivered,
            "cores": load.processor,
        },
        parameters={"rate": size.delayed_rate, "seconds": size.latency_s, "messages": len(late)},
    )]  # fmt: skip

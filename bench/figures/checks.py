"""How long after it is due a check stands in Kafka, while transactions go on."""

from __future__ import annotations

from bench.check_records import check_records
from bench.figure import Figure, percentile, summary
from bench.load import run_load
from bench.workbench import Workbench
from storage.lake.lake import Lake

_UNANSWERED = 0.05


def measure(bench: Workbench) -> list[Figure]:
    """Let some transactions go unanswered, and look at each one's first check."""
    size = bench.size
    bench.say(f"{size.rate} tx/s, {_UNANSWERED:.0%} unanswered, for {size.latency_s:.0f} s")
    arguments = ["--rate", str(size.rate), "--unanswered", str(_UNANSWERED)]
    run = run_load(bench, "checks", size.warm_up_s + size.latency_s, arguments)
    settings = run.job.settings
    immunity_s = settings.transaction.transaction_timeout_ms / 1000
    rows = Lake(settings.lake.path).read("half", ["queue_id", "queue_offset", "stored_at"])
    stored_at = {
        (row["queue_id"], row["queue_offset"]): row["stored_at"].timestamp()
        for row in rows.to_pylist()
    }
    late = [
        check.stored_at - stored_at[check.queue_id, check.queue_offset] - immunity_s
        for check in check_records(settings)
        if check.check_times == 1
        and run.began_at <= stored_at[check.queue_id, check.queue_offset] + immunity_s
    ]
    bench.forget(run.job.lake)
    return [Figure(
        name="check latency, p99",
        value=percentile(late, 99),
        unit="s",
        how="broker's time of a half's first check - broker's time of the half - its immunity",
        better="less",
        must=2.0,
        aim=1.0,
        details={"after_due_s": summary(late), "cores": run.processor},
        parameters={"rate": size.rate, "unanswered": _UNANSWERED, "seconds": size.latency_s,
                    "checks": len(late)},
    )]  # fmt: skip

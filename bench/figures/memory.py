"""How much memory the job needs: under load, and with very many halves pending."""

from __future__ import annotations

from bench.figure import Figure
from bench.figures import sustained
from bench.sample_data import Mix
from bench.usage import Watch
from bench.workbench import Workbench

_TIMEOUT_S = 600.0


def measure(bench: Workbench) -> list[Figure]:
    """Take the load's memory from the sustained figure, and land many halves that nobody ends."""
    if "sustained" not in bench.measured:
        sustained.measure(bench)
    under_load = max(bench.measured["sustained resident_bytes"])
    count = bench.size.backlog_pending
    bench.say(f"the job lands {count} halves that nobody ends")
    written = bench.writer("memory").halves(count, Mix())
    with bench.job("memory", transaction={"transaction_timeout_ms": 86_400_000}) as job:
        job.wait_until_streaming()
        with Watch(job.group) as watch:
            job.wait_until_landed(written.records, _TIMEOUT_S)
            more = bench.writer("memory").transactions(bench.size.epoch_transactions, Mix())
            job.wait_until_landed(written.records + more.records, _TIMEOUT_S)
    bench.forget("memory")
    pending = max(watch.resident_bytes)
    return [Figure(
        name="memory",
        value=max(under_load, pending) / 1e9,
        unit="GB",
        how="largest resident set of the job, Python and JVM together, seen every half second: in "
        "the sustained run, and while a job lands very many halves that stay pending",
        better="less",
        must=3.0,
        aim=2.0,
        samples=[round(under_load / 1e9, 2), round(pending / 1e9, 2)],
        details={
            "sustained_gb": round(under_load / 1e9, 2),
            "sustained_tx_s": round(bench.measured["sustained"]),
            "pending_gb": round(pending / 1e9, 2),
        },
        parameters={"pending": count},
    )]  # fmt: skip

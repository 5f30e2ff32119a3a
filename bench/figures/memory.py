"""How much memory the job needs: under load, with many halves pending, and for large epochs."""

from __future__ import annotations

from typing import Any

from bench.figure import Figure
from bench.figures import sustained
from bench.figures.drain import Drained, drained
from bench.sample_data import Mix
from bench.usage import Watch
from bench.workbench import Workbench

_TIMEOUT_S = 600.0
_LARGE_BYTES = 1_000_000  # a record of 1 MiB has its headers, too
_HOW = (
    "largest resident set of the job, the driver's Python, the JVM and Spark's Python workers "
    "together, seen every half second"
)


def measure(bench: Workbench) -> list[Figure]:
    """Take the load's memory from the sustained figure; the others are jobs of their own."""
    return [_lasting(bench), _one_epoch(bench), _large_bodies(bench)]


def _lasting(bench: Workbench) -> Figure:
    """Look at the sustained run, and land many halves that nobody ends."""
    if sustained.SMALL not in bench.measured:
        sustained.measure_one(bench, sustained.SMALL)
    loaded = bench.measured[sustained.SMALL]
    under_load = max(loaded.run.resident_bytes)

    count = bench.size.pending
    bench.say(f"the job lands {count} halves that nobody ends")
    written = bench.writer("memory").halves(count, Mix())
    with bench.job("memory", transaction={"transaction_timeout_ms": 86_400_000}) as job:
        job.wait_until_streaming()
        with Watch(job.group) as watch:
            job.wait_until_landed(written.records, _TIMEOUT_S)
            more = bench.writer("memory").transactions(bench.size.pending_transactions, Mix())
            job.wait_until_landed(written.records + more.records, _TIMEOUT_S)

    bench.forget("memory")
    pending = max(watch.resident_bytes)

    return _figure(
        "memory",
        "in the sustained run, and while very many halves are landed that stay pending",
        max(under_load, pending),
        {
            "sustained_gb": round(under_load / 1e9, 2),
            "sustained_tx_s": round(loaded.rate),
            "pending_gb": round(pending / 1e9, 2),
        },
        {"pending": count},
    )


def _one_epoch(bench: Workbench) -> Figure:
    """Drain all that waits in one epoch, larger than the settings let it be otherwise."""
    topics, written = bench.waiting(bench.size.one_epoch_transactions)
    stream = {"max_offsets_per_trigger": 2 * written.records}
    found = drained(bench, "one-epoch", topics, written, stream=stream)
    bench.forget("one-epoch")
    return _drain_figure(
        "memory, one large epoch",
        "while one epoch lands all records",
        found,
        {"records": written.records, "body_bytes": Mix().body_bytes},
    )


def _large_bodies(bench: Workbench) -> Figure:
    count = bench.size.large_messages
    topics, written = bench.waiting(count, Mix(_LARGE_BYTES, unanswered=0.0))
    found = drained(bench, "large-bodies", topics, written)
    bench.forget("large-bodies")
    return _drain_figure(
        "memory, 1-MiB bodies",
        "while an epoch of large messages is landed and delivered",
        found,
        {"messages": count, "body_bytes": _LARGE_BYTES},
    )


def _drain_figure(name: str, when: str, found: Drained, parameters: dict[str, Any]) -> Figure:
    details = {
        "epochs": len(found.times),
        "records_of_the_largest": max(time.records for time in found.times),
        "seconds": round(found.seconds, 2),
        "drivers_python_us_a_transaction": found.a_transaction_us(found.driver_s),
        "processor_us_a_transaction": found.a_transaction_us(found.processor_s),
    }
    return _figure(name, when, found.resident_bytes, details, parameters)


def _figure(
    name: str, when: str, size: int, details: dict[str, Any], parameters: dict[str, Any]
) -> Figure:
    return Figure(
        name=name,
        value=size / 1e9,
        unit="GB",
        how=f"{_HOW}, {when}",
        better="less",
        must=3.0,
        aim=2.0,
        details=details,
        parameters=parameters,
    )

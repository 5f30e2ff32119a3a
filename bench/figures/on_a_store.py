"""What it costs that the lake is on an object store, an S3 server of this machine.

The server takes some of the machine's processor time, which a store elsewhere would not, and
answers within a millisecond, which a store elsewhere would not either.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.bodies import JSON
from bench.figure import Figure, percentile, summary
from bench.figures.drain import Drained, drained
from bench.figures.latency import Latencies, latencies
from bench.figures.sustained import SMALL
from bench.lake_store import LakeStore, lake_store
from bench.requests import PRICES_AT, Span, counted, for_each, month_usd
from bench.usage import processor_s
from bench.workbench import Workbench

LOCAL, STORE = "local disk", "store"


@dataclass(frozen=True)
class PlacedDrain:
    """A drain, and the processor time of the S3 server meanwhile; 0 on a local disk. Units: s."""

    drain: Drained
    server_s: float


def measure(bench: Workbench) -> list[Figure]:
    """Measure drains in turns, then latency, then count requests in a run that is not timed."""
    with lake_store(bench.folder / "store") as store:
        on_store = dataclasses.replace(bench, store=store)
        drains = _drains(bench, on_store, store)
        timed = latencies(on_store, bench.size.rate, SMALL[1])
        loaded, idle = counted(on_store, store)
    return [
        drain_figure(drains),
        *_latency_figures(bench, timed),
        *request_figures(loaded, idle, bench.size.rate),
    ]


def _drains(
    bench: Workbench, on_store: Workbench, store: LakeStore
) -> dict[str, list[PlacedDrain]]:
    found: dict[str, list[PlacedDrain]] = {LOCAL: [], STORE: []}
    topics, written = bench.waiting(bench.size.drain_transactions)
    for _ in range(bench.size.store_rounds):
        for place, where in ((LOCAL, bench), (STORE, on_store)):
            before = processor_s(store.server.pid)
            drain = drained(where, "placed", topics, written)
            found[place].append(PlacedDrain(drain, processor_s(store.server.pid) - before))
            where.forget("placed")
    return found


def drain_figure(drains: Mapping[str, Sequence[PlacedDrain]]) -> Figure:
    """Compare drains. Input: by place, in the order of the rounds."""
    pairs = list(zip(drains[LOCAL], drains[STORE], strict=True))
    ratios = [local.drain.seconds / store.drain.seconds for local, store in pairs]

    return Figure(
        name="drain, store / local disk",
        value=statistics.median(ratios),
        unit="ratio",
        how="tx/s of the job with its lake on an S3 server of this machine / on its local disk; in "
        "turn, the median of the rounds; the same records",
        must=0.5,
        aim=0.8,
        samples=[round(ratio, 3) for ratio in ratios],
        details={place: _details(found) for place, found in drains.items()},
        parameters={
            "transactions": pairs[0][0].drain.halves,
            "rounds": len(pairs),
            "body_bytes": SMALL[1],
            "body": JSON,
        },
    )


def _details(found: Sequence[PlacedDrain]) -> dict[str, Any]:
    drains = [one.drain for one in found]
    return {
        "tx_s": [round(drain.halves / drain.seconds) for drain in drains],
        "processor_us_a_transaction": [d.a_transaction_us(d.processor_s) for d in drains],
        "drivers_python_us_a_transaction": [d.a_transaction_us(d.driver_s) for d in drains],
        "servers_us_a_transaction": [o.drain.a_transaction_us(o.server_s) for o in found],
        "epochs": len(drains[-1].times),
    }


def _latency_figures(bench: Workbench, timed: Latencies) -> list[Figure]:
    seconds = timed.seconds()
    size = bench.size

    details = {
        "readable_s": summary(seconds),
        "consumer_age_ms": summary(timed.run.ages_ms(), 0),
        "cores": timed.run.processor,
    }

    return [
        Figure(
            name=f"latency on a store at {size.rate:,} tx/s, p{per_cent}",
            value=percentile(seconds, per_cent),
            unit="s",
            how="time at which the server wrote the Delta commit of the topic table - "
            "BORN_TIMESTAMP, with the SDK's defaults",
            better="less",
            must=must,
            details=details if per_cent == 50 else {},
            parameters={
                "rate": size.rate,
                "seconds": size.latency_s,
                "warm_up_s": size.warm_up_s,
                "messages": len(seconds),
            },
        )
        for per_cent, must in ((50, 2.0), (99, None))
    ]


def request_figures(loaded: Span, idle: Span, rate: int) -> list[Figure]:
    """Return what was asked for a transaction, while nothing came, and what a month costs."""
    spent = loaded.seconds
    parameters = {"rate": rate, "seconds": round(spent), "transactions": loaded.transactions}

    return [
        Figure(
            name="requests for a transaction",
            value=sum(loaded.job.values()) / loaded.transactions,
            unit="requests",
            how=f"requests of the job to the store at {rate:,} tx/s / transactions sent; those of "
            "a consumer are named below. A proxy counts, in a run that is not timed",
            better="less",
            details={
                "of_the_job": for_each(loaded.job, loaded.transactions),
                "of_the_job_a_second": for_each(loaded.job, spent, 2),
                "of_a_consumer_a_second": for_each(loaded.consumer, spent, 2),
            },
            parameters=parameters,
        ),
        Figure(
            name="requests a second without input",
            value=sum(idle.job.values()) / idle.seconds,
            unit="requests",
            how="requests of the job to the store while nothing comes / time",
            better="less",
            details={
                "of_the_job": for_each(idle.job, idle.seconds, 2),
                "of_a_consumer": for_each(idle.consumer, idle.seconds, 2),
            },
            parameters={"seconds": round(idle.seconds)},
        ),
        Figure(
            name="price of a month on a store",
            value=month_usd(loaded.job, spent),
            unit="USD",
            how=f"on paper: the job's requests at {rate:,} tx/s for thirty days, at the list prices"
            f" of S3 Standard in us-east-1 ({PRICES_AT}): 0.005 USD for 1,000 PUT, POST, COPY, "
            "LIST, 0.0004 for 1,000 others, DELETE free. Storage is left out",
            better="less",
            details={
                "of_a_consumer": round(month_usd(loaded.consumer, spent), 2),
                "of_the_job_without_input": round(month_usd(idle.job, idle.seconds), 2),
                "of_a_consumer_without_input": round(month_usd(idle.consumer, idle.seconds), 2),
            },
            parameters=parameters,
        ),
    ]

"""What a lake asks of an object store, and what that costs on paper.

Requests are counted by a proxy before the store (`tests/support/fault_proxy.py`), by method and
kind of key: Delta's `log`, `data` files, a `list`, the `bucket` itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from bench.lake_store import LakeStore
from bench.load import consumer, counters, end, producer, wait_for_epochs, wait_until_consumed
from bench.workbench import Workbench
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import LIST
from tests.support.traffic import Traffic

Requests: TypeAlias = Mapping[tuple[str, str], int]  # by method and kind

# List prices of S3 Standard in us-east-1, USD for a request; storage and transfer are left out.
PRICES_AT = "2026-11-23"
_WRITE_USD, _READ_USD = 0.005 / 1_000, 0.0004 / 1_000
_FREE = ("DELETE",)
_WRITES = ("PUT", "POST", "COPY")
_MONTH_S = 30 * 86_400
_WARM_UP_EPOCHS = 2
_EPOCHS_MIN = 4  # in the span that is counted: it is longer where epochs are slow
_SETTLE_S = 10.0  # maintenance goes on for a while after the last epoch


@dataclass(frozen=True)
class Span:
    """What was asked in a span. Units: s. `transactions` were sent in it."""

    seconds: float
    transactions: int
    job: Requests
    consumer: Requests


@dataclass(frozen=True)
class _Look:
    at: float
    sent: int
    job: Traffic
    consumer: Traffic


def price_usd(requests: Requests) -> float:
    """Return what requests cost."""
    return sum(count * _price_usd(*name) for name, count in requests.items())


def month_usd(requests: Requests, seconds: float) -> float:
    """Return what a month of thirty days costs that goes on like a span of so many seconds."""
    return price_usd(requests) * _MONTH_S / seconds


def for_each(requests: Requests, units: float, digits: int = 6) -> dict[str, Any]:
    """Return how many requests there were for each unit, by method and kind, most first."""
    found = sorted(requests.items(), key=lambda item: -item[1])
    return {" ".join(name): round(count / units, digits) for name, count in found}


def _price_usd(method: str, kind: str) -> float:
    if method in _FREE:
        return 0.0
    return _WRITE_USD if method in _WRITES or kind == LIST else _READ_USD


def counted(bench: Workbench, store: LakeStore) -> tuple[Span, Span]:
    """Count the requests of a job and of a consumer of its own lake, each through its own proxy.

    Output: under the load of the latency figures, all transactions with an end; without input.
    """
    size = bench.size
    name = bench.new_name("requests")
    folder = bench.folder / f"load-{name}"
    folder.mkdir()
    with ExitStack() as running:
        proxies = [running.enter_context(FaultProxy(store.server.port)) for _ in range(2)]
        of_job, of_consumer = (
            replace(bench, store=replace(store, endpoint=proxy.endpoint)) for proxy in proxies
        )
        conf = folder / "consumer.toml"
        conf.write_text(of_consumer.conf_text(name), "utf-8")
        sent, _ = counters(folder)

        def look() -> _Look:
            return _Look(
                time.monotonic(), sent.read()[0], proxies[0].traffic(), proxies[1].traffic()
            )

        bench.say(f"counting requests at {size.rate} tx/s, then without input")
        job = running.enter_context(of_job.job(name))
        job.wait_until_streaming()
        reading = consumer(bench, conf, folder)
        running.callback(reading.end)
        sending = producer(bench, job.conf, folder, ["--rate", str(size.rate), "--unanswered", "0"])
        running.callback(sending.end)
        time.sleep(size.warm_up_s)
        wait_for_epochs(job, _WARM_UP_EPOCHS)
        epochs = job.epochs + _EPOCHS_MIN
        loaded = _between(look, size.latency_s, lambda: wait_for_epochs(job, epochs))
        end(sending)
        wait_until_consumed(job, folder)
        time.sleep(min(_SETTLE_S, size.idle_s))
        idle = _between(look, size.idle_s)
        end(reading)
    bench.forget(job.lake)
    return loaded, idle


def _between(
    look: Callable[[], _Look], seconds: float, wait: Callable[[], None] = lambda: None
) -> Span:
    before = look()
    time.sleep(seconds)
    wait()
    after = look()
    return Span(
        after.at - before.at,
        after.sent - before.sent,
        after.job.since(before.job).requests,
        after.consumer.since(before.consumer).requests,
    )

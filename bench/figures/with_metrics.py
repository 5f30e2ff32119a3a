"""What metrics cost: drains with and without them in turns, scrapes, and a job without input."""

from __future__ import annotations

import statistics
import threading
import time
import urllib.request
from types import TracebackType

from bench.figure import Figure, percentile, summary
from bench.figures.drain import Drained, drained
from bench.usage import own_processor_s
from bench.workbench import Workbench
from pipelines.local_server.ports import Reservation

_WITH, _WITHOUT = "with-metrics", "without-metrics"
_HOST = "127.0.0.1"
_OFF: int = 0
# Prometheus asks every 15 s or less often; here so often that a drain has many scrapes.
_SCRAPE_EVERY_S = 1.0
_IDLE_SCRAPE_EVERY_S = 15.0
_SETTLE_S = 5.0


class _Scraper:
    """Scrapes a job now and then. `scrapes_ms`: how long each took; port 0: it scrapes nothing."""

    def __init__(self, port: int, every_s: float) -> None:
        self._port, self._every_s = port, every_s
        self.scrapes_ms: list[float] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Scraper:
        if self._port != _OFF:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        if self._port != _OFF:
            self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            began = time.perf_counter()
            try:
                with urllib.request.urlopen(f"http://{_HOST}:{self._port}/metrics") as answer:
                    answer.read()
            except OSError:  # the job starts, or ends
                continue
            self.scrapes_ms.append((time.perf_counter() - began) * 1000)


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between a job with metrics and one without."""
    topics, written = bench.waiting(bench.size.drain_transactions)
    held = Reservation(_HOST, 0)
    (port,) = held.ports
    held.release()
    drains: dict[str, list[Drained]] = {_WITHOUT: [], _WITH: []}
    scrapes_ms: list[float] = []
    idle: dict[str, float] = {}
    for number in range(bench.size.body_rounds):
        # Whoever is second finds warm caches: the order changes from round to round.
        for name in (_WITHOUT, _WITH) if number % 2 == 0 else (_WITH, _WITHOUT):
            own = port if name == _WITH else _OFF
            with _Scraper(own, _SCRAPE_EVERY_S) as scraper:
                drains[name].append(drained(bench, name, topics, written, metrics={"port": own}))
            scrapes_ms += scraper.scrapes_ms
    for name, own in ((_WITHOUT, _OFF), (_WITH, port)):
        idle[name] = _idle_cores(bench, name, topics, own)
        bench.forget(name)
    return _figures(bench, drains, scrapes_ms, idle)


def _idle_cores(bench: Workbench, lake: str, topics: str, port: int) -> float:
    """Watch a job without input. Output: what the driver's Python uses of a core."""
    bench.say(f"nothing comes for {bench.size.idle_s:.0f} s: {lake}")
    with (
        _Scraper(port, _IDLE_SCRAPE_EVERY_S),
        bench.job(lake, topics, metrics={"port": port}) as job,
    ):
        job.wait_until_streaming()
        time.sleep(min(_SETTLE_S, bench.size.idle_s))
        began, used = time.monotonic(), own_processor_s(job.group)
        time.sleep(bench.size.idle_s)
        return (own_processor_s(job.group) - used) / (time.monotonic() - began)


def _figures(
    bench: Workbench,
    drains: dict[str, list[Drained]],
    scrapes_ms: list[float],
    idle: dict[str, float],
) -> list[Figure]:
    pairs = list(zip(drains[_WITH], drains[_WITHOUT], strict=True))
    seconds = [after.seconds / before.seconds for after, before in pairs]
    used = [after.processor_s / before.processor_s for after, before in pairs]
    parameters = {"transactions": drains[_WITH][0].halves, "rounds": len(pairs),
                  "scrape_every_s": _SCRAPE_EVERY_S}  # fmt: skip
    return [
        Figure(
            name="metrics, time of a drain, with / without",
            value=statistics.median(seconds),
            unit="ratio",
            how="seconds of the same drain in turn, the median of the rounds; scraped every second",
            better="less",
            must=1.02,
            aim=1.0,
            samples=[round(ratio, 3) for ratio in seconds],
            parameters=parameters,
        ),
        Figure(
            name="metrics, processor of a drain, with / without",
            value=statistics.median(used),
            unit="ratio",
            how="processor time of the job's processes in the same drains",
            better="less",
            must=1.02,
            aim=1.0,
            samples=[round(ratio, 3) for ratio in used],
            parameters=parameters,
        ),
        Figure(
            name="metrics, a scrape",
            value=percentile(scrapes_ms, 99) if scrapes_ms else None,
            unit="ms",
            how="p99 of the scrapes during the drains, by HTTP on loopback",
            better="less",
            must=50.0,
            aim=10.0,
            details={"ms": summary(scrapes_ms)} if scrapes_ms else {"scrapes": 0},
        ),
        Figure(
            name="metrics, processor without input",
            value=round(idle[_WITH] - idle[_WITHOUT], 4),
            unit="cores",
            how="processor time of the driver's Python without input, with metrics and a scrape "
            "every 15 s, less that without",
            better="less",
            must=0.01,
            aim=0.005,
            details={name: round(cores, 4) for name, cores in idle.items()},
            parameters={"seconds": bench.size.idle_s},
        ),
    ]

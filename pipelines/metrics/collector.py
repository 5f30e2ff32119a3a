"""The metrics of one process: epochs add to them, a scrape reads them.

An epoch adds counts. What holds at the moment (pending, delayed, given up) is counted at a scrape,
from the state that the driver holds anyway, and at most once an epoch.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from prometheus_client import Metric as Family
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector as Collects

from checker.frames import COMMITTED, ROLLED_BACK, State
from pipelines.metrics.catalog import COUNTER, GAUGE, METRICS, Metric
from pipelines.metrics.groups import Groups
from pipelines.metrics.labels import Labels
from pipelines.metrics.lag import Lag
from pipelines.metrics.pending import Pending, pending_of
from pipelines.metrics.tally import LATENCY_S, Latency, Tally
from storage.lake.epochs import Plan
from storage.wire.kinds import KINDS

_Values = dict[tuple[str, ...], float]
# A counter that begins at its first event would hide that event from increase().
_FROM_THE_START: Final = {
    "txlake_given_up_total": ("check_max", "expired"),
    "txlake_checks_total": ("true", "false"),
    "txlake_landed_records_total": KINDS,
    "txlake_unreadable_records_total": KINDS,
}
_ENDS: Final = {
    COMMITTED: "rocketmq_commit_messages_total",
    ROLLED_BACK: "rocketmq_rollback_messages_total",
}


class Collector(Collects):
    """The collector of one driver.

    Input: how long the lake keeps what has ended, in ms; `now`: more gauges, by name, that the
    process knows at the moment; None: not known; `now_ms`: the clock.
    """

    def __init__(
        self,
        retention_ms: int,
        lag: Lag,
        now: Callable[[], Mapping[str, float | None]],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._lock = threading.Lock()
        self._retention_ms, self._lag, self._now, self.now_ms = retention_ms, lag, now, now_ms
        self._counts: dict[str, _Values] = defaultdict(lambda: defaultdict(float))
        self._waits: dict[str, tuple[list[int], float]] = {}
        self._epoch_s: tuple[list[int], float] = ([0] * (len(LATENCY_S) + 1), 0.0)
        self._topics, self._group_names = Labels(), Labels()
        self._groups = Groups()
        self._last: Plan | None = None
        self._state: State | None = None
        self._undeliverable = 0
        self._pending: tuple[State, Pending] | None = None
        for metric in METRICS:
            if metric.kind == COUNTER:
                values = _FROM_THE_START.get(metric.name, ()) if metric.labels else (None,)
                for value in values:
                    self._add(metric.name, 0, *(() if value is None else (value,)))

    def took_up(
        self, last: Plan | None, state: State, undeliverable: int, answers: pa.Table | None = None
    ) -> None:
        """Begins with the state of a lake. Topics get their labels in the order of the catalog.

        Input: `answers`: the newest checks, as `health.groups.read_answers`; None: there are none.
        """
        with self._lock:
            self._last, self._state, self._undeliverable = last, state, undeliverable
            self._groups = Groups(answers)
            for topic in state.topics.sort_by("table_id")["topic"].to_pylist():
                self._topics.of(topic)

    def committed(
        self, plan: Plan, state: State, tally: Tally, attempts: pa.Table,
        counts: Mapping[str, int], step_ms: Mapping[str, int],
    ) -> None:  # fmt: skip
        """Adds a committed epoch. Input: `attempts`: ATTEMPTS."""
        with self._lock:
            self._last, self._state = plan, state
            self._undeliverable += tally.stuck_count - tally.unstuck_count
            self._groups.heard(tally.heard)
            self._groups.asked(attempts, plan.epoch_at, state.halves)
            self._add_ends(tally)
            self._add("txlake_epochs_total", 1)
            self._add("txlake_check_answers_total", tally.answers)
            for row in attempts["acknowledged"].value_counts().to_pylist():
                self._add("txlake_checks_total", row["counts"], str(row["values"]).lower())
            for kind in KINDS:
                self._add("txlake_landed_records_total", counts.get(f"landed_{kind}", 0), kind)
            for kind, count in tally.unreadable.items():
                self._add("txlake_unreadable_records_total", count, kind)
            for reason, count in tally.conflicts.items():
                self._add("txlake_conflicts_total", count, reason)
            for step, ms in step_ms.items():
                self._add("txlake_step_seconds_total", ms / 1000, step)
            seconds = sum(step_ms.values()) / 1000
            one = [0] * (len(LATENCY_S) + 1)
            one[bisect_left(LATENCY_S, seconds)] = 1
            self._epoch_s = _sum(self._epoch_s, Latency(tuple(one), seconds))

    def _add_ends(self, tally: Tally) -> None:
        for (topic, outcome), count in tally.ends.items():
            if outcome in _ENDS:
                self._add(_ENDS[outcome], count, self._topics.of(topic))
        for cause, count in tally.causes.items():
            self._add("txlake_given_up_total", count, cause)
        for topic, count in tally.delivered.items():
            self._add("txlake_delivered_messages_total", count, self._topics.of(topic))
        for topic, latency in tally.latencies.items():
            label = self._topics.of(topic)
            empty = ([0] * len(latency.counts), 0.0)
            self._waits[label] = _sum(self._waits.get(label, empty), latency)

    def _add(self, name: str, count: float, *labels: str) -> None:
        self._counts[name][labels] += count

    def collect(self) -> Iterator[Family]:
        """Yields every metric of the catalog that is known at the moment."""
        now = self._now()
        with self._lock:
            gauges = self._gauges() | {
                name: {(): value} for name, value in now.items() if value is not None
            }
            families = [self._family(metric, gauges) for metric in METRICS]
        yield from families

    def describe(self) -> Iterable[Family]:
        """Returns nothing: a registry asks for no scrape when it takes this collector."""
        return ()

    def _family(self, metric: Metric, gauges: Mapping[str, _Values]) -> Family:
        if metric.kind == GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in gauges.get(metric.name, {}).items():
                gauge.add_metric(labels, value)
            return gauge
        if metric.kind == COUNTER:
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in self._counts[metric.name].items():
                counter.add_metric(labels, value)
            return counter
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        if metric.labels:
            for label, (counts, total_s) in self._waits.items():
                histogram.add_metric((label,), _buckets(counts), total_s)
        else:
            histogram.add_metric((), _buckets(self._epoch_s[0]), self._epoch_s[1])
        return histogram

    def _gauges(self) -> dict[str, _Values]:
        """Returns what holds at the moment; without a lake only what is set."""
        found: dict[str, _Values] = {"txlake_retention_seconds": {(): self._retention_ms / 1000}}
        if self._state is None:
            return found
        now_ms, pending = self.now_ms(), self._counted(self._state)
        by_topic = self._topics.summed(pending.by_topic)
        unanswered = self._group_names.largest(self._groups.unanswered(now_ms))
        oldest_s, given_up_s = (
            0 if at is None else max(0, now_ms - at) / 1000
            for at in (pending.oldest_at, pending.given_up_oldest_at)
        )
        behind_ms = self._lag.behind_ms(now_ms)
        alone: dict[str, float | None] = {
            "txlake_delayed_messages": self._state.delayed.num_rows,
            "txlake_given_up_messages": pending.given_up,
            "txlake_undeliverable_messages": self._undeliverable,
            "txlake_oldest_pending_seconds": oldest_s,
            "txlake_oldest_given_up_seconds": given_up_s,
            "txlake_last_epoch": 0 if self._last is None else self._last.epoch,
            "txlake_last_epoch_timestamp_seconds":
                None if self._last is None else self._last.epoch_at / 1000,
            "txlake_waiting_records": self._lag.records(),
            "txlake_lag_seconds": None if behind_ms is None else behind_ms / 1000,
        }  # fmt: skip
        return {
            **found,
            **{name: {(): value} for name, value in alone.items() if value is not None},
            "rocketmq_half_messages": {(topic,): n for topic, n in by_topic.items()},
            "txlake_group_unanswered_checks": {(name,): n for name, n in unanswered.items()},
            "txlake_folded_names": {
                ("topic",): self._topics.folded, ("producer_group",): self._group_names.folded
            },
        }  # fmt: skip

    def _counted(self, state: State) -> Pending:
        if self._pending is None or self._pending[0] is not state:
            self._pending = state, pending_of(state.halves)
        return self._pending[1]


def _sum(before: tuple[list[int], float], more: Latency) -> tuple[list[int], float]:
    counts, total_s = before
    return [a + b for a, b in zip(counts, more.counts, strict=True)], total_s + more.total_s


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Returns a histogram's buckets as Prometheus has them: each with all that is below it."""
    bounds, so_far, found = [*map(str, LATENCY_S), "+Inf"], 0, []
    for bound, count in zip(bounds, counts, strict=True):
        so_far += count
        found.append((bound, float(so_far)))
    return found

"""The metrics of one process: epochs add to them, a scrape reads them.

An epoch adds counts. A gauge (pending, delayed, discarded) is counted at a scrape, from the state
that the driver holds anyway, and at most once an epoch.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import Final

import pyarrow as pa
from prometheus_client import Metric as Family
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector as RegistryCollector

from checker.frames import COMMITTED, ROLLED_BACK, State
from pipelines.explain.rows import Row
from pipelines.health.problems import RULES
from pipelines.metrics.catalog import COUNTER, HISTOGRAM, METRICS, Metric
from pipelines.metrics.epoch_counts import LATENCY_S, EpochCounts, Latency, Pending, pending_of
from pipelines.metrics.groups import Groups
from pipelines.metrics.labels import Labels
from pipelines.metrics.lag import Lag
from pipelines.publish.status import PublisherStatus
from pipelines.settings import Settings
from storage.lake.epochs import Plan
from storage.wire.record_kinds import KINDS

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


class Collector(RegistryCollector):
    """The collector of one driver.

    Input: functions that are called at each scrape. `live_gauges` returns more gauges of the
    process, by name; None for an unknown value. `without_topic` returns those of some producer
    groups that have no check topic. `unread` returns the consumer groups with unread messages, rows
    of `health.consumers.UNREAD_COLUMNS`. `publishers` returns the status of each publisher.
    `refused` returns what consumer groups have refused, rows of
    `health.consumer_retries.COUNT_COLUMNS`. `now_ms`: the clock.
    """

    def __init__(
        self,
        settings: Settings,
        lag: Lag,
        live_gauges: Callable[[], Mapping[str, float | None]],
        without_topic: Callable[[Iterable[str]], Iterable[str]] = lambda _: (),
        unread: Callable[[], Iterable[Row]] = lambda: (),
        publishers: Callable[[], Iterable[PublisherStatus]] = lambda: (),
        refused: Callable[[], Iterable[Row]] = lambda: (),
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._lock = threading.Lock()
        self._settings = settings
        self._lag = lag
        self._live_gauges = live_gauges
        self._without_topic = without_topic
        self._unread = unread
        self._publishers = publishers
        self._refused = refused
        self.now_ms = now_ms

        # Counters, and the two histograms.
        self._counts: dict[str, _Values] = defaultdict(lambda: defaultdict(float))
        self._latencies: dict[tuple[str, ...], Latency] = defaultdict(Latency)
        self._epoch_s = Latency()

        self._topic_labels = Labels()
        self._producer_group_labels = Labels()
        self._consumer_group_labels = Labels()

        # What gauges are counted from.
        self._groups = Groups()
        self._last: Plan | None = None
        self._state: State | None = None
        self._undeliverable = 0
        self._pending: tuple[State, Pending] | None = None  # of that state

        for metric in METRICS:
            if metric.kind != COUNTER:
                continue
            if not metric.labels:
                self._add(metric.name, 0)
            for value in _FROM_THE_START.get(metric.name, ()):
                self._add(metric.name, 0, value)

    def reset(
        self, last: Plan | None, state: State, undeliverable: int, answers: pa.Table | None = None
    ) -> None:
        """Sets the gauges to the state of a lake; counters go on.

        Topics get their labels in the order of the catalog.

        Input: `answers`: the newest checks, as `health.groups.read_answers`; None if none.
        """
        with self._lock:
            self._last = last
            self._state = state
            self._undeliverable = undeliverable
            self._groups = Groups(answers)

            for topic in state.topics.sort_by("table_id")["topic"].to_pylist():
                self._topic_labels.of(topic)

    def add_epoch(
        self,
        plan: Plan,
        state: State,
        tally: EpochCounts,
        attempts: pa.Table,
        counts: Mapping[str, int],
        step_ms: Mapping[str, int],
    ) -> None:
        """Adds a committed epoch. Input: `attempts`: ATTEMPTS."""
        with self._lock:
            self._last = plan
            self._state = state
            self._undeliverable += tally.undeliverable_count - tally.resumed_count

            self._groups.observe_replies(tally.replies)
            self._groups.observe_checks(attempts, plan.epoch_at, state.halves)

            self._add_ends(tally)
            self._add("txlake_epochs_total", 1)
            self._add("txlake_check_answers_total", tally.answers)
            for row in attempts["acknowledged"].value_counts().to_pylist():
                self._add("txlake_checks_total", row["counts"], str(row["values"]).lower())

            landed = {kind: counts.get(f"landed_{kind}", 0) for kind in KINDS}
            self._add_each("txlake_landed_records_total", landed)
            self._add_each("txlake_unreadable_records_total", tally.unreadable)
            self._add_each("txlake_conflicts_total", tally.conflicts)

            step_s = {step: ms / 1000 for step, ms in step_ms.items()}
            self._add_each("txlake_step_seconds_total", step_s)

            epoch_s = sum(step_ms.values()) / 1000
            buckets = [0] * (len(LATENCY_S) + 1)
            buckets[bisect_left(LATENCY_S, epoch_s)] = 1
            self._epoch_s += Latency(tuple(buckets), epoch_s)

    def _add_ends(self, tally: EpochCounts) -> None:
        for (topic, outcome), count in tally.ends.items():
            if outcome in _ENDS:
                self._add(_ENDS[outcome], count, self._topic_labels.of(topic))

        self._add_each("txlake_given_up_total", tally.causes)

        delivered = self._topic_labels.by_label(tally.delivered, add)
        self._add_each("txlake_delivered_messages_total", delivered)

        for topic, latency in tally.latencies.items():
            self._latencies[(self._topic_labels.of(topic),)] += latency

    def _add(self, name: str, count: float, *labels: str) -> None:
        self._counts[name][labels] += count

    def _add_each(self, name: str, counts: Mapping[str, float]) -> None:
        for label, count in counts.items():
            self._add(name, count, label)

    def collect(self) -> Iterator[Family]:
        """Yields every metric of the catalog that has a value at the moment."""
        live: dict[str, _Values] = {
            name: {(): value} for name, value in self._live_gauges().items() if value is not None
        }

        with self._lock:
            values = {**self._counts, **self._gauges(), **live}
            families = [self._family(metric, values.get(metric.name, {})) for metric in METRICS]

        yield from families

    def describe(self) -> Iterable[Family]:
        """Returns nothing: a registry makes no scrape when it takes this collector."""
        return ()

    def _family(self, metric: Metric, values: _Values) -> Family:
        if metric.kind == HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            latencies = self._latencies if metric.labels else {(): self._epoch_s}
            for labels, latency in latencies.items():
                histogram.add_metric(labels, _buckets(latency.counts), latency.total_s)

            return histogram

        family_type = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
        family = family_type(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)

        return family

    def _gauges(self) -> dict[str, _Values]:
        """Returns the values of the moment; before a lake is known, those of the settings."""
        fixed: dict[str, _Values] = {
            "txlake_retention_seconds": {(): self._settings.lake.retention_ms / 1000},
            "txlake_problem_limit": {
                (rule.name,): getattr(self._settings.health, rule.setting) / 1000
                for rule in RULES
                if rule.setting
            },
        }
        if self._state is None:
            return fixed

        now_ms = self.now_ms()
        pending = self._pending_counts(self._state)
        by_topic = self._topic_labels.by_label(pending.by_topic, add)

        oldest_at = pending.oldest_by_group
        unanswered = self._groups.unanswered(now_ms, oldest_at)
        unanswered_by_label = self._producer_group_labels.by_label(unanswered, max)
        without_topic_ms = {
            name: now_ms - oldest_at[name] for name in self._without_topic(oldest_at)
        }
        without_topic_by_label = self._producer_group_labels.by_label(without_topic_ms, max)

        behind_ms = self._lag.behind_ms(now_ms)
        last = self._last
        single: dict[str, float | None] = {
            "txlake_delayed_messages": self._state.delayed.num_rows,
            "txlake_given_up_messages": pending.given_up,
            "txlake_undeliverable_messages": self._undeliverable,
            "txlake_oldest_pending_seconds": _age_s(pending.oldest_at, now_ms),
            "txlake_oldest_given_up_seconds": _age_s(pending.given_up_oldest_at, now_ms),
            "txlake_last_epoch": 0 if last is None else last.epoch,
            "txlake_last_epoch_timestamp_seconds": None if last is None else last.epoch_at / 1000,
            "txlake_waiting_records": self._lag.records(),
            "txlake_lag_seconds": None if behind_ms is None else behind_ms / 1000,
        }

        return {
            **fixed,
            **self._consumer_gauges(now_ms),
            **self._refused_gauges(),
            **self._publisher_gauges(now_ms),
            **{name: {(): value} for name, value in single.items() if value is not None},
            "rocketmq_half_messages": {(topic,): n for topic, n in by_topic.items()},
            "txlake_group_unanswered_checks": {
                (name,): n for name, n in unanswered_by_label.items()
            },
            "txlake_group_without_check_topic_seconds": {
                (name,): max(0, ms) / 1000 for name, ms in without_topic_by_label.items()
            },
            "txlake_folded_names": {
                ("topic",): self._topic_labels.overflowed,
                ("producer_group",): self._producer_group_labels.overflowed,
                ("consumer_group",): self._consumer_group_labels.overflowed,
            },
        }

    def _consumer_gauges(self, now_ms: int) -> dict[str, _Values]:
        """Returns how long living consumers are behind, and how long dead ones have been gone."""
        gone = {}
        behind = {}
        for row in self._unread():
            if row["is_gone"]:
                gone[row["consumer_group"]] = max(0, now_ms - row["gone_at"])
            elif row["oldest_at"] is not None:
                behind[row["consumer_group"]] = max(0, now_ms - row["oldest_at"])

        gone_by_label = self._consumer_group_labels.by_label(gone, max)
        behind_by_label = self._consumer_group_labels.by_label(behind, max)

        return {
            "txlake_consumer_gone_seconds": {
                (name,): ms / 1000 for name, ms in gone_by_label.items()
            },
            "txlake_consumer_lag_seconds": {
                (name,): ms / 1000 for name, ms in behind_by_label.items()
            },
        }

    def _refused_gauges(self) -> dict[str, _Values]:
        """Returns how many messages consumer groups have given up, and how many come again."""
        gauges: dict[str, _Values] = {}

        for column in ("dead", "retrying"):
            counts = {row["consumer_group"]: row[column] for row in self._refused() if row[column]}
            by_label = self._consumer_group_labels.by_label(counts, add)
            gauges[f"txlake_consumer_{column}_messages"] = {
                (name,): count for name, count in by_label.items()
            }

        return gauges

    def _publisher_gauges(self, now_ms: int) -> dict[str, _Values]:
        """Returns how far publishers are behind; where Kafka does not tell, only that."""
        gauges: dict[str, _Values] = defaultdict(dict)

        for status in self._publishers():
            label = (status.publisher,)
            gauges["txlake_publisher_known"][label] = status.unknown_reason is None
            if status.unknown_reason is not None:
                continue

            gauges["txlake_publisher_waiting_messages"][label] = status.lag
            gauges["txlake_publisher_active"][label] = status.active is not None

            lag_ms = status.lag_ms(now_ms)
            if lag_ms is not None:
                gauges["txlake_publisher_lag_seconds"][label] = lag_ms / 1000

            if status.stop is not None:
                gauges["txlake_publisher_stopped"][status.publisher, status.stop.cause] = 1

        return dict(gauges)

    def _pending_counts(self, state: State) -> Pending:
        if self._pending is None or self._pending[0] is not state:
            self._pending = state, pending_of(state.halves)
        return self._pending[1]


def _age_s(since_at: int | None, now_ms: int) -> float:
    return 0 if since_at is None else max(0, now_ms - since_at) / 1000


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Returns a histogram's buckets as Prometheus has them: each count includes those below it."""
    bounds = [*map(str, LATENCY_S), "+Inf"]
    return [(b, float(count)) for b, count in zip(bounds, accumulate(counts), strict=True)]

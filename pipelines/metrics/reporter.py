"""All that a running job tells of itself: it is told of each epoch, and serves what it has heard.

Nothing here stops an epoch: an error is logged, and the epoch goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from prometheus_client import CollectorRegistry, ProcessCollector

from checker.frames import Decision, Inputs, State
from pipelines.epoch.listener import EpochListener
from pipelines.health.dead_letters import undeliverable
from pipelines.health.groups import read_answers
from pipelines.metrics.collector import Collector
from pipelines.metrics.consumer_watch import ConsumerWatch
from pipelines.metrics.epoch_counts import EpochCounts, count_epoch
from pipelines.metrics.lag import Lag
from pipelines.metrics.log_lines import EpochLogger
from pipelines.metrics.probe import Probe
from pipelines.metrics.server import MetricsServer
from pipelines.settings import Settings
from storage.lake.epochs import Plan
from storage.lake.lake import Lake

log = logging.getLogger("txlake.metrics")


@dataclass(frozen=True)
class Standing:
    """How a driver stands: whether it has the lake, whether it waits for it, whether it streams."""

    is_active: bool = False
    is_waiting: bool = False
    is_streaming: bool = False


class Reporter(EpochListener):
    """The watch of one driver (`pipelines/epoch/listener.py`), with its server.

    Input: `standing`: how the driver stands at the moment.
    """

    def __init__(self, settings: Settings, standing: Callable[[], Standing]) -> None:
        self._settings, self._standing = settings, standing
        self._lag = Lag()
        self._lines = EpochLogger(settings.log)
        self._probe = Probe(settings, self._lag)
        self._consumers = ConsumerWatch(settings, lambda: self._standing().is_active)
        self._tally = EpochCounts()
        self.registry = CollectorRegistry()
        self._collector = Collector(
            settings,
            self._lag,
            self._now,
            self._probe.without_topic,
            lambda: self._consumers.unread or (),
        )
        self.registry.register(self._collector)
        ProcessCollector(registry=self.registry)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serves metrics and health while the block runs, if the settings say so.

        Errors: StartError if the port cannot be had.
        """
        metrics = self._settings.metrics
        if metrics.port == 0:
            yield
            return
        server = MetricsServer(metrics.host, metrics.port, self.registry, self.why_not_ready)
        self._probe.start()
        self._consumers.start()
        try:
            yield
        finally:
            self._probe.close()
            self._consumers.close()
            server.close()

    def close(self) -> None:
        """Says what the log has left out."""
        self._lines.flush(is_over=True)

    def why_not_ready(self) -> str:
        """Returns in a sentence why the job does not do its work; empty if it does."""
        standing, lag_max_ms = self._standing(), self._settings.metrics.ready_lag_max_ms
        if not standing.is_active:
            if standing.is_waiting:
                return "it stands by: another driver has the lake"
            return "it does not have the lake yet: it is starting, or waiting for Kafka"
        if self._probe.is_up is False:
            return f"Kafka at {self._settings.kafka.bootstrap_servers} does not answer"
        if not standing.is_streaming:
            return "its stream is not running: it is starting, or waiting for Kafka or its store"
        behind_ms = self._lag.behind_ms(self._collector.now_ms())
        if behind_ms is not None and behind_ms > lag_max_ms:
            return f"it is {behind_ms // 1000} s behind Kafka; {lag_max_ms // 1000} s are allowed"
        return ""

    def on_start(self, lake: Lake, last: Plan | None, state: State) -> None:
        """Begins with the state of a lake. Errors: LakeError."""
        self._lag.reset(last, self._collector.now_ms())
        stuck, answers = 0, None
        if self._settings.metrics.port != 0 and last is not None:
            stuck, now_ms = undeliverable(lake), self._collector.now_ms()
            _, answers = read_answers(lake, last.epoch, state.halves, now_ms)
        self._collector.reset(last, state, stuck, answers)

    def on_idle(self, plan: Plan) -> None:
        """Notes that nothing waits."""
        self._lag.observe_landed(plan)
        self._lines.flush()

    def on_decided(self, plan: Plan, before: State, inputs: Inputs, decision: Decision) -> None:
        """Counts what an epoch has decided."""
        self._tally = EpochCounts()
        with _log_and_continue(plan):
            rows_max = self._settings.log.lines_max
            self._tally = count_epoch(before, inputs, decision, plan.epoch_at, rows_max)

    def on_committed(
        self, plan: Plan, state: State, attempts: pa.Table, counts: Mapping[str, int],
        step_ms: Mapping[str, int],
    ) -> None:  # fmt: skip
        """Adds the epoch that was decided last, and tells of it."""
        with _log_and_continue(plan):
            tally = self._tally
            self._lag.observe_landed(plan, tally.oldest_stored_at)
            self._collector.committed(plan, state, tally, attempts, counts, step_ms)
            behind_ms = self._lag.behind_ms(self._collector.now_ms())
            behind = self._lag.records()
            self._lines.committed(plan, tally, counts, step_ms, behind or 0, behind_ms or 0)

    def _now(self) -> Mapping[str, float | None]:
        standing, is_up = self._standing(), self._probe.is_up
        return {
            "txlake_active": standing.is_active,
            "txlake_streaming": standing.is_streaming,
            "txlake_kafka_up": None if is_up is None else float(is_up),
        }


@contextmanager
def _log_and_continue(plan: Plan) -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("epoch %d is not counted in the metrics; the rest goes on", plan.epoch)

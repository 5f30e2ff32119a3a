"""The reporter of a running job: it counts and logs each epoch, and serves metrics and health.

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
from pipelines.health.dead_letters import count_undeliverable
from pipelines.health.groups import read_answers
from pipelines.metrics.collector import Collector
from pipelines.metrics.consumer_watch import ConsumerWatch
from pipelines.metrics.epoch_counts import EpochCounts, count_epoch
from pipelines.metrics.lag import Lag
from pipelines.metrics.log_lines import EpochLogger
from pipelines.metrics.probe import Probe
from pipelines.metrics.publisher_watch import PublisherWatch
from pipelines.metrics.server import MetricsServer
from pipelines.settings import Settings
from storage.lake.epochs import Plan
from storage.lake.lake import Lake

log = logging.getLogger("txlake.metrics")


@dataclass(frozen=True)
class Standing:
    """The state of a driver: whether it has the lake, waits for it, and streams."""

    is_active: bool = False
    is_waiting: bool = False
    is_streaming: bool = False


class Reporter(EpochListener):
    """The listener of one driver's epochs (`pipelines/epoch/listener.py`), with its server.

    Input: `standing` returns the state of the driver at the moment.
    """

    def __init__(self, settings: Settings, standing: Callable[[], Standing]) -> None:
        self._settings = settings
        self._standing = standing
        self._tally = EpochCounts()

        self._lag = Lag()
        self._lines = EpochLogger(settings.log)
        self._probe = Probe(settings, self._lag)
        self._consumers = ConsumerWatch(settings, lambda: self._standing().is_active)

        self._publishers = PublisherWatch(settings, lambda: self._standing().is_active)

        self.registry = CollectorRegistry()
        self._collector = Collector(
            settings,
            self._lag,
            self._live_gauges,
            self._probe.without_topic,
            lambda: self._consumers.unread or (),
            lambda: self._publishers.statuses,
            lambda: self._consumers.refused or (),
        )
        self.registry.register(self._collector)
        ProcessCollector(registry=self.registry)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serves metrics and health while the block runs, if the settings say so.

        Errors: StartError if the server cannot listen on the port.
        """
        metrics = self._settings.metrics
        if metrics.port == 0:
            yield
            return

        server = MetricsServer(metrics.host, metrics.port, self.registry, self.not_ready_reason)
        self._probe.start()
        self._consumers.start()
        self._publishers.start()

        try:
            yield
        finally:
            self._probe.close()
            self._consumers.close()
            self._publishers.close()
            server.close()

    def close(self) -> None:
        """Logs how many lines the log has left out."""
        self._lines.flush(is_over=True)

    def not_ready_reason(self) -> str:
        """Returns in a sentence why the job does not do its work; empty if it does."""
        standing = self._standing()
        lag_max_ms = self._settings.metrics.ready_lag_max_ms

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
        """Starts from the state of a lake. Errors: LakeError."""
        self._lag.reset(last, self._collector.now_ms())
        undeliverable = 0
        answers = None

        if self._settings.metrics.port != 0 and last is not None:
            undeliverable = count_undeliverable(lake)
            _, answers = read_answers(lake, last.epoch, state.halves, self._collector.now_ms())

        self._collector.reset(last, state, undeliverable, answers)

    def on_idle(self, plan: Plan) -> None:
        """Records that nothing waits."""
        self._lag.observe_landed(plan)
        self._lines.flush()

    def on_decided(self, plan: Plan, before: State, inputs: Inputs, decision: Decision) -> None:
        """Counts the decision of an epoch."""
        self._tally = EpochCounts()
        with _log_and_continue(plan):
            rows_max = self._settings.log.lines_max
            self._tally = count_epoch(before, inputs, decision, plan.epoch_at, rows_max)

    def on_committed(
        self,
        plan: Plan,
        state: State,
        attempts: pa.Table,
        counts: Mapping[str, int],
        step_ms: Mapping[str, int],
    ) -> None:
        """Adds the epoch that was decided last, and logs it."""
        with _log_and_continue(plan):
            tally = self._tally

            self._lag.observe_landed(plan, tally.oldest_stored_at)
            self._collector.add_epoch(plan, state, tally, attempts, counts, step_ms)

            behind_ms = self._lag.behind_ms(self._collector.now_ms())
            behind = self._lag.records()
            self._lines.log_epoch(plan, tally, counts, step_ms, behind or 0, behind_ms or 0)

    def _live_gauges(self) -> Mapping[str, float | None]:
        standing = self._standing()
        is_up = self._probe.is_up
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

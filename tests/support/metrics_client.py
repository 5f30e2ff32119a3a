"""What a scrape says, as values by sample; histories told to a Reporter, epoch by epoch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from checker.frames import ATTEMPTS, Decision, Inputs, State
from pipelines.metrics.reporter import Reporter, Standing
from pipelines.settings import parse
from storage.lake.epochs import Plan, Range
from storage.lake.lake import Lake
from tests.support.comparison import Checker, attempts_of
from tests.support.histories import parameters_at
from tests.support.history import History, Row
from txlake.protocol import HALF_TOPIC, OP_TOPIC, check_id

Samples = dict[str, float]
STEPS = {"gather": 100, "wait": 20_000, "plan": 50, "decide": 150, "ask": 100, "apply": 100}


def samples_of(text: str) -> Samples:
    """Return every sample of a scrape, named as Prometheus writes it: name{label="value"}."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def reporter_of(standing: Standing | None = None, **sections: dict[str, Any]) -> Reporter:
    """Return a reporter of a job that nothing was told yet."""
    values = {"lake": {"path": "lake"}, "kafka": {"bootstrap_servers": "127.0.0.1:9"}, **sections}
    return Reporter(parse(values, "test"), lambda: standing or Standing(True, False, True))


class ReportedHistory(Checker):
    """A history decided by the job's own rules, and told to a reporter as the job tells it."""

    def __init__(self, reporter: Reporter | None = None) -> None:
        super().__init__()
        self.reporter = reporter or reporter_of()
        self.plan: Plan | None = None
        self._given = Inputs()
        self._landed = {HALF_TOPIC: 0, OP_TOPIC: 0}
        self.reporter.on_start(Lake("lake"), None, State())

    def tell(self, history: History, waiting: int = 0) -> ReportedHistory:
        """Decide the epochs of a history. Input: records of the op topic that are not landed."""
        return self.tell_world(history.world(), waiting)

    def tell_world(self, world: Row, waiting: int = 0) -> ReportedHistory:
        """Decide the epochs of a world; input as `tell`."""
        for number, epoch in enumerate(world["epochs"], 1):
            self._epoch(number, epoch, parameters_at(world, epoch), waiting)
        return self

    def samples(self) -> Samples:
        """Scrape."""
        return samples_of(generate_latest(self.reporter.registry).decode())

    def _inputs(self, epoch: Row) -> Inputs:
        self._given = super()._inputs(epoch)
        return self._given

    def _epoch(self, number: int, epoch: Row, parameters: Row, waiting: int) -> None:
        before = self.state
        decision = self.decide(epoch, parameters)
        self.plan = plan = self._plan(number, epoch, waiting)
        self.reporter.on_decided(plan, before, self._given, decision)

        attempts = epoch.get("attempts", attempts_of)(epoch, decision.due.to_pylist())
        self.record_attempts(attempts, epoch["at"])

        counts = {
            "landed_half": len(epoch["halves"]),
            "landed_op": len(epoch["operations"]),
            "checks": len(attempts),
        }
        self.reporter.on_committed(plan, self.state, _attempts(decision, attempts), counts, STEPS)

    def _plan(self, number: int, epoch: Row, waiting: int) -> Plan:
        ranges = []
        for topic, kind in ((HALF_TOPIC, "halves"), (OP_TOPIC, "operations")):
            begins = self._landed[topic]
            ends = self._landed[topic] = begins + len(epoch[kind])
            behind = waiting if topic == OP_TOPIC else 0
            ranges.append(Range(topic, 0, begins, ends, ends + behind))
        return Plan(number, epoch["at"], {}, {}, tuple(ranges), "", {}, {}, "test", 2)


def _attempts(decision: Decision, attempts: list[Row]) -> pa.Table:
    due = {(row["queue_id"], row["queue_offset"]): row for row in decision.due.to_pylist()}
    rows = []
    for attempt in attempts:
        row = due[attempt["queue_id"], attempt["queue_offset"]]
        name = check_id(row["queue_id"], row["queue_offset"], row["arm"], row["check_times"])
        rows.append({**row, **attempt, "check_id": name})
    names = set(ATTEMPTS.names)
    return pa.Table.from_pylist(
        [{name: value for name, value in row.items() if name in names} for row in rows],
        schema=ATTEMPTS,
    )

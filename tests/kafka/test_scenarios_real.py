"""The vectors of `scenarios.json` through real Kafka, real Spark and a real lake.

Records carry times of their own (CreateTime topics) and epochs begin at instants handed in; what a
half went through before its epoch is made by earlier epochs. Each vector has a half queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from checker.frames import COMMITTED
from pipelines.broker import Broker
from pipelines.settings import Settings
from storage.verify.run import verify
from tests.job import settings_for
from tests.rig import Rig
from tests.vectors import SCENARIOS, T_MS, VECTORS, is_old
from tests.wire import Wire, half_headers
from txlake import protocol as p

Unique = Callable[[str], str]
Row = dict[str, Any]
INTERVAL_MS: int = VECTORS["defaults"]["check_interval_ms"]
PRODUCER_CLOCKS = ["0", "4102444800000"]  # 1970 and 2100: the producer's clock plays no part
SILENT = "silent"  # a group without a check topic: an attempt that does not count
# Scenarios whose earlier epochs would disturb each other have a lake each.
WITH_HISTORY = [["D07", "D08", "D09", "D30"], ["D20"], ["D25"], ["D26"]]


def _groups() -> list[list[str]]:
    old = {name for group in WITH_HISTORY for name in group}
    by_config: dict[str, list[str]] = defaultdict(list)
    for name, scenario in SCENARIOS.items():
        if name not in old:
            by_config[repr(scenario["config"])].append(name)
    return [*by_config.values(), *WITH_HISTORY]


def _attempts(half: Row) -> list[int]:
    """Return the instants at which the half was asked about before its epoch."""
    last = T_MS - half["since_attempt_ms"]
    return [last - INTERVAL_MS * n for n in range(max(1, half["check_times"]))][::-1]


class Play:
    """Some vectors on one lake, queue by queue."""

    def __init__(self, names: list[str], settings: Settings) -> None:
        self.names = names
        self._settings = settings
        self._producer = Producer(
            {"bootstrap.servers": settings.kafka.bootstrap_servers, "log_level": 0}
        )
        self.offsets: dict[tuple[str, int], int] = {}  # a vector's half -> its Kafka offset

    def make_topics(self) -> None:
        kafka = self._settings.kafka
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        config = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        wide = [NewTopic(t, len(self.names), config=config)
                for t in (kafka.half_topic, kafka.op_topic)]  # fmt: skip
        groups = {self.group(n, h) for n in self.names for h in SCENARIOS[n]["halves"]} - {SILENT}
        checks = [NewTopic(f"{kafka.check_topic_prefix}{group}", 1) for group in groups]
        for future in admin.create_topics([*wide, *checks]).values():
            future.result(10)

    @staticmethod
    def group(name: str, half: Row) -> str:
        is_silent = half["check_times"] == 0 and half["since_attempt_ms"] is not None
        return SILENT if is_silent else str(half["producer_group"])

    def _send(self, topic: str, queue: int, value: bytes, headers: Any, at_ms: int) -> int:
        stored: list[int] = []
        self._producer.produce(
            topic, value, partition=queue, headers=headers, timestamp=at_ms,
            on_delivery=lambda error, message: stored.append(message.offset()),
        )  # fmt: skip
        assert self._producer.flush(10) == 0
        return stored[0]

    def send_half(self, name: str, half: Row) -> None:
        extra = {p.BORN_TIMESTAMP: PRODUCER_CLOCKS[half["queue_offset"] % 2]}
        if half["immunity"] is not None:
            extra[p.CHECK_IMMUNITY] = half["immunity"]
        if half["delay_level"] is not None:
            extra[p.DELAY] = str(half["delay_level"])
        if half.get("set"):
            extra[p.TRAN_SIZE], extra[p.TRAN_SEQ] = map(str, half["set"])
        topic = ".." if half.get("error") else "orders"
        headers = half_headers(half["transaction_id"], topic, self.group(name, half), **extra)
        queue = self.names.index(name)
        at_ms = T_MS - half["age_ms"]
        key = name, half["queue_offset"]
        self.offsets[key] = self._send(
            self._settings.kafka.half_topic, queue, b"body", headers, at_ms
        )

    def send_operation(self, name: str, operation: Row) -> None:
        named = operation.get("half_offsets")
        body = operation.get("body")
        if body is None:
            body = ",".join(str(self.offsets.get((name, offset), offset)) for offset in named)
        ids = operation.get("transaction_ids")
        if ids is None and operation.get("transaction_id") is not None:
            ids = [operation["transaction_id"]] * len(named)
        code = p.DECISION_CODES.get(operation["decision"], operation["decision"])
        headers = [(p.TAGS, "d"), (p.PGROUP, operation["producer_group"]), (p.TRAN_TYPE, code)]
        if ids:
            headers.append((p.UNIQ_KEY, ",".join(ids)))
        at = self._send(
            self._settings.kafka.op_topic, self.names.index(name), body.encode(), headers, T_MS
        )
        assert at == operation["queue_offset"]

    def run(self, rig: Rig) -> int:
        """Make the history, then run the vectors' epoch. Output: its number."""
        op_topic = self._settings.kafka.op_topic
        olds = [(n, h) for n in self.names for h in SCENARIOS[n]["halves"] if is_old(h)]
        instants = {at for _, half in olds for at in _attempts(half)}
        discarded = [half for _, half in olds if half.get("outcome") == "DISCARDED"]
        instants |= {_attempts(half)[-1] + INTERVAL_MS for half in discarded}
        for at in sorted(instants):
            for name, half in olds:
                if _attempts(half)[0] == at:
                    self.send_half(name, half)
            rig.run(at)
        behind_ms = SCENARIOS[self.names[0]]["config"].get("c_behind_ms")
        if behind_ms is not None:
            self._know_until(rig, T_MS - behind_ms)
        for name in self.names:
            for half in SCENARIOS[name]["halves"]:
                if not is_old(half):
                    self.send_half(name, half)
            for operation in SCENARIOS[name]["operations"]:
                self.send_operation(name, operation)
        plan = rig.run(T_MS, held_back=() if behind_ms is None else (op_topic,))
        assert plan is None or plan.epoch_at == T_MS
        last = rig.epochs.last
        assert last is not None
        return last.epoch

    def _know_until(self, rig: Rig, at_ms: int) -> None:
        """Leave C at an instant: an epoch lands all there is, then operations that none lands."""
        Wire(self._settings).command(p.PING, "")
        plan = rig.run(at_ms)
        assert plan is not None
        for queue in range(len(self.names)):
            headers = list(p.operation_headers("g", p.UNKNOWN, ["later"]))
            self._send(self._settings.kafka.op_topic, queue, b"9", headers, at_ms)

    def actions(self, rig: Rig, epoch: int, name: str) -> dict[str, str]:
        """Say what the lake tells of each half, in the words of the vectors' `expect`."""
        queue, lake = self.names.index(name), rig.lake
        scenario = SCENARIOS[name]
        places = {offset: n for (of, n), offset in self.offsets.items() if of == name}

        def rows(table: str) -> list[Row]:
            found = lake.read(table).to_pylist()
            return [r for r in found if r["queue_id"] == queue and r["epoch"] == epoch]

        actions = {h["queue_offset"]: h.get("outcome") or "WAIT" for h in scenario["halves"]}
        for row in lake.read("half", ["queue_id", "queue_offset", "error"]).to_pylist():
            if row["queue_id"] == queue and row["error"] is not None:
                actions[places[row["queue_offset"]]] = "UNREADABLE"
        for row in rows("checks"):
            actions[places[row["queue_offset"]]] = f"CHECK {row['check_times']}"
        for row in rig.epochs.state.waiting.to_pylist():
            if row["queue_id"] == queue and row["half_queue_offset"] not in places:
                actions[row["half_queue_offset"]] = "OPERATION WAITS"
        levels = {half["queue_offset"]: half["delay_level"] for half in scenario["halves"]}
        delayed = {places[row["queue_offset"]] for row in rows("delayed")}
        for row in rows("outcomes"):
            half = places[row["queue_offset"]]
            text = row["outcome"]
            if row["outcome"] == "DISCARDED" or row["cause"] in ("late_end", "duplicate_in_set"):
                text += f" {row['cause']}"
            if row["outcome"] == COMMITTED and half in delayed:
                text += f" scheduled level {levels[half]}"
            actions[half] = text
        return {str(half): action for half, action in sorted(actions.items())}

    def conflicts(self, rig: Rig, name: str) -> list[list[Any]]:
        places = {offset: n for (of, n), offset in self.offsets.items() if of == name}
        return sorted(
            [r["op_queue_offset"], places.get(r["half_queue_offset"]), r["reason"]]
            for r in rig.lake.read("conflicts").to_pylist()
            if r["queue_id"] == self.names.index(name)
        )


@pytest.mark.parametrize("names", _groups(), ids=lambda names: "-".join(names)[:30])
def test_the_lake_says_what_the_vector_expects(
    broker: Broker, spark: SparkSession, tmp_path: Path, unique: Unique, names: list[str]
) -> None:
    config = {**VECTORS["defaults"], **SCENARIOS[names[0]]["config"]}
    config.pop("c_behind_ms", None)  # not a setting: how far the epoch's input is behind
    settings = settings_for(
        broker,
        tmp_path / "lake",
        unique("vectors"),
        transaction={**config, "ask_timeout_ms": 10_000},
    )
    play = Play(names, settings)
    play.make_topics()
    with Rig(spark, settings) as rig:
        rig.start()
        epoch = play.run(rig)
        for name in names:
            expected = {
                half: "WAIT" if action.startswith("WITH ") else action  # one check asks for all
                for half, action in SCENARIOS[name]["expect"].items()
            }
            assert play.actions(rig, epoch, name) == expected, name
            assert play.conflicts(rig, name) == sorted(SCENARIOS[name]["conflicts"]), name
        report = verify(rig.lake)
        assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}


def test_every_vector_is_made_real() -> None:
    assert {name for group in _groups() for name in group} == set(SCENARIOS)

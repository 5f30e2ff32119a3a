"""The job without Kafka and Spark: the real decision, its rows written into a real lake.

Every epoch is one call. Records get the offsets and times that a broker would give them; T moves
only when a test says so. Units: ms.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from checker.frames import RULE_VERSION, Decision, Parameters, State
from pipelines.restore import FRAMES, change_rows
from storage.epoch_log import EpochLog
from storage.epochs import Plan, Range
from storage.lake import Lake
from storage.rows import instant, to_rows
from storage.schemas import (
    ADMIN,
    CATALOG,
    CHECKS,
    CONFLICTS,
    DELIVERIES,
    HALF,
    OP,
    OUTCOMES,
    TOPIC,
)
from tests.comparison import Checker
from txlake import protocol as p

Row = dict[str, Any]
START_AT = 1_767_225_600_000  # 2026-01-01
TOPICS = {
    "half": p.HALF_TOPIC, "op": p.OP_TOPIC, "schedule": p.SCHEDULE_TOPIC, "admin": p.ADMIN_TOPIC,
}  # fmt: skip
QUEUES = {"half": 2, "op": 2, "schedule": 19, "admin": 1}


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    in_ms = pa.schema(
        [pa.field(f.name, pa.int64() if pa.types.is_timestamp(f.type) else f.type) for f in schema]
    )
    full = [{name: row.get(name) for name in schema.names} for row in rows]
    return pa.Table.from_pylist(full, schema=in_ms)


class PaperJob:
    """Land records and decide them, epoch by epoch."""

    def __init__(self, path: Path, **parameters: Any) -> None:
        self.lake = Lake(str(path))
        self.lake.create(instant(START_AT))
        self.parameters = replace(Parameters(), **parameters)
        self.at = START_AT
        self.epoch = 0
        self._checker = Checker()
        self._log = EpochLog(self.lake)
        self._next: dict[tuple[str, int], int] = {}
        self._landed: dict[tuple[str, int], int] = {}
        self._new: dict[str, list[Row]] = {kind: [] for kind in QUEUES}
        self._messages: dict[tuple[str, int, int], Row] = {}
        self._table_ids: dict[str, int] = {}

    @property
    def state(self) -> State:
        """Return what the job would hold in memory."""
        return self._checker.state

    def _add(self, kind: str, queue_id: int, row: Row) -> int:
        offset = self._next.get((kind, queue_id), 0)
        self._next[kind, queue_id] = offset + 1
        place = {"queue_id": queue_id, "queue_offset": offset, "stored_at": self.at}
        self._new[kind].append({**place, **row})
        return offset

    def half(self, transaction_id: str = "tx", queue: int = 0, **columns: Any) -> int:
        """Land a half in the next epoch; `error` makes it one that cannot be read."""
        row = {"producer_group": "g", "transaction_id": transaction_id, "real_topic": "orders",
               "error": None, **columns}  # fmt: skip
        return self._add("half", queue, row)

    def schedule(self, queue: int = 0, **columns: Any) -> int:
        """Land a schedule record in the next epoch."""
        return self._add("schedule", queue, {"real_topic": "orders", "error": None, **columns})

    def end(
        self, decision: str, *offsets: int, queue: int = 0, group: str = "g", **columns: Any
    ) -> int:
        """Land an operation in the next epoch; `error` makes it one that cannot be read."""
        is_readable = columns.get("error") is None
        row = {"producer_group": group, "decision": decision if is_readable else None,
               "half_offsets": list(offsets) if is_readable else None, "from_check": False,
               "body": p.operation_body(offsets), **columns}  # fmt: skip
        return self._add("op", queue, row)

    def command(
        self, name: str, target: str, actor: str = "ada", reason: str = "she said so"
    ) -> int:
        """Land an operator's command in the next epoch."""
        row = {"command": name, "target": target, "actor": actor, "reason": reason}
        return self._add("admin", 0, row)

    def run(
        self,
        after_ms: int = 1_000,
        *,
        acknowledged: bool = True,
        known: bool = True,
        commit: bool = True,
        ops_ahead: int = 0,
    ) -> int:
        """Run one epoch so long after the last one. Output: its number.

        `known`: whether C is known (and T); `ops_ahead`: operations that Kafka had beyond the
        landed ones; without `commit` the epoch stays planned, with all that it wrote.
        """
        self.at += after_ms
        self.epoch += 1
        plan = self._plan(known, ops_ahead)
        self._log.plan(plan)
        decision = self._checker.decide(self._inputs(known), asdict(self.parameters))
        self._land()
        self._write(decision)
        self._deliver(decision)
        self._ask(decision, acknowledged)
        self._record_state()
        if commit:
            self._log.commit(plan, {}, {}, {})
        self._landed = dict(self._next)
        self._new = {kind: [] for kind in QUEUES}
        return self.epoch

    def _plan(self, known: bool, ops_ahead: int) -> Plan:
        ranges = []
        for kind, count in QUEUES.items():
            for queue in range(count):
                end = self._next.get((kind, queue), 0)
                ahead = ops_ahead if kind == "op" else 0
                start = self._landed.get((kind, queue), 0)
                ranges.append(Range(TOPICS[kind], queue, start, end, end + ahead))
        known_at = dict.fromkeys(range(QUEUES["op"]), self.at) if known else {}
        parameters = {**asdict(self.parameters), "wire": {"topics": TOPICS}}
        return Plan(self.epoch, self.at, known_at, known_at, tuple(ranges), "cluster", {}, {},
                    parameters, "paper", RULE_VERSION)  # fmt: skip

    def _inputs(self, known: bool) -> Row:
        queues = [
            {"queue_id": queue, "known_at": self.at if known else None,
             "halves_known_at": self.at if known else None,
             "half_end": self._next.get(("half", queue), 0)}
            for queue in range(QUEUES["half"])
        ]  # fmt: skip
        names = ("tran_size", "tran_seq", "real_queue_id", "delay_level", "deliver_at",
                 "immunity_ms", "transaction_ids")  # fmt: skip
        filled = {
            kind: [{**dict.fromkeys(names), "error": None, **row} for row in rows]
            for kind, rows in self._new.items()
        }
        operations = [
            {**row, "op_queue_offset": row["queue_offset"], "cause": _cause(row)}
            for row in filled["op"]
        ]
        commands = [{**row, "admin_offset": row["queue_offset"]} for row in filled["admin"]]
        return {"at": self.at, "queues": queues, "halves": filled["half"],
                "operations": operations, "schedules": filled["schedule"],
                "commands": commands}  # fmt: skip

    def _land(self) -> None:
        for kind, schema in (("half", HALF), ("schedule", HALF), ("op", OP)):
            rows = to_rows(_table(self._new[kind], schema), schema, epoch=self.epoch)
            self.lake.append(kind, rows, self.epoch)
        for kind in ("half", "schedule"):
            for row in self._new[kind]:
                self._messages[kind, row["queue_id"], row["queue_offset"]] = row

    def _write(self, decision: Decision) -> None:
        decided = {"epoch": self.epoch, "decided_at": instant(self.at)}
        results = {r["admin_offset"]: r["result"] for r in decision.command_results.to_pylist()}
        admin = [{**row, "result": results[row["queue_offset"]]} for row in self._new["admin"]]
        tables = (
            ("admin", _table(admin, ADMIN), ADMIN, {"epoch": self.epoch}),
            ("outcomes", decision.outcomes, OUTCOMES, decided),
            ("conflicts", decision.conflicts, CONFLICTS, decided),
            ("deliveries", decision.deliveries, DELIVERIES, decided),
            ("catalog", decision.new_topics, CATALOG,
             {"epoch": self.epoch, "created_at": instant(self.at)}),
        )  # fmt: skip
        for table, frame, schema, values in tables:
            self.lake.append(table, to_rows(frame, schema, **values), self.epoch)

    def _record_state(self) -> None:
        for table, name in FRAMES.items():
            change = self._checker.decision.changes[name]
            self.lake.append(table, change_rows(table, change, None, self.epoch), self.epoch)

    def _deliver(self, decision: Decision) -> None:
        for row in decision.new_topics.to_pylist():
            self._table_ids[row["topic"]] = row["table_id"]
            self.lake.create_table(f"topics/{row['table_id']}")
        by_topic: dict[str, list[Row]] = {}
        for place in decision.placements.to_pylist():
            source, queue, offset = place["source"], place["queue_id"], place["queue_offset"]
            names = ("source", "asked_queue_id", "reason")
            by_topic.setdefault(place["topic"], []).append({
                **self._messages[source, queue, offset],
                **{name: place[name] for name in names},
                "queue_id": place["real_queue_id"], "queue_offset": place["real_queue_offset"],
                "half_queue_id": queue, "half_queue_offset": offset, "stored_at": self.at,
            })  # fmt: skip
        for topic, rows in by_topic.items():
            table = f"topics/{self._table_ids[topic]}"
            self.lake.append(table, to_rows(_table(rows, TOPIC), TOPIC, epoch=self.epoch))

    def _ask(self, decision: Decision, acknowledged: bool) -> None:
        attempts = [
            {**row, "acknowledged": acknowledged, "sent_at": self.at,
             "check_id": p.check_id(*(row[name] for name in (
                 "queue_id", "queue_offset", "arm", "check_times")))}
            for row in decision.due.to_pylist()
        ]  # fmt: skip
        places = [
            {name: row[name] for name in ("queue_id", "queue_offset", "acknowledged")}
            for row in attempts
        ]
        self._checker.record_attempts(places, self.at)
        rows = to_rows(_table(attempts, CHECKS), CHECKS, epoch=self.epoch)
        self.lake.append("checks", rows, self.epoch)


def _cause(op: Row) -> str:
    if op.get("actor") is not None:
        return "operator"
    return "check_answer" if op["from_check"] else "operation"

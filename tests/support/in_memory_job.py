"""The job without Kafka and Spark: the real decision, its rows written into a real lake.

Every epoch is one call. Records get the offsets and times that a broker would give them;
epoch_at moves only when a test says so. Units: ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from checker.frames import RULE_VERSION, Parameters, State
from storage.lake.epoch_log import write_commit, write_plan
from storage.lake.epochs import Plan, Range
from storage.lake.lake import Lake
from storage.lake.progress import NO_PROGRESS
from storage.rows import instant
from storage.schemas import TABLES, TOPIC
from tests.support.decided_rows import Decided, EpochRows
from tests.support.history import OF_TODAY
from tests.support.lake_rows import table_of
from txlake import protocol as p

Row = dict[str, Any]
START_AT = 1_767_225_600_000  # 2026-01-01
TOPICS = {
    "half": p.HALF_TOPIC,
    "op": p.OP_TOPIC,
    "schedule": p.SCHEDULE_TOPIC,
    "admin": p.ADMIN_TOPIC,
}
QUEUES = {"half": 2, "op": 2, "schedule": 19, "admin": 1}


class InMemoryJob:
    """Land records and decide them, epoch by epoch."""

    def __init__(self, path: Path, **parameters: Any) -> None:
        self.lake = Lake(str(path), is_driver=True)
        self.lake.create(instant(START_AT))
        self.parameters = replace(Parameters(), **{**OF_TODAY, **parameters})
        self.at = START_AT
        self.epoch = 0
        self._decided = Decided()
        self._progress = NO_PROGRESS
        self._next: dict[tuple[str, int], int] = {}
        self._landed: dict[tuple[str, int], int] = {}
        self._new: dict[str, list[Row]] = {kind: [] for kind in QUEUES}
        self._table_ids: dict[str, int] = {}

    @property
    def state(self) -> State:
        """Return what the job would hold in memory."""
        return self._decided.checker.state

    def _add(self, kind: str, queue_id: int, row: Row) -> int:
        offset = self._next.get((kind, queue_id), 0)
        self._next[kind, queue_id] = offset + 1
        place = {"queue_id": queue_id, "queue_offset": offset, "stored_at": self.at}
        self._new[kind].append({**place, **row})
        return offset

    def half(self, transaction_id: str = "tx", queue: int = 0, **columns: Any) -> int:
        """Land a half in the next epoch; `error` makes it one that cannot be read."""
        row = {
            "producer_group": "g",
            "transaction_id": transaction_id,
            "real_topic": "orders",
            "error": None,
            **columns,
        }
        return self._add("half", queue, row)

    def schedule(self, queue: int = 0, **columns: Any) -> int:
        """Land a schedule record in the next epoch."""
        return self._add("schedule", queue, {"real_topic": "orders", "error": None, **columns})

    def end(
        self, decision: str, *offsets: int, queue: int = 0, group: str = "g", **columns: Any
    ) -> int:
        """Land an operation in the next epoch; `error` makes it one that cannot be read."""
        is_readable = columns.get("error") is None
        row = {
            "producer_group": group,
            "decision": decision if is_readable else None,
            "half_offsets": list(offsets) if is_readable else None,
            "from_check": False,
            "body": p.operation_body(offsets),
            **columns,
        }
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

        `known`: whether known_at is epoch_at, else it is null; `ops_ahead`: operations that Kafka
        had beyond the landed ones; without `commit` the epoch stays planned, with all it wrote.
        """
        self.at += after_ms
        self.epoch += 1
        plan = self._plan(known, ops_ahead)
        self._progress = write_plan(self.lake, self._progress, plan)

        epoch = {**self._inputs(known, plan.floor.offsets), "attempts": _all_asked(acknowledged)}
        parameters = asdict(self.parameters)
        is_snapshot = self._is_snapshot()

        found = self._decided.epoch(self.epoch, epoch, parameters, is_snapshot=is_snapshot)

        self._write(found)
        if commit:
            self._progress = write_commit(
                self.lake, self._progress, plan, self._offsets(), self._counts(found), {}
            )

        self._landed = dict(self._next)
        self._new = {kind: [] for kind in QUEUES}
        return self.epoch

    def _offsets(self) -> dict[tuple[str, int], int]:
        rows = self.state.next_offsets.to_pylist()
        return {(row["topic"], row["queue_id"]): row["next_offset"] for row in rows}

    def _counts(self, rows: EpochRows) -> dict[str, int]:
        """Return what the epoch's committed row counts."""
        return Counter(row["outcome"].lower() for row in rows.tables["outcomes"])

    def _is_snapshot(self) -> bool:
        """Return whether the epoch writes down the whole state."""
        return False

    def _write(self, rows: EpochRows) -> None:
        for table, found in rows.tables.items():
            self.lake.append(table, table_of(found, TABLES[table]), self.epoch)
        for row in rows.tables["catalog"]:
            self._table_ids[row["topic"]] = row["table_id"]
            self.lake.create_table(f"topics/{row['table_id']}")
        for topic, found in rows.messages.items():
            table = f"topics/{self._table_ids[topic]}"
            self.lake.append(table, table_of(found, TOPIC), self.epoch)

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

        return Plan(
            self.epoch,
            self.at,
            known_at,
            known_at,
            tuple(ranges),
            "cluster",
            {},
            parameters,
            "paper",
            RULE_VERSION,
        )

    def _known_at(self, queue: int, known: bool) -> int | None:
        """Return `known_at` of an op queue in this epoch."""
        return self.at if known else None

    def _inputs(self, known: bool, floors: Mapping[int, int]) -> Row:
        queues = [
            {
                "queue_id": queue,
                "known_at": self._known_at(queue, known),
                "halves_known_at": self.at if known else None,
                "half_end": self._next.get(("half", queue), 0),
                "floor": floors.get(queue, 0),
            }
            for queue in range(QUEUES["half"])
        ]

        names = (
            "producer_group",
            "tran_size",
            "tran_seq",
            "real_queue_id",
            "delay_level",
            "delay_ms",
            "deliver_at",
            "immunity_ms",
            "transaction_ids",
            "keys",
            "properties",
            "body",
            "actor",
        )

        filled = {
            kind: [{**dict.fromkeys(names), "error": None, **row} for row in rows]
            for kind, rows in self._new.items()
        }

        operations = [
            {**row, "op_queue_offset": row["queue_offset"], "cause": _cause(row)}
            for row in filled["op"]
        ]
        commands = [{**row, "admin_offset": row["queue_offset"]} for row in filled["admin"]]

        return {
            "at": self.at,
            "queues": queues,
            "halves": filled["half"],
            "operations": operations,
            "schedules": filled["schedule"],
            "commands": commands,
        }


def _all_asked(acknowledged: bool) -> Callable[[Row, list[Row]], list[Row]]:
    """Tells that every question was asked, and whether Kafka confirmed it."""
    return lambda _, due: [
        {
            "queue_id": row["queue_id"],
            "queue_offset": row["queue_offset"],
            "acknowledged": acknowledged,
        }
        for row in due
    ]


def _cause(op: Row) -> str:
    if op.get("actor") is not None:
        return "operator"
    return "check_answer" if op["from_check"] else "operation"

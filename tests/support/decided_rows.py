"""The rows that the job would write for an epoch, without Kafka and Spark.

The one way in which tests run an epoch in memory: `Decided.epoch`. A whole world becomes the rows
of a lake by `decided_rows`; `paper_job` writes one epoch after the other into a real lake.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from checker.frames import RULE_VERSION, Decision, Parameters
from pipelines.epoch.recorded_state import FRAMES
from storage.rows import instant
from storage.schemas import EPOCHS, TOPIC
from tests.support.comparison import Checker, attempts_of
from tests.support.histories import parameters_at
from tests.support.lake_rows import NOW, LakeRows
from txlake.protocol import check_id

Row = dict[str, Any]
KAFKA_TOPICS = {"half": "halves", "op": "ops", "schedule": "schedules", "admin": "admin"}
_OF_BOTH = ("epoch", "epoch_at", "owner", "rule_version", "written_at")


@dataclass
class EpochRows:
    """The rows of one epoch by table, in the order in which they are written; messages by topic."""

    tables: dict[str, list[Row]]
    messages: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    due: int = 0


class Decided:
    """Epochs that are decided one after the other."""

    def __init__(self) -> None:
        self.checker = Checker()
        self._records: dict[tuple[str, int, int], Row] = {}

    def epoch(
        self, number: int, epoch: Row, parameters: Row, *, is_snapshot: bool = False
    ) -> EpochRows:
        """Decide an epoch of a world, and return what the job would write."""
        decision = self.checker.decide(epoch, parameters)
        due = decision.due.to_pylist()
        attempts = epoch.get("attempts", attempts_of)(epoch, due)
        self.checker.record_attempts(attempts, epoch["at"])

        rows = EpochRows(_landed(epoch, number, decision), due=len(due))
        for kind in ("half", "schedule"):
            for row in rows.tables[kind]:
                self._records[kind, row["queue_id"], row["queue_offset"]] = row

        decided = {"epoch": number, "decided_at": epoch["at"]}
        for table in ("outcomes", "conflicts", "deliveries"):
            found = getattr(decision, table).to_pylist()
            rows.tables[table] = [{**row, **decided} for row in found]

        rows.tables["checks"] = list(_checks(due, attempts, number, epoch["at"]))

        rows.tables["catalog"] = [
            {**row, "epoch": number, "created_at": epoch["at"]}
            for row in decision.new_topics.to_pylist()
        ]

        for place in decision.placements.to_pylist():
            record = self._records[place["source"], place["queue_id"], place["queue_offset"]]
            rows.messages[place["topic"]].append(_message(place, record, number, epoch["at"]))

        return self._with_state(rows, number, is_snapshot)

    def _with_state(self, rows: EpochRows, number: int, is_snapshot: bool) -> EpochRows:
        """Add what the epoch changed in the state; of a snapshot all of it."""
        for table, name in FRAMES.items():
            change = self.checker.decision.changes[name]
            parts = [("put", change.put), ("left", change.left)]
            parts += [("snapshot", getattr(self.checker.state, name))] if is_snapshot else []
            rows.tables[table] = [
                {**row, "change": what, "epoch": number}
                for what, frame in parts
                for row in frame.to_pylist()
            ]
        return rows


def decided_rows(world: Row, snapshot_epochs: int = 3) -> LakeRows:
    """Decide a world epoch by epoch and give the rows that the job would write."""
    rows = LakeRows()
    decided = Decided()
    landed: dict[tuple[str, int], int] = {}

    for number, epoch in enumerate(_in_landing_order(world["epochs"]), 1):
        parameters = parameters_at(world, epoch)
        is_snapshot = number % snapshot_epochs == 0
        found = decided.epoch(number, epoch, parameters, is_snapshot=is_snapshot)

        for table, added in found.tables.items():
            rows.tables[table] += added
        for topic, messages in found.messages.items():
            rows.messages[topic] += messages

        rows.states[number] = decided.checker.state

        counts = {"due": found.due} | ({"snapshot": 1} if is_snapshot else {})
        plan = _plan(epoch, number, parameters, _ranges(epoch, landed))

        rows.tables["epochs"] += [
            plan,
            {
                **dict.fromkeys(EPOCHS.names),
                **{n: plan[n] for n in _OF_BOTH},
                "state": "committed",
                "counts": sorted(counts.items()),
            },
        ]

    rows.keep_books()
    return rows


def _in_landing_order(epochs: list[Row]) -> list[Row]:
    """Number schedule records as Kafka would: the worlds' land in any order."""
    ends: Counter[int] = Counter()
    numbered = []
    for epoch in epochs:
        schedules = []
        for row in epoch["schedules"]:
            schedules.append({**row, "queue_offset": ends[row["queue_id"]]})
            ends[row["queue_id"]] += 1
        numbered.append({**epoch, "schedules": schedules})
    return numbered


def _landed(epoch: Row, number: int, decision: Decision) -> dict[str, list[Row]]:
    """Return what the epoch lands; columns that no rule reads are made up where they are absent."""
    results = {r["admin_offset"]: r["result"] for r in decision.command_results.to_pylist()}

    messages = {
        kind: [
            {
                "keys": "k",
                "properties": [("colour", "red")],
                "body": f"{kind} {row['queue_id']}-{row['queue_offset']}".encode(),
                **row,
                "epoch": number,
            }
            for row in epoch[name]
        ]
        for kind, name in (("half", "halves"), ("schedule", "schedules"))
    }

    operations = [
        {
            "from_check": row["cause"] == "check_answer",
            "actor": "someone" if row["cause"] == "operator" else None,
            **row,
            "epoch": number,
            "queue_offset": row["op_queue_offset"],
        }
        for row in epoch["operations"]
    ]

    commands = [
        {
            "stored_at": epoch["at"],
            **row,
            "epoch": number,
            "queue_id": 0,
            "queue_offset": row["admin_offset"],
            "result": results[row["admin_offset"]],
        }
        for row in epoch["commands"]
    ]

    return {**messages, "op": operations, "admin": commands}


def _checks(due: list[Row], attempts: list[Row], number: int, at: int) -> Iterator[Row]:
    questions = {(row["queue_id"], row["queue_offset"]): row for row in due}
    for attempt in attempts:
        row = questions[attempt["queue_id"], attempt["queue_offset"]]
        identity = (row["queue_id"], row["queue_offset"], row["arm"], row["check_times"])
        yield {
            **row,
            "check_id": check_id(*identity),
            "sent_at": at,
            "epoch": number,
            "acknowledged": attempt["acknowledged"],
        }


def _message(place: Row, record: Row, number: int, at: int) -> Row:
    return {
        **{name: record.get(name) for name in TOPIC.names},
        "queue_id": place["real_queue_id"],
        "queue_offset": place["real_queue_offset"],
        "stored_at": at,
        "source": place["source"],
        "real_topic": place["real_topic"],
        "asked_queue_id": place["asked_queue_id"],
        "reason": place["reason"],
        "half_queue_id": place["queue_id"],
        "half_queue_offset": place["queue_offset"],
        "epoch": number,
    }


def _ranges(epoch: Row, landed: dict[tuple[str, int], int]) -> list[Row]:
    before = dict(landed)

    for queue in epoch["queues"]:
        landed["half", queue["queue_id"]] = queue["half_end"]
        landed.setdefault(("op", queue["queue_id"]), 0)
    for queue_id in range(3):
        landed.setdefault(("schedule", queue_id), 0)

    landed.setdefault(("admin", 0), 0)

    for kind, name in (("op", "operations"), ("schedule", "schedules")):
        for row in epoch[name]:
            offset = row["op_queue_offset" if kind == "op" else "queue_offset"]
            place = kind, row["queue_id"]
            landed[place] = max(landed[place], offset + 1)

    for row in epoch["commands"]:
        landed["admin", 0] = max(landed["admin", 0], row["admin_offset"] + 1)

    return [
        {
            "topic": KAFKA_TOPICS[kind],
            "partition": queue_id,
            "to_offset": end,
            "end_offset": end,
            "from_offset": before.get((kind, queue_id), 0),
        }
        for (kind, queue_id), end in sorted(landed.items())
    ]


def _plan(epoch: Row, number: int, parameters: Row, ranges: list[Row]) -> Row:
    wire = {
        "topics": KAFKA_TOPICS,
        "check_topic_prefix": "TRANS_CHECK_",
        "message_bytes_max": 1_000,
        "messages_max": 10,
    }

    values = {**asdict(Parameters(**parameters)), "wire": wire}
    if "losses" in epoch:
        values["losses"] = epoch["losses"]

    known = {
        column: [
            (row["queue_id"], instant(row[name]))
            for row in epoch["queues"]
            if row[name] is not None
        ]
        for column, name in (("known_at", "known_at"), ("halves_known_at", "halves_known_at"))
    }

    return {
        **dict.fromkeys(EPOCHS.names),
        **known,
        "epoch": number,
        "state": "planned",
        "epoch_at": instant(epoch["at"]),
        "ranges": ranges,
        "cluster_id": "test",
        "topic_ids": [(name, name) for name in KAFKA_TOPICS.values()],
        "next_offsets": [],
        "parameters": [(k, json.dumps(v)) for k, v in sorted(values.items())],
        "owner": "test",
        "rule_version": RULE_VERSION,
        "written_at": NOW,
    }

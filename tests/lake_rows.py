"""Whole lakes without Spark: a history is decided by `checker` and written by delta-rs.

A history is a world of `tests/histories.py`. Its rows stay plain dicts (instants in ms) until they
are written, so that a test can change one of them first.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from checker.frames import Parameters, State
from pipelines.restore import FRAMES
from storage.epochs import digest_of, in_chain
from storage.lake import Lake
from storage.rows import instant, to_rows
from storage.schemas import EPOCHS, TABLES, TOPIC
from tests.comparison import Checker, attempts_of
from tests.histories import parameters_at

Row = dict[str, Any]
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
KAFKA_TOPICS = {"half": "halves", "op": "ops", "schedule": "schedules", "admin": "admin"}
CONSUMER_OFFSETS = pa.schema(
    [("consumer_group", pa.string()), ("topic", pa.string()), ("queue_id", pa.int32()),
     ("queue_offset", pa.int64()), ("generation", pa.int64()), ("owner", pa.string()),
     ("committed_at", pa.timestamp("us", tz="UTC"))]
)  # fmt: skip


@dataclass
class LakeRows:
    """All rows of a lake by table; messages by topic, plans by epoch."""

    tables: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    messages: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    states: dict[int, State] = field(default_factory=dict)  # after each epoch
    is_sealed: bool = False  # what the epochs say of tables and rows is kept as it is
    lake_id: str = ""

    def find(self, table: str, **values: Any) -> Row:
        """Return the one row that has these values."""
        rows = self.messages[table[7:]] if table.startswith("topics/") else self.tables[table]
        found = [row for row in rows if all(row[k] == v for k, v in values.items())]
        assert len(found) == 1, f"{len(found)} rows of {table} have {values}"
        return found[0]

    def take(self, table: str, **values: Any) -> Row:
        """Remove the one row that has these values, and give it."""
        row = self.find(table, **values)
        rows = self.messages[table[7:]] if table.startswith("topics/") else self.tables[table]
        rows.remove(row)
        return row

    def plan(self, epoch: int) -> Row:
        return self.find("epochs", epoch=epoch, state="planned")

    def commit(self, epoch: int) -> Row:
        return self.find("epochs", epoch=epoch, state="committed")

    def seal(self, lake_id: str) -> None:
        """Write down in the epochs' rows, as the job does, what each says of tables and rows."""
        by_epoch: dict[int, Counter[str]] = defaultdict(Counter)
        ids = {row["topic"]: row["table_id"] for row in self.tables["catalog"]}
        for table, rows in self.tables.items():
            for row in rows if table not in ("epochs", "consumer_offsets") else ():
                by_epoch[row["epoch"]][table] += 1
        for topic, rows in self.messages.items():
            for row in rows:
                by_epoch[row["epoch"]][f"topics/{ids.get(topic)}"] += 1
        totals: Counter[str] = Counter()
        for epoch in sorted(by_epoch.keys() | {row["epoch"] for row in self.tables["epochs"]}):
            totals += by_epoch[epoch]
            for row in self._states(epoch, "committed"):
                has_all = "snapshot" in dict(row["counts"])
                row["tables"] = [
                    {"table": table, "version": 0, "rows": totals[table]}
                    for table in sorted(totals if has_all else by_epoch[epoch])
                ]
        self.chain(lake_id)

    def chain(self, lake_id: str = "") -> None:
        """Return every row of epochs the digest that follows from the row before."""
        self.lake_id = before = lake_id or self.lake_id
        for row in in_chain(self.tables["epochs"]):
            at_rest = pa.Table.from_pylist([row], schema=EPOCHS)
            row["digest"] = before = digest_of(at_rest.to_pylist()[0], before)

    def copy(self) -> LakeRows:
        return LakeRows(
            copy.deepcopy(self.tables), copy.deepcopy(self.messages), self.states, self.is_sealed,
            self.lake_id,
        )  # fmt: skip

    def keep_books(self) -> None:
        """Count anew what the epochs say of their rows: counts and next offsets."""
        counts: dict[int, Counter[str]] = defaultdict(Counter)
        for table, rows in self.tables.items():
            for row in rows if table not in ("epochs", "catalog", "consumer_offsets") else ():
                name = table if table not in ("half", "schedule") else f"landed_{table}"
                counts[row["epoch"]][name] += 1
                if table in ("op", "admin"):
                    counts[row["epoch"]][f"landed_{table}"] += 1
                if table == "half" and row["error"] is not None:
                    counts[row["epoch"]]["unreadable_half"] += 1
                if table == "outcomes":
                    counts[row["epoch"]][row["outcome"].lower()] += 1
        ends: dict[tuple[str, int], int] = {}
        for epoch in sorted({row["epoch"] for row in self.tables["epochs"]}):
            for row in self._states(epoch, "planned"):
                row["next_offsets"] = _next_offsets(ends)
            for topic, messages in self.messages.items():
                for message in messages:
                    if message["epoch"] == epoch:
                        counts[epoch]["placed"] += 1
                        place = topic, message["queue_id"]
                        ends[place] = ends.get(place, 0) + 1
            for row in self._states(epoch, "committed"):
                row["next_offsets"] = _next_offsets(ends)
                kept = {k: v for k, v in row["counts"] if k in ("due", "snapshot")}
                row["counts"] = sorted({**counts[epoch], **kept}.items())

    def _states(self, epoch: int, state: str) -> Iterator[Row]:
        for row in self.tables["epochs"]:
            if row["epoch"] == epoch and row["state"] == state:
                yield row

    def write(self, path: Path, by_epoch: Collection[str] = ()) -> Lake:
        """Write a new lake; the tables `by_epoch` in one Delta commit an epoch, as the job does."""
        lake = Lake(str(path))
        lake.create(NOW)
        self.seal(lake.tables_id())
        for table, rows in self._tables():
            if table.startswith("topics/"):
                lake.create_table(table)
            for epoch in pc.unique(rows["epoch"]).to_pylist() if table in by_epoch else ():
                lake.append(table, rows.filter(pc.field("epoch") == epoch), epoch)
            if rows.num_rows and table not in by_epoch:
                write_deltalake(lake.table_path(table), rows, mode="append")
        return Lake(str(path))

    def write_changed(self, path: Path, base: Path, before: LakeRows) -> Lake:
        """Copy a lake and write anew the tables that differ."""
        shutil.copytree(base, path)
        written = dict(before._tables())
        if not self.is_sealed:
            self.seal(Lake(str(path)).tables_id())
        for table, rows in self._tables():
            if table not in written or rows != written[table]:
                if table.startswith("topics/"):
                    Lake(str(path)).create_table(table)
                write_deltalake(str(path / table), rows, mode="overwrite")
        return Lake(str(path))

    def _tables(self) -> Iterator[tuple[str, pa.Table]]:
        for table, rows in self.tables.items():
            if table == "epochs":
                yield table, pa.Table.from_pylist(rows, schema=EPOCHS)
            elif table == "consumer_offsets":
                yield table, pa.Table.from_pylist(rows, schema=CONSUMER_OFFSETS)
            else:
                yield table, table_of(rows, TABLES[table])
        ids = {row["topic"]: row["table_id"] for row in self.tables["catalog"]}
        for topic, table_id in ids.items():
            yield f"topics/{table_id}", table_of(self.messages[topic], TOPIC)


def table_of(rows: list[Row], schema: pa.Schema) -> pa.Table:
    """Return plain rows as a table; a column that a row lacks is null."""
    plain = pa.schema(
        [f if not pa.types.is_timestamp(f.type) else pa.field(f.name, pa.int64()) for f in schema]
    )
    full = [{name: row.get(name) for name in schema.names} for row in rows]
    return to_rows(pa.Table.from_pylist(full, schema=plain), schema)


def _next_offsets(ends: dict[tuple[str, int], int]) -> list[Row]:
    return [
        {"topic": topic, "queue_id": queue, "next_offset": end}
        for (topic, queue), end in sorted(ends.items())
    ]


def decided_rows(world: Row, snapshot_epochs: int = 3) -> LakeRows:
    """Decide a world epoch by epoch and give the rows that the job would write."""
    rows, checker = LakeRows(), Checker()
    landed: dict[tuple[str, int], int] = {}
    records: dict[tuple[str, int, int], Row] = {}
    for number, epoch in enumerate(_in_landing_order(world["epochs"]), 1):
        parameters = parameters_at(world, epoch)
        decision = checker.decide(epoch, parameters)
        due = decision.due.to_pylist()
        attempts = epoch.get("attempts", attempts_of)(epoch, due)
        checker.record_attempts(attempts, epoch["at"])
        for kind, landing in _landing(epoch, number):
            rows.tables[kind] += landing
            if kind in ("half", "schedule"):
                records |= {(kind, r["queue_id"], r["queue_offset"]): r for r in landing}
        results = {r["admin_offset"]: r["result"] for r in decision.command_results.to_pylist()}
        for row in rows.tables["admin"]:
            row.setdefault("result", results.get(row["queue_offset"]))
        decided = {"epoch": number, "decided_at": epoch["at"]}
        for table in ("outcomes", "conflicts", "deliveries"):
            rows.tables[table] += [{**r, **decided} for r in getattr(decision, table).to_pylist()]
        rows.tables["checks"] += list(_checks(due, attempts, number, epoch["at"]))
        rows.tables["catalog"] += [
            {**r, "epoch": number, "created_at": epoch["at"]}
            for r in decision.new_topics.to_pylist()
        ]
        for place in decision.placements.to_pylist():
            record = records[place["source"], place["queue_id"], place["queue_offset"]]
            rows.messages[place["topic"]].append(_message(place, record, number, epoch["at"]))
        counts = {"due": len(due)}
        rows.states[number] = checker.state
        is_snapshot = number % snapshot_epochs == 0
        if is_snapshot:
            counts["snapshot"] = 1
        for table, name in FRAMES.items():
            change = checker.decision.changes[name]
            parts = [("put", change.put), ("left", change.left)]
            parts += [("snapshot", getattr(checker.state, name))] if is_snapshot else []
            rows.tables[table] += [
                {**row, "change": what, "epoch": number}
                for what, frame in parts
                for row in frame.to_pylist()
            ]
        plan = _plan(epoch, number, parameters, _ranges(epoch, landed))
        rows.tables["epochs"] += [
            plan,
            {**dict.fromkeys(EPOCHS.names), **{n: plan[n] for n in _OF_BOTH}, "state": "committed",
             "counts": sorted(counts.items())},
        ]  # fmt: skip
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


_OF_BOTH = ("epoch", "epoch_at", "owner", "rule_version", "written_at")


def _landing(epoch: Row, number: int) -> Iterator[tuple[str, list[Row]]]:
    for kind, name in (("half", "halves"), ("schedule", "schedules")):
        yield kind, [
            {
                **row, "epoch": number, "keys": "k", "properties": [("colour", "red")],
                "body": f"{kind} {row['queue_id']}-{row['queue_offset']}".encode(),
            }
            for row in epoch[name]
        ]  # fmt: skip
    yield "op", [
        {
            **row, "epoch": number, "queue_offset": row["op_queue_offset"],
            "from_check": row["cause"] == "check_answer",
            "actor": "someone" if row["cause"] == "operator" else None,
        }
        for row in epoch["operations"]
    ]  # fmt: skip
    yield "admin", [
        {**row, "epoch": number, "queue_id": 0, "queue_offset": row["admin_offset"],
         "stored_at": epoch["at"]}
        for row in epoch["commands"]
    ]  # fmt: skip


def _checks(due: list[Row], attempts: list[Row], number: int, at: int) -> Iterator[Row]:
    questions = {(row["queue_id"], row["queue_offset"]): row for row in due}
    for attempt in attempts:
        row = questions[attempt["queue_id"], attempt["queue_offset"]]
        identity = (row["queue_id"], row["queue_offset"], row["arm"], row["check_times"])
        yield {
            **row, "check_id": "-".join(map(str, identity)), "sent_at": at, "epoch": number,
            "acknowledged": attempt["acknowledged"],
        }  # fmt: skip


def _message(place: Row, record: Row, number: int, at: int) -> Row:
    return {
        **{name: record.get(name) for name in TOPIC.names},
        "queue_id": place["real_queue_id"], "queue_offset": place["real_queue_offset"],
        "stored_at": at, "source": place["source"], "real_topic": place["real_topic"],
        "asked_queue_id": place["asked_queue_id"], "reason": place["reason"],
        "half_queue_id": place["queue_id"], "half_queue_offset": place["queue_offset"],
        "epoch": number,
    }  # fmt: skip


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
        {"topic": KAFKA_TOPICS[kind], "partition": queue_id, "to_offset": end, "end_offset": end,
         "from_offset": before.get((kind, queue_id), 0)}
        for (kind, queue_id), end in sorted(landed.items())
    ]  # fmt: skip


def _plan(epoch: Row, number: int, parameters: Row, ranges: list[Row]) -> Row:
    wire = {"topics": KAFKA_TOPICS, "check_topic_prefix": "TRANS_CHECK_",
            "message_bytes_max": 1_000, "messages_max": 10}  # fmt: skip
    values = {**asdict(Parameters(**parameters)), "wire": wire}
    known = {
        column: [
            (row["queue_id"], instant(row[name]))
            for row in epoch["queues"]
            if row[name] is not None
        ]
        for column, name in (("known_at", "known_at"), ("halves_known_at", "halves_known_at"))
    }
    return {
        **dict.fromkeys(EPOCHS.names), **known, "epoch": number, "state": "planned",
        "epoch_at": instant(epoch["at"]), "ranges": ranges, "cluster_id": "test",
        "topic_ids": [(name, name) for name in KAFKA_TOPICS.values()], "next_offsets": [],
        "parameters": [(k, json.dumps(v)) for k, v in sorted(values.items())], "owner": "test",
        "rule_version": 1, "written_at": NOW,
    }  # fmt: skip

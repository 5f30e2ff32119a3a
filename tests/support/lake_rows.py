"""All rows of a lake as plain dicts, instants in ms, until delta-rs writes them.

So a test can change one of them first. `decided_rows` makes them of a world.
"""

from __future__ import annotations

import copy
import datetime as dt
import shutil
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from checker.frames import State
from storage.lake.chain import chain_order, digest_of
from storage.lake.lake import Lake
from storage.rows import to_rows
from storage.schemas import EPOCHS, TABLES, TOPIC

Row = dict[str, Any]
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
CONSUMER_OFFSETS = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("generation", pa.int64()),
        ("owner", pa.string()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("session_timeout_ms", pa.int64()),
    ]
)


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
        """Writes into every row of epochs the digest that follows from the row before."""
        self.lake_id = before = lake_id or self.lake_id
        for row in chain_order(self.tables["epochs"]):
            at_rest = pa.Table.from_pylist([row], schema=EPOCHS)
            row["digest"] = before = digest_of(at_rest.to_pylist()[0], before)

    def copy(self) -> LakeRows:
        return LakeRows(
            copy.deepcopy(self.tables),
            copy.deepcopy(self.messages),
            self.states,
            self.is_sealed,
            self.lake_id,
        )

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
            grown = set()
            for topic, messages in self.messages.items():
                for message in messages:
                    if message["epoch"] == epoch:
                        counts[epoch]["placed"] += 1
                        place = topic, message["queue_id"]
                        ends[place] = ends.get(place, 0) + 1
                        grown.add(place)

            for row in self._states(epoch, "committed"):
                named = ends if "snapshot" in dict(row["counts"]) else {p: ends[p] for p in grown}
                row["next_offsets"] = _next_offsets(named)
                kept = {k: v for k, v in row["counts"] if k in ("due", "snapshot")}
                row["counts"] = sorted({**counts[epoch], **kept}.items())

    def _states(self, epoch: int, state: str) -> Iterator[Row]:
        for row in self.tables["epochs"]:
            if row["epoch"] == epoch and row["state"] == state:
                yield row

    def write(self, path: Path, by_epoch: Collection[str] = ()) -> Lake:
        """Write a new lake; the tables `by_epoch` in one Delta commit an epoch, as the job does."""
        lake = Lake(str(path), is_driver=True)
        lake.create(NOW)
        self.seal(lake.majority_lake_id())
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
        if not self.is_sealed:
            self.seal(_lake_id(base))

        written = dict(before._rows())
        for table, rows in self._rows():
            if written.get(table) != rows:
                if table.startswith("topics/"):
                    Lake(str(path)).create_table(table)
                write_deltalake(str(path / table), _at_rest(table, rows), mode="overwrite")
        return Lake(str(path))

    def _tables(self) -> Iterator[tuple[str, pa.Table]]:
        for table, rows in self._rows():
            yield table, _at_rest(table, rows)

    def _rows(self) -> Iterator[tuple[str, list[Row]]]:
        yield from self.tables.items()
        ids = {row["topic"]: row["table_id"] for row in self.tables["catalog"]}
        for topic, table_id in ids.items():
            yield f"topics/{table_id}", self.messages[topic]


@cache
def _lake_id(base: Path) -> str:
    """Return the id of a lake that nobody changes any more: each table is asked for it."""
    return Lake(str(base)).majority_lake_id()


def _at_rest(table: str, rows: list[Row]) -> pa.Table:
    if table == "epochs":
        return pa.Table.from_pylist(rows, schema=EPOCHS)
    if table == "consumer_offsets":
        return pa.Table.from_pylist(rows, schema=CONSUMER_OFFSETS)
    return table_of(rows, TOPIC if table.startswith("topics/") else TABLES[table])


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

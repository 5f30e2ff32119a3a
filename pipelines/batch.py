"""The records of an epoch, as the driver has them: what decides is here, what is heavy is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.columns import places
from storage import schemas
from storage.data_files import DataFile
from storage.kafka_arrow import RECORDS
from storage.kafka_rows import HALF, KINDS, SCHEDULE
from storage.land import HEAVY

_OFFSET_ORDER = [("queue_id", "ascending"), ("queue_offset", "ascending")]
# What is kept of a landed record. A column that its kind does not have takes memory, too.
_COLUMNS = {
    kind: [
        name for name in schemas.TABLES[kind].names
        if name in RECORDS.names and not (kind in (HALF, SCHEDULE) and name in HEAVY)
    ]
    for kind in KINDS
}  # fmt: skip


@dataclass
class Batch:
    """An epoch's records, by kind.

    `files`: what was written of them and is to be committed, by table; the messages among the
    records then lack what is heavy (`storage.land.HEAVY`). `tasks`: how many have landed them.
    """

    by_kind: dict[str, pa.Table] = field(default_factory=dict)
    files: Mapping[str, list[DataFile]] = field(default_factory=dict)
    tasks: int = 0

    @classmethod
    def of(cls, parts: Iterable[pa.Table], files: Mapping[str, list[DataFile]]) -> Batch:
        """Put together what tasks handed back. Input: RECORDS."""
        return cls(_by_kind(parts), files)

    @property
    def landed_bytes(self) -> int:
        """Return how large the messages are that were landed, as Arrow counts it."""
        return sum(file.row_bytes for files in self.files.values() for file in files)

    @property
    def landed_messages(self) -> int:
        """Return how many messages were written."""
        return sum(file.rows for files in self.files.values() for file in files)

    def add(self, kind: str, rows: list[dict[str, Any]]) -> None:
        """Add rows that the micro-batch did not bring."""
        if rows:
            self.add_table(
                pa.Table.from_pylist([{**row, "kind": kind} for row in rows], schema=RECORDS), kind
            )

    def add_table(self, rows: pa.Table, kind: str) -> None:
        """Add rows of one kind. Input: its columns of RECORDS; where it has rows, those of them."""
        if kind in self.by_kind:
            there = self.by_kind[kind]
            rows = pa.concat_tables([there, rows.select(there.column_names)])
        self.by_kind[kind] = rows.sort_by(_OFFSET_ORDER)

    def drop_written(self) -> None:
        """Forget the messages that stand in files: decided, they take memory only."""
        for kind in self.files:
            self.by_kind.pop(kind, None)

    def rows(self, kind: str) -> pa.Table:
        """Return the rows of one kind, in offset order. Output: its columns of RECORDS."""
        return self.by_kind.get(kind, RECORDS.empty_table())


def _by_kind(parts: Iterable[pa.Table]) -> dict[str, pa.Table]:
    """Return rows by kind, in offset order. Most parts are pieces of one partition, in order."""
    found: dict[str, list[pa.Table]] = {}
    for part in parts:
        kinds = pc.unique(part["kind"]).to_pylist()
        for kind in kinds:
            rows = part if len(kinds) == 1 else part.filter(pc.equal(part["kind"], kind))
            found.setdefault(kind, []).append(rows.select(_COLUMNS[kind]))
    return {kind: _in_offset_order(found.pop(kind)) for kind in list(found)}


def _in_offset_order(pieces: list[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(sorted(pieces, key=lambda piece: int(places(piece)[0])))
    rows = rows.combine_chunks()
    if (np.diff(places(rows)) > 0).all():
        return rows
    return rows.take(pa.array(np.argsort(places(rows), kind="stable")))

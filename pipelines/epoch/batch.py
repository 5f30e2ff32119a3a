"""The records of an epoch in the driver: narrow columns, without bodies once they are in files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import schemas
from storage.files.data_files import DataFile
from storage.rows import milliseconds
from storage.schemas import row_keys
from storage.tasks.land import PAYLOAD_COLUMNS
from storage.wire.decode import RECORDS
from storage.wire.record_kinds import ADMIN, HALF, KINDS, SCHEDULE

_OFFSET_ORDER = [("queue_id", "ascending"), ("queue_offset", "ascending")]


def _kept_columns(kind: str) -> list[str]:
    columns = [name for name in schemas.TABLES[kind].names if name in RECORDS.names]
    if kind in (HALF, SCHEDULE):
        columns = [name for name in columns if name not in PAYLOAD_COLUMNS]
    return columns


# The kept columns of a landed record. A column that its kind does not have would take memory.
_COLUMNS = {kind: _kept_columns(kind) for kind in KINDS}


@dataclass
class Batch:
    """An epoch's records, by kind.

    `files`: the files with messages, still to be committed, by table; the records of these messages
    lack the columns of the payload (`PAYLOAD_COLUMNS`). `tasks`: the number of tasks that landed
    them.
    """

    by_kind: dict[str, pa.Table] = field(default_factory=dict)
    files: Mapping[str, list[DataFile]] = field(default_factory=dict)
    tasks: int = 0

    @property
    def records(self) -> int:
        """Returns the number of records, as long as none are dropped."""
        return sum(rows.num_rows for rows in self.by_kind.values())

    @property
    def landed_bytes(self) -> int:
        """Returns the size of the landed messages in bytes, as Arrow counts them."""
        return sum(file.row_bytes for files in self.files.values() for file in files)

    @property
    def landed_messages(self) -> int:
        """Returns the number of messages in files."""
        return sum(file.rows for files in self.files.values() for file in files)

    def lag_ms(self, epoch_at: int) -> int:
        """Returns how long the oldest record had waited at `epoch_at`; 0 if there is none.

        Records of the admin topic do not count: PINGs come there when nothing else does.
        """
        oldest = oldest_stored_at(rows for kind, rows in self.by_kind.items() if kind != ADMIN)
        return 0 if oldest is None else max(0, epoch_at - milliseconds(oldest))

    def add(self, kind: str, rows: list[dict[str, Any]]) -> None:
        """Adds rows from elsewhere than the micro-batch."""
        if rows:
            self.add_table(
                pa.Table.from_pylist([{**row, "kind": kind} for row in rows], schema=RECORDS), kind
            )

    def add_table(self, rows: pa.Table, kind: str) -> None:
        """Adds rows of one kind. Input: the columns of RECORDS that its rows here have, or more."""
        if kind in self.by_kind:
            present = self.by_kind[kind]
            rows = pa.concat_tables([present, rows.select(present.column_names)])
        self.by_kind[kind] = rows.sort_by(_OFFSET_ORDER)

    def drop_written(self) -> None:
        """Drops the messages that stand in files: after the decision they only take memory."""
        for kind in self.files:
            self.by_kind.pop(kind, None)

    def rows(self, kind: str) -> pa.Table:
        """Returns the rows of one kind, in offset order. Output: its columns of RECORDS."""
        return self.by_kind.get(kind, RECORDS.empty_table())


def oldest_stored_at(frames: Iterable[pa.Table]) -> Any:
    """Returns the smallest `stored_at` of some records; None if there is none."""
    oldest = (pc.min(rows["stored_at"]).as_py() for rows in frames if rows.num_rows)
    return min((at for at in oldest if at is not None), default=None)


def rows_by_kind(parts: Iterable[pa.Table]) -> dict[str, pa.Table]:
    """Returns by kind the rows that tasks handed back, in offset order. Input: RECORDS.

    Most parts are pieces of one partition, in order.
    """
    pieces: dict[str, list[pa.Table]] = {}
    for part in parts:
        kinds = pc.unique(part["kind"]).to_pylist()
        for kind in kinds:
            rows = part if len(kinds) == 1 else part.filter(pc.equal(part["kind"], kind))
            pieces.setdefault(kind, []).append(rows.select(_COLUMNS[kind]))

    # Each kind's pieces are given back before those of the next are joined.
    return {kind: _in_offset_order(pieces.pop(kind)) for kind in list(pieces)}


def _in_offset_order(pieces: list[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(sorted(pieces, key=lambda piece: int(row_keys(piece)[0])))
    rows = rows.combine_chunks()
    if (np.diff(row_keys(rows)) > 0).all():
        return rows
    return rows.take(pa.array(np.argsort(row_keys(rows), kind="stable")))

"""Delete what is old: whole files, by their statistics; nothing is rewritten.

What is old a plan says (`storage/lake/floor.py`): rows of epochs up to one that took a snapshot. A
file goes when all its rows are old and none of them is held. Held is what was alive at that epoch,
as its snapshot tells: halves that were pending and the duplicates of their sets, delayed messages,
operations that waited, with the rows of their outcomes and deliveries; and what was ever
undeliverable, with the row that says whether it was delivered since. A held file is looked at again
when more has become old.

A deletion is one Delta commit. It carries, as a transaction identifier, how many rows of the table
were deleted so far: rows that are there and rows that were deleted add up to the rows that were
committed, in every version (`storage/lake/integrity.py`). `dataChange` is false: a Spark stream
does not take a deletion for a change of what it has read.

A crash leaves a file deleted or not. The next round deletes what is left; VACUUM removes the bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.lake.table import deleted_rows, owner_of
from storage.maintenance.merge import replace_files
from storage.maintenance.merge_plan import TableFile
from storage.schemas import SNAPSHOT, STATE_TABLES, row_keys
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake.protocol import UNDELIVERABLE_TOPIC, deleted_id

_DELETIONS = 256  # files that one commit deletes
# Rows of these that were alive stay; by which records they are named.
_HELD: Final = {HALF: HALF, SCHEDULE: SCHEDULE, OP: OP, "outcomes": HALF, "deliveries": "source"}
# The newest old epoch stays in these: everything after it begins at its rows and its snapshot.
_FROM_ITS_SNAPSHOT: Final = (*STATE_TABLES, "epochs")
EXPIRING: Final = (*_HELD, *_FROM_ITS_SNAPSHOT, ADMIN, "conflicts", "checks")
_SET_KEY: Final = ("producer_group", "transaction_id", "tran_size")  # in one half queue
Places = dict[str, Any]  # a kind of record -> its places as numbers


class Expiry:
    """The deleter of one lake; it remembers which files are held."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._until = 0
        self._alive: Places = {}
        self._held: set[tuple[str, str]] = set()

    def expired(self, table: str, until: int, files: Sequence[TableFile]) -> list[TableFile]:
        """Returns some files of a table that can go, the oldest first.

        Input: the newest epoch whose rows are old; 0: none is.
        Errors: BrokenLakeError, DeltaError, OSError.
        """
        if until == 0 or table not in EXPIRING:
            return []
        if until != self._until:
            self._alive, self._held = live_rows_at(self._lake, until), set()
            self._until = until
        last = until - 1 if table in _FROM_ITS_SNAPSHOT else until
        old = [file for file in files if file.last_epoch is not None and file.last_epoch <= last]
        free = (
            file
            for file in sorted(old, key=lambda file: (file.first_epoch, file.path))
            if (table, file.path) not in self._held and not self._is_held(table, file)
        )
        return list(itertools.islice(free, _DELETIONS))

    def _is_held(self, table: str, file: TableFile) -> bool:
        """Returns whether a file has a row that stays, and remembers it.

        Without statistics its rows are read.
        """
        kind = _HELD.get(table)
        if kind is None or not any(map(len, self._alive.values())):
            return False
        names = ["queue_id", "queue_offset", *(["source"] if kind == "source" else [])]
        fragment = ds.ParquetFileFormat().make_fragment(
            file.path, filesystem=self._lake.place.reading(table)
        )
        with self._lake.translating_read_errors(table):
            rows = fragment.to_table(columns=names)
        if kind != "source":
            is_held = bool(np.isin(row_keys(rows), self._alive[kind]).any())
        else:
            is_held = any(
                np.isin(row_keys(rows.filter(ds.field("source") == of)), self._alive[of]).any()
                for of in (HALF, SCHEDULE)
            )
        if is_held:
            self._held.add((table, file.path))
        return is_held


def live_rows_at(lake: Lake, epoch: int) -> Places:
    """Returns the places of all records that stay though they are old, by kind.

    Input: an epoch that took a snapshot.
    """
    state = {table: _snapshot(lake, table, epoch) for table in STATE_TABLES}
    delayed, undeliverable = state["delayed"], _undeliverable(lake)
    alive = {}
    for kind in (HALF, SCHEDULE):
        parts = [rows.filter(ds.field("source") == kind) for rows in (delayed, undeliverable)]
        if kind == HALF:
            parts += [state["pending"], _of_pending_sets(lake, state["pending"], epoch)]
        alive[kind] = np.unique(np.concatenate([row_keys(rows) for rows in parts]))
    alive[OP] = row_keys(state["waiting"], "op_queue_offset")
    return alive


def _snapshot(lake: Lake, table: str, epoch: int) -> pa.Table:
    names = {
        "pending": ["queue_id", "queue_offset", *_SET_KEY],
        "waiting": ["queue_id", "op_queue_offset"],
        "delayed": ["source", "queue_id", "queue_offset"],
    }
    bounds: Bounds = {"epoch": [epoch], "change": [SNAPSHOT]}
    return read_rows(lake, table, names[table], bounds)


def _of_pending_sets(lake: Lake, pending: pa.Table, epoch: int) -> pa.Table:
    """Returns the halves, duplicates too, that landed up to an epoch in the sets pending then."""
    sets = pending.filter(pc.is_valid(pending["tran_size"]))
    if sets.num_rows == 0:
        return pending.slice(0, 0)
    names = ["queue_id", "queue_offset", *_SET_KEY]
    in_set = ds.field("transaction_id").isin(pc.unique(sets["transaction_id"]))
    in_set &= ds.field("tran_size").is_valid() & (ds.field("epoch") <= epoch)
    halves = lake.read(HALF, names, in_set)
    key = ["queue_id", *_SET_KEY]
    return halves.join(sets.select(key), keys=key, join_type="left semi").select(names)


def _undeliverable(lake: Lake) -> pa.Table:
    columns = ["source", "half_queue_id", "half_queue_offset"]
    rows = [lake.read(table, columns) for table in sorted(undeliverable_tables(lake))]
    empty = lake.schema("topics/0").empty_table().select(columns)
    return pa.concat_tables([empty, *rows]).rename_columns(["source", "queue_id", "queue_offset"])


def undeliverable_tables(lake: Lake) -> set[str]:
    """Returns the table of TRANS_UNDELIVERABLE_TOPIC, if it was made."""
    ids = lake.read("catalog", ["table_id"], ds.field("topic") == UNDELIVERABLE_TOPIC)
    return {f"topics/{id_}" for id_ in ids["table_id"].to_pylist()}


def delete(
    lake: Lake,
    table: str,
    files: Sequence[TableFile],
    deletion_marks: Mapping[str, int] | None = None,
) -> int:
    """Deletes files of a table in one Delta commit. Output: how many rows went.

    Input: `deletion_marks`: more that the commit says, by transaction identifier.
    Errors: CommitFailedError from deltalake when another writer was faster.
    """
    rows = sum(file.row_count for file in files)
    last = max(file.last_epoch or 0 for file in files)
    note = f"deleted {len(files)} files, {rows} rows of epochs up to {last}"
    handle = lake.handle(table)
    deletion_marks = {
        **(deletion_marks or {}),
        deleted_id(owner_of(handle)): deleted_rows(handle) + rows,
    }
    replace_files(handle, files, [], note, deletion_marks)
    lake.table(table).invalidate()
    return rows

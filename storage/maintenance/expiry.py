"""Delete old rows: whole files, by their statistics; nothing is rewritten.

A plan says which rows are old (`storage/lake/floor.py`): those of epochs up to one that took a
snapshot. A file is deleted when all its rows are old and none of them is pinned. Pinned are the
rows that were alive at that epoch, by its snapshot: pending halves and the duplicates of their
sets, delayed messages, waiting operations, with the rows of their outcomes and deliveries; and all
messages that were ever undeliverable, with the row that says whether they were delivered since. A
pinned file is read again when more rows have become old.

A deletion is one Delta commit. It carries, as a transaction identifier, how many rows of the table
were deleted so far: in every version the rows present and the rows deleted add up to the rows
committed (`storage/lake/integrity.py`). `dataChange` is false: a Spark stream does not take a
deletion for a change of what it has read.

A crash leaves a file deleted or not. The next round deletes what is left; VACUUM removes the bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.lake.table import deleted_rows
from storage.maintenance.merge import replace_files
from storage.maintenance.merge_plan import TableFile
from storage.schemas import SNAPSHOT, STATE_TABLES, row_keys
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake._counted import counted
from txlake._delta_log import lake_id_of
from txlake.protocol import UNDELIVERABLE_TOPIC, deleted_id

_DELETIONS = 256  # files that one commit deletes
# Tables whose live rows stay, and the kind of record whose row keys they have.
_PINNED: Final = {HALF: HALF, SCHEDULE: SCHEDULE, OP: OP, "outcomes": HALF, "deliveries": "source"}
# The newest old epoch stays in these: everything after it begins at its rows and its snapshot.
_FROM_ITS_SNAPSHOT: Final = (*STATE_TABLES, "epochs")
EXPIRING: Final = (*_PINNED, *_FROM_ITS_SNAPSHOT, ADMIN, "conflicts", "checks")
_SET_KEY: Final = ("producer_group", "transaction_id", "tran_size")  # in one half queue
RowKeys = dict[str, Any]  # a kind of record -> its packed row keys


class Expiry:
    """The deletion of old rows of one lake; it remembers which files are pinned."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._until = 0
        self._live: RowKeys = {}
        self._pinned: set[tuple[str, str]] = set()

    def expired(self, table: str, until: int, files: Sequence[TableFile]) -> list[TableFile]:
        """Returns some files of a table that can be deleted, the oldest first.

        Input: `until`: the newest epoch whose rows are old; 0: none is.
        Errors: BrokenLakeError, DeltaError, OSError.
        """
        if until == 0 or table not in EXPIRING:
            return []

        if until != self._until:
            self._live = live_rows_at(self._lake, until)
            self._pinned = set()
            self._until = until

        last = until - 1 if table in _FROM_ITS_SNAPSHOT else until
        old = [file for file in files if file.last_epoch is not None and file.last_epoch <= last]
        old.sort(key=lambda file: (file.first_epoch, file.path))

        unpinned = (file for file in old if not self._is_pinned(table, file))
        return list(itertools.islice(unpinned, _DELETIONS))

    def _is_pinned(self, table: str, file: TableFile) -> bool:
        """Returns whether a file has a row that stays, and remembers it."""
        if (table, file.path) in self._pinned:
            return True

        kind = _PINNED.get(table)
        if kind is None or not any(map(len, self._live.values())):
            return False

        is_pinned = self._has_live_row(table, file, kind)
        if is_pinned:
            self._pinned.add((table, file.path))
        return is_pinned

    def _has_live_row(self, table: str, file: TableFile, kind: str) -> bool:
        """Reads the row keys of a file. Input: `kind`: of its records, or the column with it."""
        names = ["queue_id", "queue_offset", *(["source"] if kind == "source" else [])]
        fragment = ds.ParquetFileFormat().make_fragment(
            file.path, filesystem=self._lake.location.reading(table)
        )
        with self._lake.translating_read_errors(table):
            rows = fragment.to_table(columns=names)

        if kind != "source":
            return bool(np.isin(row_keys(rows), self._live[kind]).any())

        return any(
            np.isin(row_keys(rows.filter(ds.field("source") == source)), self._live[source]).any()
            for source in (HALF, SCHEDULE)
        )


def live_rows_at(lake: Lake, epoch: int) -> RowKeys:
    """Returns the row keys of all records that stay though they are old, by kind.

    Input: an epoch that took a snapshot.
    """
    state = {table: _snapshot(lake, table, epoch) for table in STATE_TABLES}
    undeliverable = _undeliverable(lake)

    keys = {}
    for kind in (HALF, SCHEDULE):
        parts = [
            rows.filter(ds.field("source") == kind) for rows in (state["delayed"], undeliverable)
        ]
        if kind == HALF:
            parts += [state["pending"], _halves_of_pending_sets(lake, state["pending"], epoch)]
        keys[kind] = np.unique(np.concatenate([row_keys(rows) for rows in parts]))

    keys[OP] = row_keys(state["waiting"], "op_queue_offset")
    return keys


def _snapshot(lake: Lake, table: str, epoch: int) -> pa.Table:
    names = {
        "pending": ["queue_id", "queue_offset", *_SET_KEY],
        "waiting": ["queue_id", "op_queue_offset"],
        "delayed": ["source", "queue_id", "queue_offset"],
    }
    bounds: Bounds = {"epoch": [epoch], "change": [SNAPSHOT]}
    return read_rows(lake, table, names[table], bounds)


def _halves_of_pending_sets(lake: Lake, pending: pa.Table, epoch: int) -> pa.Table:
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
    before_commit: Callable[[], None] = lambda: None,
) -> int:
    """Deletes files of a table in one Delta commit. Output: how many rows were deleted.

    Input: `deletion_marks`: more numbers that the commit records, by transaction identifier;
    `before_commit`: as of `replace_files`.
    Errors: CommitFailedError from deltalake when another writer was faster.
    """
    rows = sum(file.row_count for file in files)
    last = max(file.last_epoch or 0 for file in files)
    note = f"deleted {counted(len(files), 'file')}, {counted(rows, 'row')} of epochs up to {last}"

    handle = lake.handle(table)
    deletion_marks = {
        **(deletion_marks or {}),
        deleted_id(lake_id_of(handle)): deleted_rows(handle) + rows,
    }

    replace_files(handle, files, [], note, deletion_marks, before_commit)
    lake.table(table).invalidate()
    return rows

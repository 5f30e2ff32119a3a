"""Landed records without their epochs: the tables of a lake, or files of archived records.

They are cut into epochs of equal size anew, by the time at which the broker stored them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from pipelines.errors import StartError
from pipelines.replay.kept_rows import KeptRows
from pipelines.replay.source import CHUNK_BYTES, HEAVY, Source, in_order, is_repeat
from storage.errors import NotALakeError
from storage.lake.epochs import Range
from storage.lake.lake import Lake
from storage.rows import to_rows
from storage.schemas import TABLES
from storage.wire.record_kinds import ADMIN, HALF, KINDS, OP, SCHEDULE
from txlake._offset_windows import OffsetWindows
from txlake._paths import is_in_store, lake_path

EPOCH_RECORDS = 200_000
_MEMORY = "1GB"
_NEEDED = {
    HALF: ("producer_group", "transaction_id", "real_topic", "body"),
    OP: ("producer_group", "decision", "half_offsets"),
    SCHEDULE: ("real_topic", "body"),
    ADMIN: ("command", "target"),
}
Partition = tuple[str, int]  # kind of record, queue

# Commands and halves come before the operations that were stored in the same millisecond.
_CUTS = """
WITH numbered AS (
  SELECT *, (row_number() OVER (ORDER BY ms, rank, queue_offset, queue_id) - 1) // $size AS part
  FROM records
)
SELECT part, kind, queue_id, max(queue_offset) + 1 AS to_offset, max(ms) AS ms
FROM numbered GROUP BY part, kind, queue_id ORDER BY part
"""


@dataclass(frozen=True)
class EpochBoundary:
    """The end of an epoch; `epoch_at`: when the broker stored its last record. Units: ms."""

    ends: Mapping[Partition, int]
    epoch_at: int


class Archive:
    """Records by kind, each a dataset with the columns of its table; `epoch` is ignored."""

    def __init__(self, datasets: Mapping[str, ds.Dataset]) -> None:
        self._datasets = dict(datasets)
        for kind, dataset in datasets.items():
            needed = ("queue_id", "queue_offset", "stored_at", *_NEEDED[kind])
            missing = [name for name in needed if name not in dataset.schema.names]

            if missing:
                raise StartError(
                    f"the {kind} records have no column {missing[0]}: they need the columns of the "
                    f"lake's table {kind} (docs/protocol/tables.md)"
                )

    @classmethod
    def of_lake(cls, lake: Lake, kept: KeptRows, floor_epoch: int = 0) -> Archive:
        """Returns an archive of a lake's tables; `half` and `op` are enough.

        Input: `kept`: the rows that the lake had before its floor was read; the epoch up to which
        nothing is read, since its rows are copied.
        """
        for kind in (HALF, OP):
            if not lake.is_table(kind):
                raise NotALakeError(f"{lake.path} has no table {kind}: nothing can be rebuilt")
        return _LakeArchive(lake, kept, floor_epoch)

    @classmethod
    def of_files(cls, paths: Mapping[str, str]) -> Archive:
        """Returns an archive of Delta tables, Parquet files or folders of them, by kind."""
        return cls({kind: _open(kind, path) for kind, path in paths.items()})

    def dataset(self, table: str) -> ds.Dataset:
        """Returns the records of a kind."""
        return self._datasets[table]

    def first_offsets(self) -> dict[Partition, int]:
        """Returns the first offset of each queue that has records."""
        text = "SELECT kind, queue_id, min(queue_offset) FROM records GROUP BY ALL"
        rows = self._query(text)
        return {(kind, queue_id): offset for kind, queue_id, offset in rows}

    def boundaries(self) -> Iterator[EpochBoundary]:
        """Returns the ends of epochs of `EPOCH_RECORDS` each; a replay gives the same ends."""
        rows = self._query(_CUTS, {"size": EPOCH_RECORDS})
        ends = self.first_offsets()
        epoch_at = 0

        for _, records_of_epoch in groupby(rows, key=itemgetter(0)):
            for _, kind, queue_id, to_offset, ms in records_of_epoch:
                ends[kind, queue_id] = max(ends[kind, queue_id], to_offset)
                epoch_at = max(epoch_at, ms)
            yield EpochBoundary(dict(ends), epoch_at)

    def _query(self, text: str, values: Mapping[str, int] | None = None) -> list[Any]:
        """Returns the rows of a query on the view `records`."""
        with self._engine() as engine:
            return engine.execute(text, values).fetchall()

    def _retrying(self, kind: str, read: Callable[[], pa.Table | None]) -> pa.Table | None:
        """Returns what a function reads of a kind."""
        return read()

    @contextmanager
    def _engine(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Gives an engine with a view `records`: the places and times of all records.

        Rows that do not fit into its memory go to a temporary folder.
        """
        with ExitStack() as resources:
            folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="txlake-replay-"))
            config: dict[str, Any] = {
                "threads": 2,
                "memory_limit": _MEMORY,
                "temp_directory": folder,
            }
            engine = resources.enter_context(duckdb.connect(":memory:", config=config))

            parts = []
            for rank, kind in enumerate((ADMIN, HALF, SCHEDULE, OP)):
                if kind in self._datasets:
                    engine.register(f"{kind}_rows", self.dataset(kind))
                    parts.append(
                        f"SELECT {rank} AS rank, '{kind}' AS kind, queue_id, queue_offset,"
                        f" epoch_ms(stored_at) AS ms FROM {kind}_rows"
                    )

            engine.execute(f"CREATE VIEW records AS {' UNION ALL '.join(parts)}")
            yield engine

    def read(self, kind: str, ranges: list[Range]) -> tuple[pa.Table, bool]:
        """Returns the records of some ranges, and whether they are too large to be read whole.

        Too large ones lack their bodies. Errors: StartError if two records of one place differ.
        """
        schema = TABLES[kind]
        names = [name for name in schema.names if name in self._datasets[kind].schema.names]
        is_message = kind in (HALF, SCHEDULE)
        bytes_max = CHUNK_BYTES if is_message else None
        rows = self._retrying(kind, lambda: self._rows(kind, names, ranges, bytes_max))
        is_large = rows is None

        if rows is None:
            narrow = [name for name in names if name not in HEAVY]
            rows = self._retrying(kind, lambda: self._rows(kind, narrow, ranges, None))

        assert rows is not None
        return _deduplicated(kind, to_rows(rows, schema)), is_large

    def _rows(
        self, kind: str, names: list[str], ranges: list[Range], bytes_max: int | None
    ) -> pa.Table | None:
        windows = OffsetWindows({r.partition: (r.from_offset, r.to_offset) for r in ranges})
        dataset = self.dataset(kind)
        batches = []
        size = 0
        for read in dataset.to_batches(columns=names, filter=windows.bounds()):
            batch = windows.select(read)
            size += batch.nbytes
            if bytes_max is not None and size > bytes_max:
                return None
            batches.append(batch)

        schema = pa.schema([dataset.schema.field(name) for name in names])
        return pa.Table.from_batches(batches, batches[0].schema if batches else schema)


class _LakeArchive(Archive):
    """The tables of a lake, as they are, or were half a minute ago: see `Source.dataset`."""

    def __init__(self, lake: Lake, kept: KeptRows, floor_epoch: int) -> None:
        self._lake = lake
        self._floor_epoch = floor_epoch
        self._kept = kept
        self._source = Source(lake)
        super().__init__(
            {kind: self._source.dataset(kind) for kind in KINDS if lake.is_table(kind)}
        )

    def dataset(self, table: str) -> ds.Dataset:
        return self._source.dataset(table)

    def _query(self, text: str, values: Mapping[str, int] | None = None) -> list[Any]:
        try:
            return super()._query(text, values)
        except duckdb.Error:  # the job has deleted a file meanwhile
            self._source = Source(self._lake)
            self._lake.reset()
        return super()._query(text, values)

    def _retrying(self, kind: str, read: Callable[[], pa.Table | None]) -> pa.Table | None:
        """Errors: LakeError if rows are deleted that the lake had before its floor was read."""
        rows = self._source.retrying(kind, read)
        self._kept.require(self._floor_epoch)
        return rows


def _open(kind: str, path: str) -> ds.Dataset:
    location = path if is_in_store(path) else str(Path(path).absolute())
    try:
        if not _is_delta(location):
            return ds.dataset(location, format="parquet")
    except (OSError, pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise StartError(f"{kind} records: {path!r} is no Delta table and no Parquet") from error

    try:
        folder, _, name = lake_path(location).rpartition("/")
    except ValueError as error:
        raise StartError(f"{kind} records: {error}") from error
    return Lake(folder).dataset(name)


def _is_delta(path: str) -> bool:
    """Returns whether a path holds a Delta table.

    delta-rs does not recognize every local one, so for folders we look for the log.
    """
    if is_in_store(path):
        return bool(DeltaTable.is_deltatable(path))
    return Path(path, "_delta_log").is_dir()


def _deduplicated(kind: str, rows: pa.Table) -> pa.Table:
    """Returns rows in offset order, each once: archives can overlap."""
    rows = in_order(rows, ("queue_id", "queue_offset"))
    is_again = is_repeat(rows, ("queue_id", "queue_offset"))
    if not pc.any(is_again).as_py():
        return rows
    for index in pc.indices_nonzero(is_again).to_pylist():
        a, b = (rows.slice(n, 1).drop_columns("epoch") for n in (index - 1, index))

        if not a.equals(b):
            row = b.to_pylist()[0]
            raise StartError(
                f"the {kind} records have offset {row['queue_offset']} of queue {row['queue_id']} "
                "twice, and they differ: one of the files is wrong"
            )
    return rows.filter(pc.invert(is_again))

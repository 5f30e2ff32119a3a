"""The records of a lake, read some epochs at a time: a bounded part in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage.errors import BrokenLakeError, MissingTableError
from storage.lake.history import Recorded, read_plans, recorded_epochs
from storage.lake.lake import Lake
from storage.lake.progress import NO_PROGRESS, Progress, read_progress
from storage.rows import to_rows
from storage.wire.record_kinds import ADMIN, HALF, KINDS, SCHEDULE

# The size of a chunk, which is decided, and then written or compared, at once.
CHUNK_RECORDS = 200_000
# How long a table is read as it was: replaced files stay for [maintenance] file_retention_ms, which
# is a minute or more.
_DATASET_S = 30.0
_EPOCH_RECORDS = 100  # as many an epoch counts for at least: its plan has 8 KB
CHUNK_BYTES = 96 * 1024 * 1024
ROW_ORDER = ("epoch", "queue_id", "queue_offset")
HEAVY = ("body", "properties", "raw_headers", "raw_key")
_Piece = TypeVar("_Piece")
ProgressCallback = Callable[[int, int], None]  # records done, records in all


class _TooManyBytesError(Exception):
    """The rows exceed `bytes_max`."""


@dataclass(frozen=True)
class Chunk:
    """Some epochs with the records that they landed and the checks that they sent.

    `is_streamed`: a single epoch whose messages are too large: they lack their heavy columns.
    `duplicates`: surplus rows, whose place is in the table already.
    """

    epochs: Sequence[Recorded]
    landed: Mapping[str, Mapping[int, pa.Table]]
    checks: pa.Table
    duplicates: Mapping[str, pa.Table] = field(default_factory=dict)
    is_streamed: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        """Returns the first and the last epoch."""
        return self.epochs[0].plan.epoch, self.epochs[-1].plan.epoch

    @property
    def transactions(self) -> int:
        """Returns the number of its halves."""
        return sum(rows.num_rows for rows in self.landed[HALF].values())

    def part(self, first: int, end: int) -> Chunk:
        """Returns some of its epochs, by their numbers in `epochs`; `end` is exclusive.

        The duplicates of all epochs go with the first.
        """
        epochs = self.epochs[first:end]
        numbers = {recorded.plan.epoch for recorded in epochs}
        landed = {
            kind: {epoch: rows for epoch, rows in by_epoch.items() if epoch in numbers}
            for kind, by_epoch in self.landed.items()
        }
        duplicates = self.duplicates if first == 0 else {}
        return replace(self, epochs=epochs, landed=landed, duplicates=duplicates)

    def records(self, epoch: int) -> dict[str, pa.Table]:
        """Returns the records that an epoch landed, by kind."""
        return {kind: rows[epoch] for kind, rows in self.landed.items() if epoch in rows}


class Source:
    """A lake that is only read, epoch by epoch: later rows stay unseen."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._datasets: dict[str, tuple[float, ds.Dataset]] = {}  # and until when it is used

    def dataset(self, table: str) -> ds.Dataset:
        """Returns a table as it is, or was half a minute ago.

        A replay can take longer than `[maintenance] file_retention_ms`: files that the job merges
        meanwhile are deleted then. So can they be while a table is read: see `retrying`.
        """
        used_until, dataset = self._datasets.get(table, (0.0, None))
        if dataset is None or time.monotonic() > used_until:
            dataset = self.lake.dataset(table)
            self._datasets[table] = time.monotonic() + _DATASET_S, dataset
        return dataset

    def retrying(self, table: str, read: Callable[[], _Piece]) -> _Piece:
        """Returns what a function reads of a table, with read errors in one sentence.

        If the job has deleted a file meanwhile, it is called again, on a log that is read anew.
        """
        try:
            with self.lake.translating_read_errors(table):
                return read()
        except MissingTableError:
            raise
        except BrokenLakeError:
            self._datasets.pop(table, None)
            self.lake.reset(table)

        with self.lake.translating_read_errors(table):
            return read()

    def rows(
        self,
        table: str,
        bounds: tuple[int, int],
        columns: Sequence[str] | None = None,
        bytes_max: int | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Returns the rows of some epochs, of these the ones that fulfil `where`.

        Errors: _TooManyBytesError if they are larger than `bytes_max`; BrokenLakeError.
        """
        lake_schema = self.lake.schema(table)
        schema = pa.schema([lake_schema.field(name) for name in columns or lake_schema.names])
        is_wanted = (pc.field("epoch") >= bounds[0]) & (pc.field("epoch") <= bounds[1])
        if where is not None:
            is_wanted &= where

        def read() -> list[pa.RecordBatch]:
            dataset = self.dataset(table)
            # A lake of an earlier format lacks some.
            names = [name for name in schema.names if name in dataset.schema.names]
            batches = []
            size = 0

            for batch in dataset.to_batches(columns=names, filter=is_wanted):
                size += batch.nbytes
                if bytes_max is not None and size > bytes_max:
                    raise _TooManyBytesError
                batch.validate(full=True)
                batches.append(batch)
            return batches

        batches = self.retrying(table, read)
        batches.sort(key=_first_key)  # the log names the newest file first
        return to_rows(
            pa.Table.from_batches(batches, batches[0].schema if batches else schema), schema
        )

    def chunks(self, first: int, last: int, *, narrow: bool = False) -> Iterator[Chunk]:
        """Returns the epochs from `first` to `last` in chunks, and reads one chunk ahead.

        `narrow`: without bodies and the other heavy columns, which decide nothing.
        """
        chunks = (
            chunk
            for group in _groups(recorded_epochs(self.lake, first, last))
            for chunk in self._pieces(group, narrow)
        )
        return read_ahead(chunks)

    def progress_before(self, first: int) -> Progress:
        """Returns the progress of the epochs before one of them."""
        return NO_PROGRESS if first == 1 else read_progress(self.lake, until=first - 1)

    def progress_reporter(
        self, first: int, last: int, progress: ProgressCallback | None
    ) -> Callable[[int], None]:
        """Returns a function that adds up the records of each epoch and reports to `progress`."""
        if progress is None:
            return lambda _: None

        plans = read_plans(self.lake, [first, last])
        begins = {r.topic_partition: r.from_offset for r in plans[first].ranges}
        ends = plans[last].landed()
        total = sum(end - begins.get(partition, 0) for partition, end in ends.items())
        done = 0

        def add(records: int) -> None:
            nonlocal done
            done += records
            progress(done, total)

        return add

    def _pieces(self, group: list[Recorded], narrow: bool) -> Iterator[Chunk]:
        """Returns a group whole or, if its messages are too large for that, in parts."""
        try:
            chunk = self._chunk(group, narrow, CHUNK_BYTES)
        except _TooManyBytesError:
            if len(group) > 1:
                middle = len(group) // 2
                yield from self._pieces(group[:middle], narrow)
                yield from self._pieces(group[middle:], narrow)
                return
            chunk = replace(self._chunk(group, True, None), is_streamed=True)

        yield chunk

    def _chunk(self, group: list[Recorded], narrow: bool, bytes_max: int | None) -> Chunk:
        bounds = group[0].plan.epoch, group[-1].plan.epoch
        landed = {}
        duplicates = {}

        for kind in KINDS:
            columns = self.lake.schema(kind).names
            if narrow and kind in (HALF, SCHEDULE):
                columns = [name for name in columns if name not in HEAVY]

            rows = self.rows(kind, bounds, columns, bytes_max)
            if kind == ADMIN:
                rows = rows.drop_columns("result")

            landed[kind], duplicates[kind] = _by_epoch(rows)

        return Chunk(group, landed, self.rows("checks", bounds), duplicates)


def read_ahead(pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    """Returns pieces; a thread reads the next one while the caller works on one."""
    with ThreadPoolExecutor(1, thread_name_prefix="txlake-reader") as pool:
        reading = pool.submit(next, pieces, None)
        while (piece := reading.result()) is not None:
            reading = pool.submit(next, pieces, None)
            yield piece


def _first_key(batch: pa.RecordBatch) -> tuple[Any, ...]:
    """Returns where a batch begins; rows without these columns have no order."""
    names = [name for name in ROW_ORDER if name in batch.schema.names]
    return tuple(batch.column(name)[0].as_py() for name in names) if batch.num_rows else ()


def _groups(epochs: Iterator[Recorded]) -> Iterator[list[Recorded]]:
    group: list[Recorded] = []
    count = 0

    for recorded in epochs:
        size = max(recorded.record_count, _EPOCH_RECORDS)
        if group and count + size > CHUNK_RECORDS:
            yield group
            group = []
            count = 0
        group.append(recorded)
        count += size

    if group:
        yield group


def _by_epoch(rows: pa.Table) -> tuple[dict[int, pa.Table], pa.Table]:
    """Returns rows by epoch, in offset order, each place once; and the surplus rows."""
    rows = in_order(rows, ROW_ORDER)
    is_duplicate = is_repeat(rows, ROW_ORDER)
    duplicates = rows.slice(0, 0)
    if pc.any(is_duplicate).as_py():
        duplicates = rows.filter(is_duplicate)
        rows = rows.filter(pc.invert(is_duplicate)).combine_chunks()

    runs = pc.run_end_encode(rows["epoch"].combine_chunks())
    epochs = runs.values.to_pylist()
    ends = runs.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    by_epoch = {
        epoch: rows.slice(start, end - start)
        for epoch, start, end in zip(epochs, starts, ends, strict=False)
    }
    return by_epoch, duplicates


def in_order(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Returns rows sorted by these columns, in a table of one chunk.

    Rows that are in order already, as files of our own have them, are not copied again.
    """
    rows = rows.combine_chunks()
    if rows.num_rows == 0 or _is_in_order(rows, names):
        return rows
    keys = [(name, "ascending") for name in names]
    return rows.take(pc.sort_indices(rows.select(list(names)), sort_keys=keys)).combine_chunks()


def _is_in_order(rows: pa.Table, names: Sequence[str]) -> bool:
    is_after = pa.repeat(pa.scalar(True), rows.num_rows - 1)
    for name in reversed(names):
        column = rows[name].chunk(0)
        later, earlier = column[1:], column[:-1]
        is_equal = pc.and_(pc.equal(later, earlier), is_after)
        is_after = pc.or_(pc.greater(later, earlier), is_equal)
    return bool(pc.all(is_after).as_py())


def is_repeat(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Returns for each row whether it equals the one before it in these columns.

    Input: a table of one chunk.
    """
    if rows.num_rows == 0:
        return pa.array([], pa.bool_())
    columns = [rows[name].chunk(0) for name in names]
    same = reduce(pc.and_, [pc.equal(column[1:], column[:-1]) for column in columns])
    return pa.concat_arrays([pa.array([False]), same])

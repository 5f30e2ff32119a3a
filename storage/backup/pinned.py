"""One committed epoch of a lake, as versions of its tables.

The tables of a running lake are never all at one epoch. Each commit of an epoch carries the epoch's
number, so of each table the newest version is taken that has no commit of a later epoch. A merge,
which changes no row, may be part of it.

Consumers read messages of an epoch before it is committed. Behind a copy without that epoch the job
puts other messages at the same offsets: a position beyond the copy would pass them over, and what a
listener has refused would hold them back. The queues that such an epoch makes can be taken, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from storage.errors import LakeError
from storage.lake.datasets import dataset_of
from storage.lake.epochs import Partition
from storage.lake.lake import Lake
from storage.lake.progress import Progress, read_progress
from storage.schemas import CONSUMER_OFFSETS, TABLES
from txlake._delta_handle import files_of
from txlake._delta_log import driver_id, entry_name, version_of

# What is copied of the tables that consumers write, in the order in which it is read: a position
# passes a refused message after its row in `consumer_retries` is written, and that row ends after
# the one in `consumer_dead_letters`. Who was a member when is not true of a copy.
_OF_CONSUMERS: Final = (CONSUMER_OFFSETS, "consumer_retries", "consumer_dead_letters")
_POSITION: Final = pa.schema(
    [("topic", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64())]
)
_TRIES: Final = 5
_COMMIT_S: Final = 60.0  # how long an epoch that consumers have read is awaited
_PAUSE_S: Final = 0.1


class ChangedError(LakeError):
    """The lake has changed too much while it was looked at: it can be tried again."""


@dataclass(frozen=True)
class PinnedTable:
    """A version of a table: the files of its log that tell it, and its data files with sizes."""

    name: str
    version: int
    log: tuple[str, ...]
    files: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class PinnedLake:
    """A lake at one committed epoch; 0: before the first. The table `lake` is the last."""

    lake_id: str
    epoch: int
    tables: tuple[PinnedTable, ...]

    @property
    def own_tables(self) -> frozenset[str]:
        """Returns the tables that the job writes: those of consumers are the SDK's."""
        return frozenset(table.name for table in self.tables) - frozenset(_OF_CONSUMERS)


def pin(lake: Lake) -> PinnedLake:
    """Returns a lake at its newest committed epoch.

    Errors: LakeError, ChangedError among them: the lake changed again and again.
    """
    for remaining in reversed(range(_TRIES)):
        lake.reset()
        try:
            return _pin_once(lake)
        except ChangedError:
            if not remaining:
                raise

    raise AssertionError("unreachable")


def _pin_once(lake: Lake) -> PinnedLake:
    lake_id = lake.lake_id()

    of_consumers = [_newest(lake, table) for table in _OF_CONSUMERS if lake.is_table(table)]
    progress = _progress_after(lake, _taken_ends(lake, of_consumers))
    epoch = progress.next_epoch - 1
    names = sorted({*TABLES, *_topics(lake, progress)} - {"epochs", "lake"})

    tables = [_pin_table(lake, lake_id, name, epoch) for name in names]
    epochs = _pin_table(lake, lake_id, "epochs", 2 * epoch + 1)  # it has two commits an epoch

    # Maintenance deletes by the newest floor: if that has moved, the older epoch can lack rows.
    lake.reset("epochs")
    if _floor(read_progress(lake)) != _floor(progress):
        raise ChangedError(f"the lake {lake.path} deletes old rows just now: try again")

    return PinnedLake(lake_id, epoch, (*of_consumers, *tables, epochs, _newest(lake, "lake")))


def _taken_ends(lake: Lake, of_consumers: Sequence[PinnedTable]) -> dict[Partition, int]:
    """Returns each queue that a consumer took, and the offset behind all that it had of it."""
    ends: dict[Partition, int] = {}

    for table in of_consumers:
        paths = pa.table({"path": pa.array([name for name, _ in table.files], pa.string())})
        with lake.translating_read_errors(table.name):
            rows = dataset_of(lake.location, table.name, paths, _POSITION).to_table()

        # A position is behind the last message; the rows of other tables are about one message.
        behind = 0 if table.name == CONSUMER_OFFSETS else 1
        last = rows.group_by(["topic", "queue_id"]).aggregate([("queue_offset", "max")])
        for row in last.to_pylist():
            queue, offset = (row["topic"], row["queue_id"]), row["queue_offset_max"]
            end = 0 if offset is None else offset + behind
            ends[queue] = max(end, ends.get(queue, 0))

    return ends


def _progress_after(lake: Lake, taken_ends: Mapping[Partition, int]) -> Progress:
    """Returns where the epochs stand when all that consumers have taken is committed.

    Errors: LakeError if that takes too long.
    """
    progress = read_progress(lake)
    planned = progress.newest_epoch  # what was taken before is of this epoch or an earlier one
    if progress.unfinished is None or not _is_beyond(lake, taken_ends, progress):
        return progress

    deadline = time.monotonic() + _COMMIT_S
    while progress.next_epoch <= planned:
        if time.monotonic() > deadline:
            raise LakeError(
                f"consumers of the lake {lake.path} have read messages or taken queues of epoch "
                f"{planned}, which is not committed: try again; where no job runs, start it first: "
                "it finishes the epoch"
            )

        time.sleep(_PAUSE_S)
        lake.reset("epochs")
        progress = read_progress(lake)

    lake.reset("catalog")  # read before the commit
    return progress


def _is_beyond(lake: Lake, taken_ends: Mapping[Partition, int], progress: Progress) -> bool:
    counts: dict[str, int] = {}
    for row in _catalog(lake, progress):
        counts[row["topic"]] = max(row["queue_count"], counts.get(row["topic"], 0))

    return any(
        queue_id >= counts.get(topic, 0) or end > progress.next_offsets.get((topic, queue_id), 0)
        for (topic, queue_id), end in taken_ends.items()
    )


def _topics(lake: Lake, progress: Progress) -> set[str]:
    """Returns the tables of topics. One that has no rows yet is in the catalog alone."""
    made = {f"topics/{row['table_id']}" for row in _catalog(lake, progress)}
    return made | {name for name in progress.tables if name not in TABLES}


def _catalog(lake: Lake, progress: Progress) -> list[dict[str, Any]]:
    """Returns the rows of the catalog that are of committed epochs."""
    rows = lake.read("catalog", ["topic", "table_id", "queue_count", "epoch"]).to_pylist()
    return [row for row in rows if row["epoch"] < progress.next_epoch]


def _floor(progress: Progress) -> int:
    return 0 if progress.last is None else progress.last.floor.deleted


def _newest(lake: Lake, table: str) -> PinnedTable:
    handle = lake.handle(table)
    return _at(lake, table, handle.version(), handle)


def _pin_table(lake: Lake, lake_id: str, table: str, transaction: int) -> PinnedTable:
    """Returns the newest version of a table before any commit of a later transaction."""
    handle = lake.handle(table)
    app_id = driver_id(lake_id)
    version = handle.version()

    if int(handle.transaction_version(app_id) or 0) > transaction:
        for at in range(version, -1, -1):
            try:
                committed = _transaction(lake, table, at, app_id)
            except ChangedError:  # the entry is cut, and a checkpoint above it tells
                if _reached(lake, table, version, app_id) > transaction:
                    raise
                break

            if committed is not None and committed <= transaction:
                break
            if committed is not None:
                version = at - 1

    return _at(lake, table, version, handle if version == handle.version() else None)


def _transaction(lake: Lake, table: str, version: int, app_id: str) -> int | None:
    """Returns the transaction of one commit; None if it has none of the lake's."""
    log = lake.location.reading(f"{table}/_delta_log")
    try:
        with log.open_input_stream(entry_name(version)) as stream:
            lines = stream.read().splitlines()
    except FileNotFoundError as error:
        raise _is_cut(lake, table, version) from error

    identifiers = (json.loads(line).get("txn") for line in lines if line)
    return next(
        (int(txn["version"]) for txn in identifiers if txn and txn["appId"] == app_id), None
    )


def _reached(lake: Lake, table: str, version: int, app_id: str) -> int:
    """Returns the lake's newest transaction in a version of a table. Errors: ChangedError."""
    options = lake.location.storage_options
    try:
        handle = DeltaTable(lake.table_path(table), version=version, storage_options=options)
    except DeltaError as error:
        raise _is_cut(lake, table, version) from error
    return int(handle.transaction_version(app_id) or 0)


def _at(lake: Lake, table: str, version: int, handle: DeltaTable | None) -> PinnedTable:
    log = tuple(_log_of(lake, table, version))

    with lake.translating_read_errors(table):
        if handle is None:
            options = lake.location.storage_options
            handle = DeltaTable(lake.table_path(table), version=version, storage_options=options)
        files = files_of(handle)

    sizes = zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True)
    return PinnedTable(table, version, log, tuple(sizes))


def _log_of(lake: Lake, table: str, version: int) -> Iterator[str]:
    """Yields the files that tell a version: the newest checkpoint up to it, and what follows."""
    folder = lake.location.filesystem(f"{table}/_delta_log")
    names = [info.base_name for info in folder.get_file_info(pa_fs.FileSelector(""))]
    entries = {version_of(name) for name in names if name.endswith(".json")}

    checkpoints = {
        at
        for name in names
        if name.endswith(".parquet") and ".checkpoint" in name
        for at in (version_of(name),)
        if at is not None and at <= version
    }
    begin = max(checkpoints, default=-1)
    if not entries.issuperset(range(begin + 1, version + 1)):
        raise _is_cut(lake, table, version)

    yield from (name for name in names if name.endswith(".parquet") and version_of(name) == begin)
    yield from map(entry_name, range(begin + 1, version + 1))


def _is_cut(lake: Lake, table: str, version: int) -> ChangedError:
    return ChangedError(
        f"the log of table {table} of the lake {lake.path} no longer has version {version}: raise "
        "[maintenance] log_retention_ms, or try again"
    )

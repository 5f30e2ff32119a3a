"""Keep a lake's tables in shape: merge small files, shorten the logs, delete needless files.

Every append leaves a file and an entry in the table's log. A table gets these steps; hours can pass
between two of them:

1. Properties: how long Delta keeps its log and files that were replaced.
2. What is old is deleted (`expiry`).
3. Merges: small files into larger ones (`merge_plan`, `merge`).
4. The log: a checkpoint, then entries older than that and than their retention go. The handle is
   opened anew: delta-rs reads all commits since the checkpoint that a handle began with.
5. Files that were replaced or deleted longer ago than their retention, and what crashes left.

Between two steps the lake is sound: each is at most one Delta commit, and changes no row that is
not old. While a step runs, the table must not be appended to; it can be read.

A Spark stream from a topic table goes through the log entry by entry, and reads the file that each
added, merged or not. So topic tables keep both for `stream_retention_ms`, from when they were
written. Two things would grow with that and are cut short: tombstones of replaced files, which each
checkpoint repeats, are dropped after `file_retention_ms`; and of old checkpoints one in
`_CHECKPOINT_DISTANCE` versions is kept, for a stream that begins at a version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import pyarrow.fs as pa_fs

from storage.files.order import kind_of
from storage.lake.aging import epoch_times
from storage.lake.lake import Lake
from storage.schemas import TABLES
from storage.upkeep.expiry import EXPIRING, Expiry, delete
from storage.upkeep.merge import files_of, merge
from storage.upkeep.merge_plan import MergeLimits, all_merges, next_merge

_MEMORY = 2  # rows of a merge in memory, as a multiple of the largest file
# How often replaced files are looked for in the time that they are kept.
_VACUUMS = 4
# Rows are merged with those of their own part of the retention: they are kept by so much longer.
_SPANS = 8
# Files that are deleted between two looks whether the lake is still ours.
_DELETIONS = 100
# Versions between two old checkpoints: a stream that begins between them reads so many entries.
_CHECKPOINT_DISTANCE = 1_000


@dataclass(frozen=True)
class MaintenanceLimits:
    """When a table needs a step. Units: ms, bytes. `retention_ms` of 0: rows are kept for ever."""

    merge_files: int
    file_bytes_max: int
    checkpoint_commits: int
    log_retention_ms: int
    file_retention_ms: int
    stream_retention_ms: int
    retention_ms: int = 0

    def merging(self, span_of: Callable[[int], int], old_epoch: int = 0) -> MergeLimits:
        """Returns the limits of merging. Input: rows up to that epoch are old."""
        return MergeLimits(self.merge_files, self.file_bytes_max, span_of, old_epoch)

    def log_kept_ms(self, table: str) -> int:
        """Returns how long the entries of a table's log are kept."""
        least = self.stream_retention_ms if kind_of(table) == "topics" else 0
        return max(self.log_retention_ms, least)

    def files_kept_ms(self, table: str) -> int:
        """Returns how long a table's files are kept, from when they were written."""
        least = self.stream_retention_ms if kind_of(table) == "topics" else 0
        return max(self.file_retention_ms, least)

    def properties(self, table: str) -> dict[str, str]:
        """Returns a table's retentions as Delta's properties: of its log, and of tombstones."""
        return {
            "delta.logRetentionDuration": f"interval {self.log_kept_ms(table) // 1000} seconds",
            "delta.deletedFileRetentionDuration":
                f"interval {self.file_retention_ms // 1000} seconds",
        }  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What was done, or would be."""

    merges: int = 0
    files_merged: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    checkpoints: int = 0
    files_deleted: int = 0
    rows_expired: int = 0

    def __add__(self, other: Work) -> Work:
        mine, theirs = asdict(self), asdict(other)
        return Work(**{name: mine[name] + theirs[name] for name in mine})


class Maintenance:
    """Keeps the tables of one lake in shape; remembers what it has seen of them.

    `old_epoch`: rows up to this epoch are deleted, as a committed plan says.
    Input: `before_deletion`: called right before files are deleted; what it raises stops that.
    Errors: DeltaError, OSError: the step was not taken and can be tried again.
    """

    def __init__(
        self,
        lake: Lake,
        limits: MaintenanceLimits,
        before_deletion: Callable[[], None] = lambda: None,
    ) -> None:
        self.lake = lake
        self.limits = limits
        self._before_deletion = before_deletion
        self.old_epoch = 0
        self._expiry = Expiry(lake)
        self.is_busy = False  # then only the merges that keep files few are made
        self._configured: set[str] = set()
        self._left_alone: dict[str, set[str]] = {}
        self._checkpointed: dict[str, int] = {}  # table -> version
        self._removed_at: dict[str, float] = {}
        self._vacuumed_at: dict[str, float] = {}

    def tables(self) -> list[str]:
        """Returns the tables to keep in shape; the SDK does it for consumer_offsets."""
        ids = sorted(set(self.lake.read("catalog", ["table_id"])["table_id"].to_pylist()))
        return [*(table for table in TABLES if table != "lake"), *(f"topics/{id_}" for id_ in ids)]

    def steps(self, table: str, *, is_full: bool = False) -> Iterator[Work]:
        """Takes the steps that a table needs, one each time the next is asked for.

        Input: `is_full`: every step that can be taken, not only those worth it now.
        """
        if self.lake.handle(table).version() == 0:  # nothing was ever written
            return
        self._configure(table)
        yield from self._expired(table)
        yield from self._merges(table, is_full)
        if self._checkpoint(table, is_full):
            yield Work(checkpoints=1)
        deleted = self._vacuum(table, is_full)
        if deleted:
            yield Work(files_deleted=deleted)

    def foretell(self, table: str) -> tuple[int, Work]:
        """Returns how many files a table has, and what a full round would do."""
        files = files_of(self.lake, table)
        work = Work(files_deleted=len(self._stale(table)))
        for chosen in all_merges(files, self.limits.merging(self._spans())):
            work += Work(1, len(chosen), sum(file.size_bytes for file in chosen))
        return len(files), work

    def _configure(self, table: str) -> None:
        if table in self._configured:
            return
        handle = self.lake.handle(table)
        wanted = self.limits.properties(table)
        if not wanted.items() <= handle.metadata().configuration.items():
            handle.alter.set_table_properties(wanted, raise_if_not_exists=False)
            self.lake.table(table).changed()
        self._configured.add(table)

    def _expired(self, table: str) -> Iterator[Work]:
        while files := self._expiry.expired(table, self.old_epoch, files_of(self.lake, table)):
            self._before_deletion()
            rows = delete(self.lake, table, files, self.old_epoch)
            self._removed_at[table] = time.monotonic()
            yield Work(rows_expired=rows)

    def _spans(self) -> Callable[[int], int]:
        """Returns the function that says in which span of time an epoch is."""
        span_ms = self.limits.retention_ms // _SPANS
        if not span_ms:
            return lambda _: 0
        times = epoch_times(self.lake)
        return lambda epoch: times(epoch) // span_ms

    def _merges(self, table: str, is_full: bool) -> Iterator[Work]:
        left_alone = self._left_alone.setdefault(table, set())
        memory = _MEMORY * self.limits.file_bytes_max
        # Where nothing is deleted, files of all times become few.
        limits = self.limits.merging(self._spans(), self.old_epoch if table in EXPIRING else 0)
        while True:
            files = files_of(self.lake, table)
            left_alone &= {file.path for file in files}
            chosen = next_merge(
                files, limits,
                is_full=is_full, is_busy=self.is_busy and not is_full, left_alone=left_alone,
            )  # fmt: skip
            if not chosen:
                return
            merged = merge(self.lake, table, chosen, memory)
            if merged is None:  # too large in memory, whatever it is on disk
                left_alone.add(chosen[0].path)
                continue
            self._removed_at[table] = time.monotonic()
            yield Work(1, merged.files_before, merged.bytes_before, merged.bytes_after)

    def _checkpoint(self, table: str, is_full: bool) -> bool:
        handle = self.lake.handle(table)
        commits = handle.version() - self._checkpointed.get(table, -self.limits.checkpoint_commits)
        if commits < (1 if is_full else self.limits.checkpoint_commits):
            return False
        self._before_deletion()
        handle.create_checkpoint()
        handle.cleanup_metadata()
        span = handle.version() // _CHECKPOINT_DISTANCE
        if self._checkpointed.get(table, -1) // _CHECKPOINT_DISTANCE != span:
            self._thin_checkpoints(table)
        self._checkpointed[table] = handle.version()
        self.lake.forget(table)
        self.lake.handle(table)
        return True

    def _thin_checkpoints(self, table: str) -> None:
        """Deletes old checkpoints, but for one in so many versions."""
        folder = self.lake.place.filesystem(f"{table}/_delta_log")
        kept_ms = self.limits.log_retention_ms
        found = sorted(
            (info for info in folder.get_file_info(pa_fs.FileSelector(""))
             if info.path.endswith(".checkpoint.parquet")),
            key=lambda info: info.path,
        )  # fmt: skip
        spans = [int(info.base_name.split(".")[0]) // _CHECKPOINT_DISTANCE for info in found]
        needless = [
            info.path for info, span, before in zip(found[1:-1], spans[1:], spans, strict=False)
            if span == before and _age_ms(info) > kept_ms
        ]  # fmt: skip
        self._delete(folder, needless)

    def _vacuum(self, table: str, is_full: bool) -> int:
        """Deletes files that are in no kept version. Output: how many."""
        now = time.monotonic()
        if not is_full and not self._may_need_vacuum(table, now):
            return 0
        stale = self._stale(table)
        self._delete(self.lake.place.filesystem(table), stale)
        self._vacuumed_at[table] = now
        return len(stale)

    def _delete(self, folder: pa_fs.FileSystem, paths: list[str]) -> None:
        for begin in range(0, len(paths), _DELETIONS):
            self._before_deletion()
            delete_files(folder, paths[begin : begin + _DELETIONS])

    def _may_need_vacuum(self, table: str, now: float) -> bool:
        """Returns whether something may have passed its retention since the last look."""
        last = self._vacuumed_at.get(table)
        if last is None:
            return True
        retention_s = self.limits.files_kept_ms(table) / 1000
        is_dirty = self._removed_at.get(table, -retention_s) + retention_s > last
        return is_dirty and now - last >= retention_s / _VACUUMS

    def _stale(self, table: str) -> list[str]:
        """Returns the files that neither a kept version nor a stream needs."""
        # The retention is the table's property: an argument of vacuum would be in whole hours.
        paths = self.lake.handle(table).vacuum(dry_run=True, full=True)
        kept_ms = self.limits.files_kept_ms(table)
        found = self.lake.place.filesystem(table).get_file_info(paths)
        return [
            info.path for info in found
            if info.type == pa_fs.FileType.File and _age_ms(info) >= kept_ms
        ]  # fmt: skip


def delete_files(folder: pa_fs.FileSystem, paths: list[str]) -> None:
    """Deletes files one after another; after a crash in between the next round deletes the rest."""
    for path in paths:
        folder.delete_file(path)


def _age_ms(info: pa_fs.FileInfo) -> float:
    return (time.time() - float(info.mtime.timestamp())) * 1_000

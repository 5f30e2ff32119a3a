"""Keep a lake's tables in shape: merge small files, shorten the logs, delete needless files.

Every append leaves a file and an entry in the table's log. A table gets these steps; hours can pass
between two of them:

1. Properties: how long Delta keeps its log and files that were replaced.
2. What is old is deleted: what was decided (`expiry`), messages (`topic_retention`).
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

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow.compute as pc
import pyarrow.fs as pa_fs

from storage.files.order import table_kind
from storage.lake.aging import epoch_times
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.maintenance.expiry import EXPIRING, Expiry, delete, undeliverable_tables
from storage.maintenance.limits import MaintenanceLimits, Retention, StepResult
from storage.maintenance.merge import files_of, merge
from storage.maintenance.merge_plan import MergeLimits, TableFile, all_merges, next_merge
from storage.maintenance.topic_retention import (
    alter,
    expired,
    floors,
    queue_ends,
    retention_of,
    set_properties,
)
from storage.schemas import TABLES
from txlake._delta_log import files_of_table

_MEMORY = 2  # rows of a merge in memory, as a multiple of the largest file
# How often replaced files are looked for in the time that they are kept.
_VACUUMS = 4
# Rows are merged with those of their own part of the retention: they are kept by so much longer.
_SPANS = 8
# Files that are deleted between two looks whether the lake is still ours.
_DELETIONS = 100
# Versions between two old checkpoints: a stream that begins between them reads up to 1,000 entries.
_CHECKPOINT_DISTANCE = 1_000


class Maintenance:
    """The maintenance of one lake's tables; it remembers what it has done to each.

    Input: `before_change`: called right before a table is changed, or a file is deleted; an error
    of it stops that.
    `published`: of a topic's table, up to which offset each queue is published to Kafka; None if
    nobody publishes it. It is asked when messages are old.
    Errors: DeltaError, OSError: the step was not taken and can be tried again.
    """

    def __init__(
        self,
        lake: Lake,
        limits: MaintenanceLimits,
        before_change: Callable[[], None] = lambda: None,
        published: Callable[[str], Mapping[int, int] | None] = lambda _: None,
    ) -> None:
        self.lake = lake
        self.limits = limits
        self.is_busy = False  # then only the merges that keep files few are made
        # What an operator has asked for comes before a deletion: no message is deleted while
        # requests cannot be read, and none of a topic that could not be altered yet.
        self.knows_requests = True
        self._unaltered: set[str] = set()  # tables of topics

        self._published = published
        self._before_change = before_change
        self._expiry = Expiry(lake)
        self._epoch: int | None = None
        self._expired_epoch = 0
        self._at_ms = 0

        self._configured: set[str] = set()
        self._skipped: dict[str, set[str]] = {}
        self._checkpointed: dict[str, int] = {}  # table -> version
        self._removed_at: dict[str, float] = {}
        self._vacuumed_at: dict[str, float] = {}

    def resume_from(self, plan: Plan) -> None:
        """Takes a committed plan: rows that are old by its floor and its clock are deleted."""
        self._epoch = plan.epoch
        self._expired_epoch = plan.floor.deleted
        self._at_ms = plan.epoch_at

    def alter(self, topic: str, configs: Mapping[str, int]) -> bool:
        """Writes configs of a topic. Output: whether one is new.

        Where that fails, no message of the topic is deleted until it was done.
        """
        table_ids = {
            row["topic"]: row["table_id"]
            for row in self.lake.read("catalog", ["topic", "table_id"]).to_pylist()
        }
        table = f"topics/{table_ids[topic]}"

        self._unaltered.add(table)
        is_new = alter(self.lake, table, configs, self._before_change)
        self._unaltered.discard(table)
        return is_new

    def tables(self) -> list[str]:
        """Returns the tables to keep in shape; the SDK does it for consumer_offsets.

        A topic of an epoch that is not committed has no table yet, or an empty one.
        """
        is_made = None if self._epoch is None else pc.field("epoch") <= self._epoch
        catalog = self.lake.read("catalog", ["table_id"], is_made)
        ids = sorted(set(catalog["table_id"].to_pylist()))
        own = [table for table in TABLES if table != "lake"]

        return own + [f"topics/{id_}" for id_ in ids]

    def steps(self, table: str, *, is_full: bool = False) -> Iterator[StepResult]:
        """Takes the steps that a table needs, one each time the next is asked for.

        Input: `is_full`: every step that can be taken, not only those worth it now.
        """
        if self.lake.handle(table).version() == 0:  # nothing was ever written
            return

        self._configure(table)
        yield from self._expire(table)
        yield from self._merges(table, is_full)

        if self._checkpoint(table, is_full):
            yield StepResult(checkpoints=1)

        deleted = self._vacuum(table, is_full)
        if deleted:
            yield StepResult(files_deleted=deleted)

    def estimate(self, table: str) -> tuple[int, StepResult]:
        """Returns how many files a table has, and what a full round would do."""
        files = files_of(self.lake, table)
        work = StepResult(files_deleted=len(self._stale(table)))

        remaining = list(files)
        while old := self._expired_files(table, remaining):
            work += StepResult(rows_expired=sum(file.row_count for file in old))
            paths = {file.path for file in old}
            remaining = [file for file in remaining if file.path not in paths]

        for merged in all_merges(remaining, self._merge_limits(table)):
            work += StepResult(1, len(merged), sum(file.size_bytes for file in merged))

        return len(files), work

    def _configure(self, table: str) -> None:
        if table not in self._configured:
            properties = self.limits.properties(table)
            set_properties(self.lake, table, properties, self._before_change)
            self._configured.add(table)

    def _expire(self, table: str) -> Iterator[StepResult]:
        """Deletes the files whose rows are old, some of them in each step."""
        while files := self._expired_files(table, files_of(self.lake, table)):
            marks = floors(self.lake, table, files) if table_kind(table) == "topics" else {}
            rows = delete(self.lake, table, files, marks, self._before_change)

            self._removed_at[table] = time.monotonic()
            yield StepResult(rows_expired=rows)

    def _expired_files(self, table: str, files: Sequence[TableFile]) -> Sequence[TableFile]:
        """Returns those of a table's files to delete next."""
        if table_kind(table) != "topics":
            return self._expiry.expired(table, self._expired_epoch, files)
        if not self.knows_requests or table in self._unaltered:
            return []

        can_go = functools.partial(self._is_published, table)
        expired_files = expired(files, self._retention(table), self._at_ms, can_go)

        if expired_files and table in undeliverable_tables(self.lake):
            return []
        return expired_files

    def _is_published(self, table: str, file: TableFile) -> bool:
        """Returns whether no publisher waits for a message of a file."""
        published = self._published(table)
        if published is None:
            return True

        ends = queue_ends(self.lake, table, [file])
        return all(end <= published.get(queue_id, 0) for queue_id, end in ends.items())

    def _retention(self, table: str) -> Retention:
        return retention_of(self.lake.handle(table), self.limits.topics)

    def _merge_limits(self, table: str) -> MergeLimits:
        """Returns the limits of merging: by spans of time if rows expire, else all together."""
        return MergeLimits(
            merge_files=self.limits.merge_files,
            file_bytes_max=self.limits.file_bytes_max,
            span_of=self._span_of(table),
            expired_epoch=self._expired_epoch if table in EXPIRING else 0,
        )

    def _span_of(self, table: str) -> Callable[[TableFile], int]:
        """Returns a function from a file to the number of its span of time."""
        if table_kind(table) == "topics":
            span_ms = max(self._retention(table).ms // _SPANS, 0)
            return lambda file: (file.last_ms or 0) // span_ms if span_ms else 0

        span_ms = self.limits.retention_ms // _SPANS
        times = epoch_times(self.lake) if span_ms else None
        return lambda file: times(file.first_epoch) // span_ms if times else 0

    def _merges(self, table: str, is_full: bool) -> Iterator[StepResult]:
        skipped = self._skipped.setdefault(table, set())
        memory = _MEMORY * self.limits.file_bytes_max
        limits = self._merge_limits(table)

        while True:
            files = files_of(self.lake, table)
            skipped &= {file.path for file in files}

            chosen = next_merge(
                files,
                limits,
                is_full=is_full,
                is_busy=self.is_busy and not is_full,
                skipped=skipped,
            )
            if not chosen:
                return

            merged = merge(self.lake, table, chosen, memory, self._before_change)
            if merged is None:  # its rows are too large for the memory, however small the file is
                skipped.add(chosen[0].path)
                continue

            self._removed_at[table] = time.monotonic()
            yield merged

    def _checkpoint(self, table: str, is_full: bool) -> bool:
        """Makes a checkpoint and shortens the log. Output: whether it was worth it."""
        handle = self.lake.handle(table)
        commits = handle.version() - self._checkpointed.get(table, -self.limits.checkpoint_commits)
        if commits < (1 if is_full else self.limits.checkpoint_commits):
            return False

        self._before_change()
        handle.create_checkpoint()
        handle.cleanup_metadata()

        span = handle.version() // _CHECKPOINT_DISTANCE
        if self._checkpointed.get(table, -1) // _CHECKPOINT_DISTANCE != span:
            self._thin_checkpoints(table)

        self._checkpointed[table] = handle.version()
        self.lake.reset(table)
        self.lake.handle(table)
        return True

    def _thin_checkpoints(self, table: str) -> None:
        """Deletes old checkpoints, but for one in `_CHECKPOINT_DISTANCE` versions."""
        folder = self.lake.location.filesystem(f"{table}/_delta_log")
        kept_ms = self.limits.log_retention_ms

        log_files = folder.get_file_info(pa_fs.FileSelector(""))
        checkpoints = [info for info in log_files if info.path.endswith(".checkpoint.parquet")]
        checkpoints.sort(key=lambda info: info.path)
        spans = [int(info.base_name.split(".")[0]) // _CHECKPOINT_DISTANCE for info in checkpoints]

        # The first checkpoint of a span stays, and the newest of all.
        needless = [
            info.path
            for info, span, before in zip(checkpoints[1:-1], spans[1:], spans, strict=False)
            if span == before and _age_ms(info) > kept_ms
        ]
        self._delete(folder, needless)

    def _vacuum(self, table: str, is_full: bool) -> int:
        """Deletes files that are in no kept version. Output: how many."""
        now = time.monotonic()
        self._removed_at.setdefault(table, now)  # what the run before removed is not known
        if not is_full and not self._may_need_vacuum(table, now):
            return 0

        stale = self._stale(table)
        self._delete(self.lake.location.filesystem(table), stale)
        self._vacuumed_at[table] = now
        return len(stale)

    def _delete(self, folder: pa_fs.FileSystem, paths: list[str]) -> None:
        for begin in range(0, len(paths), _DELETIONS):
            self._before_change()
            delete_files(folder, paths[begin : begin + _DELETIONS])

    def _may_need_vacuum(self, table: str, now: float) -> bool:
        """Returns whether something may have passed its retention since the last look."""
        last = self._vacuumed_at.get(table)
        if last is None:
            return True

        retention_s = self.limits.files_kept_ms(table) / 1000
        is_dirty = self._removed_at[table] + retention_s > last
        return is_dirty and now - last >= retention_s / _VACUUMS

    def _stale(self, table: str) -> list[str]:
        """Returns the files that neither a kept version nor a stream needs."""
        # The retention is the table's property: an argument of vacuum would be in whole hours.
        listed = self.lake.handle(table).vacuum(dry_run=True, full=True)
        folder = self.lake.location.table_path(table) if self.lake.location.is_local else None
        paths = files_of_table(listed, folder)

        kept_ms = self.limits.files_kept_ms(table)
        infos = self.lake.location.filesystem(table).get_file_info(paths)
        return [
            info.path
            for info in infos
            if info.type == pa_fs.FileType.File and _age_ms(info) >= kept_ms
        ]


def delete_files(folder: pa_fs.FileSystem, paths: list[str]) -> None:
    """Deletes files one after another; after a crash in between the next round deletes the rest."""
    for path in paths:
        folder.delete_file(path)


def _age_ms(info: pa_fs.FileInfo) -> float:
    return (time.time() - float(info.mtime.timestamp())) * 1_000

"""How far each consumer group is, and which consumer may commit.

Every write is a compare-and-set: it appends to the very version that was read, or it fails and is
decided again. Of a queue's rows the newest holds: the one of the largest generation, and of these
the latest commit. A write has a row for each queue that changes; an owner without changes proves
with one row of one of its queues that it lives. Only the SDK (delta-rs) writes this table. A
consumer that finds too many files writes the newest row of each queue into one, and drops the rest:
nothing reads an older row.

If the table was deleted, the next read makes it anew, without rows. Each running consumer puts its
own rows back; a group without a running consumer has lost its offsets.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from txlake._delta_files import STALE_SNAPSHOT, DeltaFiles, split, translating_errors
from txlake._delta_log import LAKE_ID_PROPERTY, files_of_table, lake_id_of
from txlake._disk import require_room
from txlake._paths import is_in_store
from txlake._store import store_trouble
from txlake.errors import ConsumerError, LakeError

log = logging.getLogger("txlake.consumer")

SCHEMA = pa.schema(
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
# The log is cleaned at each checkpoint: a consumer that runs for months stays as fast.
_CONFIGURATION: dict[str, str | None] = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 10 minutes",
    "delta.enableExpiredLogCleanup": "true",
}
_FILES_MAX = 50
_TRIES_MAX = 200
_READS_MAX = 20  # a fresh snapshot is stale only when a clean-up comes in between

Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """One row: where a group is in a queue. `queue_offset` None: it has read nothing yet.

    `session_timeout_ms`: how long the owner holds its queues after its latest commit of any queue;
    None in rows of an SDK before lake format 5.
    """

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int | None
    generation: int
    owner: str  # empty when its owner has closed
    committed_at: datetime
    session_timeout_ms: int | None = None

    @property
    def key(self) -> Key:
        """Returns the group and queue that the row is about."""
        return self.consumer_group, self.topic, self.queue_id

    def is_newer_than(self, other: Commit | None) -> bool:
        """Returns whether this row replaces the other."""
        return other is None or (
            (self.generation, self.committed_at) > (other.generation, other.committed_at)
        )


def held_until(
    newest: Mapping[Key, Commit], row: Commit, session_timeout_ms: int
) -> datetime | None:
    """Returns when a queue is free if its owner does not commit again; None if it has no owner.

    Input: the newest rows of all queues, of which any of the owner's proves that it lives;
    `session_timeout_ms`: of an owner that does not say its own.
    """
    if not row.owner:
        return None

    lives_at = max(
        commit.committed_at
        for commit in (row, *newest.values())
        if (commit.consumer_group, commit.owner) == (row.consumer_group, row.owner)
    )
    if row.session_timeout_ms is not None:
        session_timeout_ms = row.session_timeout_ms
    return lives_at + timedelta(milliseconds=session_timeout_ms)


# Returns the rows to append, given the newest rows and the time; raises the error that forbids it.
Decide = Callable[[Mapping[Key, Commit], datetime], Iterable[Commit]]


class ConsumerOffsets:
    """The table `consumer_offsets` of a lake."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str] | None = None, lake_id: str = ""
    ) -> None:
        self._storage_options = dict(storage_options or {})
        self._lake_id = lake_id
        self._files = DeltaFiles(uri, storage_options)
        self._table_id = ""
        self._read: set[str] = set()
        self._newest: dict[Key, Commit] = {}

    def newest(self) -> Mapping[Key, Commit]:
        """Returns the newest row of every key. Errors: LakeError."""
        with translating_errors(self._files.uri):
            for attempt in range(_READS_MAX):
                try:
                    self._refresh(from_checkpoint=attempt > 0)
                    break
                except STALE_SNAPSHOT as error:
                    trouble = store_trouble(self._files.uri, self._files.uri, error)
                    # Another try on a store that does not answer would wait as long.
                    if trouble is not None or attempt == _READS_MAX - 1:
                        raise
                    time.sleep(0.01)

        return self._newest

    def write(self, decide: Decide) -> list[Commit]:
        """Appends the rows that `decide` returns; decides again when another consumer was faster.

        Errors: those of `decide`; ConsumerError when others were faster every time.
        """
        for attempt in range(_TRIES_MAX):
            newest = self.newest()
            now = datetime.now(timezone.utc)
            rows = [_after(row, newest.get(row.key)) for row in decide(newest, now)]
            if not rows:
                return []

            with translating_errors(self._files.uri):
                try:
                    self._write(rows, "append")
                except CommitFailedError:
                    time.sleep(random.uniform(0.0, 0.01 * min(attempt + 1, 10)))  # noqa: S311
                    continue

            self._compact()
            return rows

        raise ConsumerError(f"{self._files.uri}: other consumers were faster {_TRIES_MAX} times")

    def _refresh(self, from_checkpoint: bool) -> None:
        is_new = self._files.refresh(from_checkpoint)
        if not self._files.exists:
            self._create()
            is_new = self._files.refresh(from_checkpoint=True)

        self._check_owner()
        if is_new:
            self._forget_another_table()

        new = [path for path in self._files.files if path not in self._read]
        if new:
            for row in self._files.dataset(new).to_table().to_pylist():
                commit = Commit(**{name: row.get(name) for name in SCHEMA.names})
                if commit.is_newer_than(self._newest.get(commit.key)):
                    self._newest[commit.key] = commit

        self._read = set(self._files.files)

    def _forget_another_table(self) -> None:
        """Forgets the rows of a table that was deleted: the new one has others."""
        table_id = str(self._files.table.metadata().id)
        if self._table_id not in ("", table_id):
            log.warning(
                "%s was deleted, and another table is there: running consumers put their rows "
                "back; a group without one begins as a new group does",
                self._files.uri,
            )
            self._read = set()
            self._newest = {}

        self._table_id = table_id

    def _check_owner(self) -> None:
        """Checks that the table is this lake's; one that names no lake may stay: it has no id."""
        lake_id = lake_id_of(self._files.table)
        if self._lake_id and lake_id not in ("", self._lake_id):
            lake, table = split(self._files.uri)
            raise LakeError(
                f"{lake}: the table {table} belongs to lake {lake_id}, and this is "
                f"{self._lake_id}: take it away, or, where this lake was rebuilt from that one, "
                f"set the table's property {LAKE_ID_PROPERTY} to this lake's id"
            )

    def _create(self) -> None:
        configuration = dict(_CONFIGURATION)
        if self._lake_id:
            configuration[LAKE_ID_PROPERTY] = self._lake_id

        try:
            DeltaTable.create(
                self._files.uri,
                SCHEMA,
                mode="ignore",
                configuration=configuration,
                storage_options=self._storage_options or None,
                raise_if_key_not_exists=False,
            )
        except DeltaError as error:  # two consumers made it at once
            log.info("%s: %s", self._files.uri, error)

    def _write(self, rows: Iterable[Commit], mode: Literal["append", "overwrite"]) -> None:
        table = pa.Table.from_pylist(list(map(asdict, rows)), schema=SCHEMA)
        if not is_in_store(self._files.uri):
            require_room(self._files.uri, table.nbytes)

        write_deltalake(
            self._files.table,
            table,
            mode=mode,
            schema_mode="merge",  # a table of an older format gets the columns that it lacks
            commit_properties=CommitProperties(max_commit_retries=0),
        )

    def _compact(self) -> None:
        """Writes the newest rows as one file, unless another consumer writes meanwhile."""
        if len(self._files.files) < _FILES_MAX:
            return

        newest = self.newest()
        try:
            self._write(newest.values(), "overwrite")
            # Now, since a checkpoint forgets files that were replaced before their retention.
            self._delete_stale()
        except STALE_SNAPSHOT as error:  # the next commit tries again
            log.info("%s was not compacted: %s", self._files.uri, error)

    def _delete_stale(self) -> None:
        """Deletes files that no kept version names; of a local table only those in its folder."""
        folder = self._files.uri
        if is_in_store(folder):
            self._files.table.vacuum(dry_run=False, full=True)
            return

        for name in files_of_table(self._files.table.vacuum(dry_run=True, full=True), folder):
            Path(folder, name).unlink(missing_ok=True)


def _after(row: Commit, before: Commit | None) -> Commit:
    """Returns a row that is later than the one before, though the clock stands or steps back."""
    if before is None or row.committed_at > before.committed_at:
        return row
    return replace(row, committed_at=before.committed_at + timedelta(microseconds=1))

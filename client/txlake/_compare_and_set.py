"""A small table of the SDK's own in a lake: its newest rows, and writes by compare-and-set.

Every write appends to the very version that was read, or it fails and is decided again. Of the rows
of a key the newest holds. A writer that finds too many files writes the newest row of each key into
one, and drops the rest: nothing reads an older row. Readers that find this begin anew. Only the SDK
(delta-rs) writes these tables.

If a table was deleted, the next read makes it anew, without rows.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from txlake._delta_files import STALE_SNAPSHOT, DeltaFiles, split, translating_errors
from txlake._delta_log import LAKE_ID_PROPERTY, files_of_table, lake_id_of
from txlake._disk import require_room
from txlake._paths import is_in_store
from txlake._store import store_error
from txlake.errors import ConsumerError, LakeError

log = logging.getLogger("txlake.consumer")

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


class Row(Protocol):
    """One row of such a table, a frozen dataclass with the table's columns as its fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def key(self) -> Hashable:
        """Returns what the row is about."""

    @property
    def committed_at(self) -> datetime:
        """Returns when the row was written."""

    def is_newer_than(self, other: Any) -> bool:
        """Returns whether this row replaces the other, which can be None."""


KeyT = TypeVar("KeyT", bound=Hashable)
RowT = TypeVar("RowT", bound=Row)


class CompareAndSetTable(Generic[KeyT, RowT]):
    """A table of the SDK's. A class of its own says its rows, its columns and its losses.

    Input: `lake_id` empty: the table can be any lake's.
    """

    row_type: ClassVar[type[Any]]
    schema: ClassVar[pa.Schema]
    after_loss: ClassVar[str]  # what becomes of the rows of a table that was deleted

    def __init__(
        self, uri: str, storage_options: Mapping[str, str] | None = None, lake_id: str = ""
    ) -> None:
        self._storage_options = dict(storage_options or {})
        self._lake_id = lake_id
        self._files = DeltaFiles(uri, storage_options)
        self._table_id = ""
        self._read: set[str] = set()
        self._newest: dict[KeyT, RowT] = {}
        self._changed: dict[KeyT, RowT] = {}
        self._has_forgotten = False
        self._deleted: dict[KeyT, RowT] = {}

    def newest(self) -> Mapping[KeyT, RowT]:
        """Returns the newest row of every key. Errors: LakeError."""
        with translating_errors(self._files.uri):
            for attempt in range(_READS_MAX):
                try:
                    self._refresh(from_checkpoint=attempt > 0)
                    break
                except STALE_SNAPSHOT as error:
                    translated = store_error(self._files.uri, self._files.uri, error)
                    # Another try on a store that does not answer would wait as long.
                    if translated is not None or attempt == _READS_MAX - 1:
                        raise
                    time.sleep(0.01)

        return self._newest

    def take_changes(self) -> dict[KeyT, RowT] | None:
        """Returns the rows that are new in `newest` since the last call; None if rows have gone."""
        changed = None if self._has_forgotten else self._changed
        self._changed = {}
        self._has_forgotten = False
        return changed

    def take_deleted(self) -> dict[KeyT, RowT]:
        """Returns the rows, as seen last, of a table that was deleted since the last call."""
        deleted, self._deleted = self._deleted, {}
        return deleted

    def write(
        self, decide: Callable[[Mapping[KeyT, RowT], datetime], Iterable[RowT]]
    ) -> list[RowT]:
        """Appends the rows that `decide` returns; decides again when another consumer was faster.

        Errors: those of `decide`; ConsumerError when others were faster every time.
        """
        for attempt in range(_TRIES_MAX):
            newest = self.newest()
            now = datetime.now(timezone.utc)
            rows = [_after(row, newest.get(_key(row))) for row in decide(newest, now)]
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

    def is_kept(self, row: RowT) -> bool:
        """Returns whether a key's newest row stays when the table is made smaller."""
        return True

    def _refresh(self, from_checkpoint: bool) -> None:
        is_new = self._files.refresh(from_checkpoint)
        if not self._files.exists:
            self._create()
            is_new = self._files.refresh(from_checkpoint=True)

        self._check_owner()
        table_id = str(self._files.table.metadata().id) if is_new else self._table_id
        if not self._read <= self._files.files.keys():
            self._forget(table_id)
        self._table_id = table_id

        new = [path for path in self._files.files if path not in self._read]
        if new:
            for row in self._files.dataset(new).to_table().to_pylist():
                current = self.row_type(**{name: row.get(name) for name in self.schema.names})
                if current.is_newer_than(self._newest.get(current.key)):
                    self._newest[current.key] = current
                    self._changed[current.key] = current

        self._read = set(self._files.files)

    def _forget(self, table_id: str) -> None:
        """Forgets all rows: the table was made smaller, or it was deleted and another is there.

        A row that is kept is among those that are read next. One that is not can have been newer
        than the row that this reader has seen last: that one would come back with its next write.
        """
        # A new id alone is no loss: of two that make a table at once the second gives it its id.
        if table_id != self._table_id:
            log.warning(
                "%s was deleted, and another table is there: %s",
                self._files.uri,
                self.after_loss,
            )
            self._deleted |= self._newest

        self._read = set()
        self._newest = {}
        self._changed = {}
        self._has_forgotten = True

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
                self.schema,
                mode="ignore",
                configuration=configuration,
                storage_options=self._storage_options or None,
                raise_if_key_not_exists=False,
            )
        except DeltaError as error:  # two consumers made it at once
            log.info("%s: %s", self._files.uri, error)

    def _write(self, rows: Iterable[RowT], mode: Literal["append", "overwrite"]) -> None:
        names = self.schema.names  # `asdict` copies each value: 2.4 s of 10,000 long rows
        values = [{name: getattr(row, name) for name in names} for row in rows]
        table = pa.Table.from_pylist(values, schema=self.schema)
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

        try:
            newest = [row for row in self.newest().values() if self.is_kept(row)]
            self._write(newest, "overwrite")
            # Now, since a checkpoint forgets files that were replaced before their retention.
            delete_stale_files(self._files.table, self._files.uri, full=True)
        except (LakeError, *STALE_SNAPSHOT) as error:  # the next commit tries again
            log.info("%s was not compacted: %s", self._files.uri, error)


def delete_stale_files(table: DeltaTable, uri: str, *, full: bool) -> None:
    """Deletes files that no kept version names; of a local table only those in its folder.

    Input: `full`: also those that the log has forgotten.
    """
    if is_in_store(uri):
        table.vacuum(dry_run=False, full=full)
        return

    for name in files_of_table(table.vacuum(dry_run=True, full=full), uri):
        Path(uri, name).unlink(missing_ok=True)


def _key(row: Row) -> Any:
    return row.key


def _after(row: RowT, before: RowT | None) -> RowT:
    """Returns a row that is later than the one before, though the clock stands or steps back."""
    if before is None or row.committed_at > before.committed_at:
        return row
    return replace(row, committed_at=before.committed_at + timedelta(microseconds=1))

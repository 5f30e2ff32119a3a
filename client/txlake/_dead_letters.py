"""Messages that a group has given up, whole: the lake's table `consumer_dead_letters`.

A message stands here beside its row in `consumer_retries`, which says whether it is still dead. So
it can be looked at, and come again, when its topic does not have it any more. Rows are appended; of
a message that died twice the newest holds. The job's maintenance deletes old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import reduce
from operator import and_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from txlake._compare_and_set import delete_stale_files
from txlake._delta_files import DeltaFiles, translating_errors
from txlake._delta_log import LAKE_ID_PROPERTY
from txlake._disk import require_room
from txlake._paths import is_in_store
from txlake._retries import ATTEMPTS, Key, Retry
from txlake.protocol import GROUP_PATTERN, matches

TABLE: Final = "consumer_dead_letters"

_INSTANT = pa.timestamp("us", tz="UTC")
# The columns of a topic's table, as docs/protocol/tables.md has them.
_MESSAGE: Final = (
    ("queue_id", pa.int32()),
    ("queue_offset", pa.int64()),
    ("stored_at", _INSTANT),
    ("source", pa.string()),
    ("born_at", _INSTANT),
    ("producer_group", pa.string()),
    ("transaction_id", pa.string()),
    ("real_topic", pa.string()),
    ("asked_queue_id", pa.int32()),
    ("reason", pa.string()),
    ("keys", pa.string()),
    ("tags", pa.string()),
    ("properties", pa.map_(pa.string(), pa.string())),
    ("body", pa.binary()),
    ("half_queue_id", pa.int32()),
    ("half_queue_offset", pa.int64()),
    ("raw_headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ("epoch", pa.int64()),
)
SCHEMA = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        *_MESSAGE,
        ("attempts", ATTEMPTS),
        ("dead_at", _INSTANT),
    ]
)
_KEY: Final = ("consumer_group", "topic", "queue_id", "queue_offset")
_FILES_MAX = 50
_COMPACTED_BYTES = 64 << 20
# As of the topics' tables: readers of an older version end within it.
_CONFIGURATION = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hour",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
    "delta.enableExpiredLogCleanup": "true",
}


class DeadLetters:
    """The table `consumer_dead_letters` of a lake."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str] | None = None, lake_id: str = ""
    ) -> None:
        self._uri = uri
        self._storage_options = dict(storage_options or {})
        self._lake_id = lake_id
        self._files = DeltaFiles(uri, storage_options)

    def append(self, letters: Iterable[tuple[Retry, Mapping[str, Any]]]) -> None:
        """Appends messages: their rows in `consumer_retries`, and their columns."""
        rows = []
        for retry, message in letters:
            headers = message["raw_headers"]
            row = {
                **message,
                "consumer_group": retry.consumer_group,
                "topic": retry.topic,
                "properties": list(message["properties"].items()),
                "raw_headers": headers and [{"key": key, "value": value} for key, value in headers],
                "attempts": retry.attempts,
                "dead_at": retry.attempts[-1]["attempted_at"],
            }
            rows.append({name: row[name] for name in SCHEMA.names})

        if not rows:
            return

        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        with translating_errors(self._uri):
            self._open()
            if not is_in_store(self._uri):
                require_room(self._uri, table.nbytes)
            write_deltalake(self._files.table, table, mode="append")
            self._compact()

    def read(self, retries: Sequence[Retry]) -> dict[Key, pa.Table]:
        """Returns the newest row of each message that was ever dead."""
        wanted = {
            (retry.consumer_group, retry.topic, retry.queue_id, retry.queue_offset)
            for retry in retries
        }
        # Not a term for each message: some thousands would overflow Arrow's stack.
        values = list(zip(*wanted, strict=True)) or [()] * len(_KEY)
        are_near = [
            pc.field(name).isin(pa.array(sorted(set(column)), SCHEMA.field(name).type))
            for name, column in zip(_KEY, values, strict=True)
        ]
        rows = self.read_where(reduce(and_, are_near))
        keys = zip(*(rows[name].to_pylist() for name in _KEY), strict=True)

        newest: dict[Key, pa.Table] = {}
        for index, key in enumerate(keys):  # the latest first
            if key in wanted:
                newest.setdefault(key, rows.slice(index, 1))
        return newest

    def read_where(self, where: pc.Expression, columns: list[str] | None = None) -> pa.Table:
        """Returns rows, the latest first."""

        def read() -> pa.Table:
            names = SCHEMA.names if columns is None else columns
            rows = self._files.dataset(self._files.files).to_table(names, filter=where)
            return rows.sort_by([("dead_at", "descending")])

        with translating_errors(self._uri):
            self._files.refresh()
        if not self._files.exists:
            return SCHEMA.empty_table().select(columns or SCHEMA.names)
        return self._files.retry_stale(read)

    def delete(self, until: Mapping[str, datetime]) -> int:
        """Deletes rows of messages that died before an instant. Output: how many.

        Where a consumer merges the files meanwhile, the rest stays: it can be tried again.
        Input: the instant of each group. Errors: LakeError.
        """
        with translating_errors(self._uri):
            self._files.refresh()
        if not self._files.exists:
            return 0

        deleted = 0
        with translating_errors(self._uri), suppress(CommitFailedError):
            for group, at in until.items():
                assert matches(GROUP_PATTERN, group)  # it holds no quote
                text = at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                metrics = self._files.table.delete(
                    f"consumer_group = '{group}' AND dead_at < '{text}'"
                )
                deleted += metrics.get("num_deleted_rows", 0)
        return deleted

    def delete_stale_files(self) -> None:
        """Deletes files that were replaced longer ago than their retention."""
        with translating_errors(self._uri):
            self._files.refresh()
            if self._files.exists:
                delete_stale_files(self._files.table, self._uri, full=False)

    def _open(self) -> None:
        self._files.refresh()
        if self._files.exists:
            return

        configuration: dict[str, str | None] = {**_CONFIGURATION}
        if self._lake_id:
            configuration[LAKE_ID_PROPERTY] = self._lake_id
        try:
            DeltaTable.create(
                self._uri, SCHEMA, mode="ignore", configuration=configuration,
                storage_options=self._storage_options or None, raise_if_key_not_exists=False,
            )  # fmt: skip
        except DeltaError:  # two consumers made it at once
            if not DeltaTable.is_deltatable(self._uri, self._storage_options or None):
                raise
        self._files.refresh(from_checkpoint=True)

    def _compact(self) -> None:
        """Merges small files; another writer's commit in between is no harm: the next one tries."""
        if len(self._files.files) < _FILES_MAX:
            return

        try:
            self._files.table.optimize.compact(target_size=_COMPACTED_BYTES)
            delete_stale_files(self._files.table, self._uri, full=False)
        except DeltaError:
            return

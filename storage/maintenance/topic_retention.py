"""How long topics keep their messages: whole files, the oldest first, never a gap.

A topic keeps its messages for `retention.ms`, and the newest of them up to `retention.bytes` on
disk: what breaks either limit goes. Both are properties of its table; a topic without them has
those of the settings. Without a limit a topic keeps all. The topic of undeliverable messages always
keeps all: an operator can still resume each.

A message that a publisher to Kafka has not published yet stays, however old it is.

Messages are deleted in the order of their epochs, so each queue loses its beginning and nothing
else. One Delta commit deletes some files and records, as transaction identifiers, up to which epoch
messages are deleted, where each queue begins now, and how many rows were deleted so far. So every
reader of one version of the table knows what it can find.

A crash leaves files deleted or not, each with its floor. The next round deletes what is left.

Source: Kafka's `retention.ms` and `retention.bytes`. A segment that breaks neither of them whole
stays; so does a file here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable

from storage.lake.lake import Lake
from storage.maintenance.limits import Retention
from storage.maintenance.merge_plan import TableFile
from txlake.protocol import DELETED_EPOCH_ID, FOREVER, RETENTION_BYTES, RETENTION_MS, floor_id

_FILES = 256  # that one commit deletes, about
_PROPERTY = "txlake."  # before Kafka's names


def retention_of(handle: DeltaTable, default: Retention) -> Retention:
    """Returns the retention of a topic's table: its own, else the one that topics have."""
    own = configs_of(handle)
    return Retention(own.get(RETENTION_MS, default.ms), own.get(RETENTION_BYTES, default.bytes))


def configs_of(handle: DeltaTable) -> dict[str, int]:
    """Returns the configs that a topic's table has of its own, by Kafka's names."""
    own = handle.metadata().configuration
    return {
        name: int(own[_PROPERTY + name])
        for name in (RETENTION_MS, RETENTION_BYTES)
        if _PROPERTY + name in own
    }


def alter(
    lake: Lake,
    table: str,
    configs: Mapping[str, int],
    before_commit: Callable[[], None] = lambda: None,
) -> bool:
    """Writes Kafka's configs of a topic as properties of its table. Output: whether one is new.

    Input: `before_commit`: as of `replace_files`.
    Errors: DeltaError, also when another has written the table meanwhile.
    """
    properties = {_PROPERTY + name: str(value) for name, value in configs.items()}
    return set_properties(lake, table, properties, before_commit)


def set_properties(
    lake: Lake,
    table: str,
    properties: Mapping[str, str],
    before_commit: Callable[[], None] = lambda: None,
) -> bool:
    """Writes properties of a table. Output: whether one is new. Errors: as `alter`.

    Input: `before_commit`: as of `replace_files`.
    """
    handle = lake.handle(table)
    if properties.items() <= handle.metadata().configuration.items():
        return False

    before_commit()
    handle.alter.set_table_properties(
        dict(properties),
        raise_if_not_exists=False,
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    lake.table(table).invalidate()
    return True


def expired(
    files: Sequence[TableFile],
    retention: Retention,
    at_ms: int,
    can_go: Callable[[TableFile], bool] = lambda _: True,
) -> Sequence[TableFile]:
    """Returns the oldest files that a topic need not keep: all of some first epochs.

    Input: files of the table's newest version; `at_ms`: the newest `epoch_at`; `can_go`: returns
    False if someone waits for a message of an old file.
    """
    ordered = sorted(files, key=lambda file: (file.first_epoch, file.path))
    remaining_bytes = sum(file.size_bytes for file in ordered)
    expired_count = 0
    last_epoch = 0

    for count, file in enumerate(ordered, 1):
        remaining_bytes -= file.size_bytes
        if file.last_epoch is None or not _is_old(file, retention, at_ms, remaining_bytes):
            break
        if not can_go(file):
            break

        last_epoch = max(last_epoch, file.last_epoch)
        is_end_of_epoch = count == len(ordered) or ordered[count].first_epoch > last_epoch
        if is_end_of_epoch:
            expired_count = count
            if count >= _FILES:
                break

    return ordered[:expired_count]


def _is_old(file: TableFile, retention: Retention, at_ms: int, bytes_after: int) -> bool:
    """Returns whether a file breaks a limit. Input: `bytes_after`: of the newer files."""
    if retention.ms != FOREVER and file.last_ms is not None and at_ms - file.last_ms > retention.ms:
        return True
    return retention.bytes != FOREVER and bytes_after >= retention.bytes


def floors(lake: Lake, table: str, files: Sequence[TableFile]) -> dict[str, int]:
    """Returns the deletion marks of files, by transaction identifier: where each queue begins."""
    begins = {floor_id(queue_id): end for queue_id, end in queue_ends(lake, table, files).items()}
    return {DELETED_EPOCH_ID: max(file.last_epoch or 0 for file in files), **begins}


def queue_ends(lake: Lake, table: str, files: Sequence[TableFile]) -> dict[int, int]:
    """Returns by queue the offset after the last row that some files have of it."""
    filesystem = lake.location.reading(table)
    parquet = ds.ParquetFileFormat()
    columns = ["queue_id", "queue_offset"]

    with lake.translating_read_errors(table):
        rows = pa.concat_tables(
            parquet.make_fragment(file.path, filesystem=filesystem).to_table(columns=columns)
            for file in files
        )

    ends = rows.group_by("queue_id").aggregate([("queue_offset", "max")]).to_pylist()
    return {row["queue_id"]: row["queue_offset_max"] + 1 for row in ends}

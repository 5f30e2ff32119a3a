"""Land Kafka records: a Spark task decodes its part, writes what has a body, hands back the rest.

    land(batches of Kafka records) -> files of `half` and `schedule` in their tables' folders;
                                      yields narrow rows, and what a commit says of each file

It streams: memory holds one portion of records, and the messages that wait to fill a row group. The
driver commits the files; it names those of one successful attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import schemas
from storage.files.location import LakeLocation
from storage.rows import to_rows
from storage.tasks.arrow_bytes import as_bytes, from_bytes
from storage.tasks.file_buffer import FileBuffer, Files, files_to_json, from_json
from storage.wire.decode import KEPT_BYTES, RECORDS, decode_rows
from storage.wire.headers import truth
from storage.wire.record_kinds import HALF, SCHEDULE, WireLimits

# Columns of a message that decisions do not read: they stay where they were landed.
PAYLOAD_COLUMNS: Final = ("keys", "tags", "born_at", "properties", "body", "raw_key", "raw_headers")
# Rows and bytes that are decoded at once, and bytes of Arrow that become one file.
_PORTION_ROWS = 16_384
# Half of a full batch of Spark's, so that none waits for another: two put together are copied.
_PORTION_BYTES = 8 * 1024 * 1024
_RUNS_MAX = 64  # pieces of Kafka partitions in a portion; without transactions there are few
FILE_BYTES: Final = 64 * 1024 * 1024
# What a task yields: a row a portion. `narrow`: an Arrow stream of RECORDS; `files`: JSON.
LANDED: Final = pa.schema([("narrow", pa.binary()), ("files", pa.string())])
# How a task says that it would hand back more than it may: of an error only the text crosses Spark.
TOO_MUCH: Final = "an epoch's records are too large for the driver"
LANDED_IN_SPARK: Final = "narrow binary, files string"


@dataclass(frozen=True)
class Landing:
    """What a task needs to land its part of an epoch; Spark sends it to where the task runs.

    `narrow_bytes_max`: the most that the records of one task may have in the driver beside
    `KEPT_BYTES` each; None: no limit.
    """

    place: LakeLocation
    epoch: int
    limits: WireLimits
    narrow_bytes_max: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lands records. Input: KAFKA_COLUMNS. Output: LANDED.

        Replay: a task that runs again writes other files with the same rows.
        Errors: ValueError with `TOO_MUCH`.
        """
        waiting = FileBuffer(self.place, self.epoch)
        beyond = 0
        for portion in _portions(batches):
            rows = decode_rows(portion, self.limits)
            for kind in (HALF, SCHEDULE):
                of_kind = _of_kind(rows, kind)
                if of_kind.num_rows:
                    messages = to_rows(of_kind, schemas.HALF, epoch=self.epoch)
                    waiting.add(kind, messages)
                    waiting.bytes += messages.nbytes
            files = waiting.write() if waiting.bytes >= FILE_BYTES else {}
            narrow = _narrow(rows)
            beyond += max(0, narrow.nbytes - KEPT_BYTES * narrow.num_rows)
            if self.narrow_bytes_max is not None and beyond > self.narrow_bytes_max:
                raise ValueError(f"{TOO_MUCH}: more than {self.narrow_bytes_max} bytes")
            yield _landed(narrow, files)
        yield _landed(RECORDS.empty_table(), waiting.write())


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Returns batches put together: many are too small to be decoded one by one."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _PORTION_ROWS or size >= _PORTION_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting)


def _of_kind(rows: pa.Table, kind: str) -> pa.Table:
    """Returns the records of a kind; those that stand together are not copied."""
    is_kind = np.concatenate([[False], truth(pc.equal(rows["kind"], kind)), [False]])
    edges = np.flatnonzero(is_kind[1:] != is_kind[:-1]).reshape(-1, 2).tolist()
    if len(edges) > _RUNS_MAX:
        return rows.filter(pa.array(is_kind[1:-1]))
    runs = [rows.slice(start, end - start) for start, end in edges]
    return pa.concat_tables(runs) if runs else rows.slice(0, 0)


def _narrow(rows: pa.Table) -> pa.Table:
    """Returns records; messages lack the columns that decisions do not read."""
    is_message = pc.is_in(rows["kind"], value_set=pa.array([HALF, SCHEDULE]))
    is_all = pc.all(is_message).as_py()
    for name in PAYLOAD_COLUMNS:
        place, field = rows.schema.get_field_index(name), rows.schema.field(name)
        nothing = pa.nulls(rows.num_rows, field.type)
        kept = nothing if is_all else pc.if_else(is_message, nothing, rows[name])
        rows = rows.set_column(place, field, kept)
    return rows


def _landed(metadata_rows: pa.Table, files: Files) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([as_bytes(metadata_rows)], pa.binary()), pa.array([files_to_json(files)])],
        schema=LANDED,
    )


def read_landed(row: pa.RecordBatch) -> Iterator[tuple[pa.Table, Files]]:
    """Returns what tasks yielded. Output: narrow rows (RECORDS), files by table."""
    for narrow, told in zip(row.column("narrow"), row.column("files").to_pylist(), strict=True):
        yield from_bytes(narrow), from_json(told)

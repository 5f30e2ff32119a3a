"""Land Kafka records: a Spark task decodes its part, writes messages, hands back all other columns.

    land(batches of Kafka records) -> files of `half` and `schedule` in their tables' folders;
                                      yields rows without payload, and the entry of each file for
                                      its commit

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
from storage.wire.headers import to_mask
from storage.wire.record_kinds import HALF, SCHEDULE, WireLimits

# Columns of a message that decisions do not read: they stay where they were landed.
PAYLOAD_COLUMNS: Final = ("keys", "tags", "born_at", "properties", "body", "raw_key", "raw_headers")
# Rows and bytes that are decoded at once, and bytes of Arrow that become one file.
_PORTION_ROWS = 16_384
# Half of a full batch of Spark's: a larger portion would wait for a second batch, and copy both.
_PORTION_BYTES = 8 * 1024 * 1024
_RUNS_MAX = 64  # pieces of Kafka partitions in a portion; without transactions there are few
FILE_BYTES: Final = 64 * 1024 * 1024
# What a task yields: a row a portion. `records`: an Arrow stream of RECORDS; `files`: JSON.
LANDED: Final = pa.schema([("records", pa.binary()), ("files", pa.string())])
# The text of a task's error when its rows are too large: of an error only the text crosses Spark.
TOO_MUCH: Final = "an epoch's records are too large for the driver"
LANDED_DDL: Final = "records binary, files string"


@dataclass(frozen=True)
class Landing:
    """The landing of one task's part of an epoch; Spark sends it to the worker.

    `driver_bytes_max`: the most bytes that the records of one task may take in the driver beyond
    `KEPT_BYTES` each; None: no limit.
    """

    location: LakeLocation
    epoch: int
    limits: WireLimits
    driver_bytes_max: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lands records. Input: KAFKA. Output: LANDED.

        Replay: a task that runs again writes other files with the same rows.
        Errors: ValueError with `TOO_MUCH`.
        """
        buffer = FileBuffer(self.location, self.epoch)
        excess_bytes = 0

        for portion in _portions(batches):
            rows = decode_rows(portion, self.limits)

            for kind in (HALF, SCHEDULE):
                records = _of_kind(rows, kind)
                if records.num_rows:
                    messages = to_rows(records, schemas.HALF, epoch=self.epoch)
                    buffer.add(kind, messages)
                    buffer.bytes += messages.nbytes
            files = buffer.write() if buffer.bytes >= FILE_BYTES else {}

            metadata_rows = _without_payload(rows)
            excess_bytes += max(0, metadata_rows.nbytes - KEPT_BYTES * metadata_rows.num_rows)
            if self.driver_bytes_max is not None and excess_bytes > self.driver_bytes_max:
                raise ValueError(f"{TOO_MUCH}: more than {self.driver_bytes_max} bytes")

            yield _landed_row(metadata_rows, files)

        yield _landed_row(RECORDS.empty_table(), buffer.write())


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Returns the batches in portions: many batches are too small to be decoded one by one."""
    portion: list[pa.RecordBatch] = []
    row_count = byte_count = 0

    for batch in batches:
        portion.append(batch)
        row_count += batch.num_rows
        byte_count += batch.nbytes

        if row_count >= _PORTION_ROWS or byte_count >= _PORTION_BYTES:
            yield pa.Table.from_batches(portion)
            portion = []
            row_count = byte_count = 0

    if row_count:
        yield pa.Table.from_batches(portion)


def _of_kind(rows: pa.Table, kind: str) -> pa.Table:
    """Returns the records of a kind; adjacent ones are not copied."""
    is_kind = np.concatenate([[False], to_mask(pc.equal(rows["kind"], kind)), [False]])
    edges = np.flatnonzero(is_kind[1:] != is_kind[:-1]).reshape(-1, 2).tolist()
    if len(edges) > _RUNS_MAX:
        return rows.filter(pa.array(is_kind[1:-1]))

    runs = [rows.slice(start, end - start) for start, end in edges]
    return pa.concat_tables(runs) if runs else rows.slice(0, 0)


def _without_payload(rows: pa.Table) -> pa.Table:
    """Returns records; messages have null in the columns that decisions do not read."""
    is_message = pc.is_in(rows["kind"], value_set=pa.array([HALF, SCHEDULE]))
    are_all_messages = pc.all(is_message).as_py()

    for name in PAYLOAD_COLUMNS:
        index = rows.schema.get_field_index(name)
        field = rows.schema.field(name)
        nulls = pa.nulls(rows.num_rows, field.type)
        column = nulls if are_all_messages else pc.if_else(is_message, nulls, rows[name])
        rows = rows.set_column(index, field, column)

    return rows


def _landed_row(metadata_rows: pa.Table, files: Files) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([as_bytes(metadata_rows)], pa.binary()), pa.array([files_to_json(files)])],
        schema=LANDED,
    )


def read_landed(row: pa.RecordBatch) -> Iterator[tuple[pa.Table, Files]]:
    """Returns the portions that tasks yielded. Output: rows (RECORDS), files by table."""
    for rows, files in zip(row.column("records"), row.column("files").to_pylist(), strict=True):
        yield from_bytes(rows), from_json(files)

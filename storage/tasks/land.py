"""Land Kafka records: a Spark task decodes its part, writes what has a body, hands back the rest.

    land(batches of Kafka records) -> files of `half` and `schedule` in their tables' folders;
                                      yields narrow rows, and what a commit says of each file

It streams: memory holds one portion of records and the messages that wait to become one file. The
driver commits the files; it names those of one successful attempt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from storage import schemas
from storage.files.data_files import DataFile, new_name, write_file
from storage.files.order import in_file_order
from storage.files.place import LakePlace
from storage.rows import to_rows
from storage.tasks.arrow_bytes import as_bytes, from_bytes
from storage.wire.decode import RECORDS, decode_rows
from storage.wire.kinds import HALF, SCHEDULE, WireLimits

# Columns of a message that decisions do not read: they stay where they were landed.
HEAVY: Final = ("keys", "tags", "born_at", "properties", "body", "raw_key", "raw_headers")
# Rows and bytes that are decoded at once, and bytes of Arrow that become one file.
_PORTION_ROWS = 16_384
_PORTION_BYTES = 16 * 1024 * 1024
FILE_BYTES: Final = 64 * 1024 * 1024
# What a task yields: a row a portion. `narrow`: an Arrow stream of RECORDS; `files`: JSON.
LANDED: Final = pa.schema([("narrow", pa.binary()), ("files", pa.string())])
LANDED_IN_SPARK: Final = "narrow binary, files string"


@dataclass(frozen=True)
class Landing:
    """What a task needs to land its part of an epoch; Spark sends it to where the task runs."""

    place: LakePlace
    epoch: int
    limits: WireLimits

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lands records. Input: KAFKA_COLUMNS. Output: LANDED.

        Replay: a task that runs again writes other files with the same rows.
        """
        waiting = _Waiting(self)
        for portion in _portions(batches):
            rows = decode_rows(portion, self.limits)
            yield _landed(_narrow(rows), waiting.add(rows))
        yield _landed(RECORDS.empty_table(), waiting.write())


class _Waiting:
    """Messages that wait until they are enough for a file."""

    def __init__(self, landing: Landing) -> None:
        self._landing = landing
        self._rows: dict[str, list[pa.Table]] = {HALF: [], SCHEDULE: []}
        self._bytes = 0

    def add(self, rows: pa.Table) -> dict[str, DataFile]:
        """Takes the messages among some records; writes all once they are many."""
        for kind, waiting in self._rows.items():
            of_kind = rows.filter(pc.equal(rows["kind"], kind))
            if of_kind.num_rows:
                landed = to_rows(of_kind, schemas.HALF, epoch=self._landing.epoch)
                self._bytes += landed.nbytes
                waiting.append(landed)
        return self.write() if self._bytes >= FILE_BYTES else {}

    def write(self) -> dict[str, DataFile]:
        """Writes the waiting messages, a file a table. Output: by table."""
        written = {}
        for kind, waiting in self._rows.items():
            if waiting:
                rows = in_file_order(kind, pa.concat_tables(waiting))
                name = new_name(self._landing.epoch)
                written[kind] = write_file(self._landing.place, kind, name, rows)
                waiting.clear()
        self._bytes = 0
        return written


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


def _narrow(rows: pa.Table) -> pa.Table:
    """Returns records; messages lack the columns that decisions do not read."""
    is_message = pc.is_in(rows["kind"], value_set=pa.array([HALF, SCHEDULE]))
    is_all = pc.all(is_message).as_py()
    for name in HEAVY:
        place, field = rows.schema.get_field_index(name), rows.schema.field(name)
        nothing = pa.nulls(rows.num_rows, field.type)
        kept = nothing if is_all else pc.if_else(is_message, nothing, rows[name])
        rows = rows.set_column(place, field, kept)
    return rows


def _landed(narrow: pa.Table, files: dict[str, DataFile]) -> pa.RecordBatch:
    told = json.dumps({table: asdict(file) for table, file in files.items()})
    return pa.RecordBatch.from_arrays(
        [pa.array([as_bytes(narrow)], pa.binary()), pa.array([told])], schema=LANDED
    )


def read_landed(row: pa.RecordBatch) -> Iterator[tuple[pa.Table, dict[str, DataFile]]]:
    """Returns what tasks yielded. Output: narrow rows (RECORDS), files by table."""
    for narrow, told in zip(row.column("narrow"), row.column("files").to_pylist(), strict=True):
        files = {table: DataFile(**file) for table, file in json.loads(told).items()}
        yield from_bytes(narrow), files

"""A task's output: rows that wait to become a file, and the files that it reports to the driver."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from typing import TypeAlias

import pyarrow as pa

from storage.files.data_files import GROUP_BYTES, DataFile, FileWriter, new_name
from storage.files.location import LakeLocation
from storage.files.order import in_file_order
from storage.wire.record_kinds import SCHEDULE

Files: TypeAlias = dict[str, list[DataFile]]  # by table


class FileBuffer:
    """Rows of an epoch on their way into files.

    Rows of a table wait until they fill a row group, then they are written: memory follows the size
    of a row group of each table, not that of a file. Those of `schedule` wait for all others of
    their file, since the file has another order than the records come in.
    `bytes`: the size of the rows that are in no finished file yet; the caller counts it.
    """

    def __init__(self, location: LakeLocation, epoch: int) -> None:
        self._location = location
        self._epoch = epoch
        self._rows: dict[str, list[pa.Table]] = defaultdict(list)
        self._waiting_bytes: dict[str, int] = defaultdict(int)
        self._open: dict[str, FileWriter] = {}
        self.bytes = 0

    def add(self, table: str, rows: pa.Table) -> None:
        """Takes rows of a table."""
        self._rows[table].append(rows)
        self._waiting_bytes[table] += rows.nbytes

        if table != SCHEDULE and self._waiting_bytes[table] >= GROUP_BYTES:
            self._write(table)

    def write(self) -> Files:
        """Writes all rows that wait, and finishes the files, one a table.

        One after the other: a process may have fewer files open than an epoch has topics.
        """
        files: Files = {}
        for table in dict.fromkeys([*self._open, *self._rows]):
            if table in self._rows:
                self._write(table)
            files[table] = [self._open.pop(table).close()]

        self.bytes = 0
        return files

    def _write(self, table: str) -> None:
        del self._waiting_bytes[table]
        rows = in_file_order(table, pa.concat_tables(self._rows.pop(table)))

        if table not in self._open:
            self._open[table] = FileWriter(self._location, table, new_name(self._epoch), rows)
        self._open[table].write(rows)


def merge_files(parts: Iterable[Files]) -> Files:
    """Returns the files of all parts, by table."""
    files: Files = defaultdict(list)
    for part in parts:
        for table, table_files in part.items():
            files[table] += table_files
    return dict(files)


def files_to_json(files: Files) -> str:
    """Returns files as text."""
    entries = {table: list(map(asdict, table_files)) for table, table_files in files.items()}
    return json.dumps(entries)


def from_json(text: str) -> Files:
    """Returns the files of a text."""
    tables = json.loads(text)
    return {table: [DataFile(**entry) for entry in entries] for table, entries in tables.items()}

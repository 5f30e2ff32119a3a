"""What a task has written: rows that wait to become a file, and files as it tells of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from typing import TypeAlias

import pyarrow as pa

from storage.files.data_files import DataFile, new_name, write_file
from storage.files.order import in_file_order
from storage.files.place import LakePlace

Files: TypeAlias = dict[str, list[DataFile]]  # by table


class Waiting:
    """Rows of an epoch that wait until they are enough for a file.

    `bytes`: their size, as the one who adds them counts it.
    """

    def __init__(self, place: LakePlace, epoch: int) -> None:
        self._place, self._epoch = place, epoch
        self._rows: dict[str, list[pa.Table]] = defaultdict(list)
        self.bytes = 0

    def add(self, table: str, rows: pa.Table) -> None:
        """Takes rows of a table."""
        self._rows[table].append(rows)

    def write(self) -> Files:
        """Writes all rows that wait, a file a table, in the order of its files."""
        written = {}
        for table, parts in self._rows.items():
            rows = in_file_order(table, pa.concat_tables(parts))
            written[table] = [write_file(self._place, table, new_name(self._epoch), rows)]
        self._rows.clear()
        self.bytes = 0
        return written


def together(parts: Iterable[Files]) -> Files:
    """Returns the files of all parts, by table."""
    files: Files = defaultdict(list)
    for part in parts:
        for table, written in part.items():
            files[table] += written
    return dict(files)


def as_json(files: Files) -> str:
    """Returns files as text."""
    return json.dumps({table: list(map(asdict, written)) for table, written in files.items()})


def from_json(text: str) -> Files:
    """Returns the files of a text."""
    told = json.loads(text)
    return {table: [DataFile(**file) for file in written] for table, written in told.items()}

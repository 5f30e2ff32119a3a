"""How many rows the tables hold, counted as they are written, for the committed rows."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from storage.lake.epochs import TableVersion


class RowCounts:
    """The rows that were written into a lake's tables since the last `committed` row.

    Input: `version_of`: the version that a table stands at; `rows_of`: its rows by its log.
    """

    def __init__(self, version_of: Callable[[str], int], rows_of: Callable[[str], int]) -> None:
        self._version_of = version_of
        self._rows_of = rows_of
        self._lock = threading.Lock()
        self._added: Counter[str] = Counter()
        self._unknown: set[str] = set()

    def clear(self) -> None:
        """Forgets what was written: the next `committed` row goes on from what the lake says."""
        with self._lock:
            self._added.clear()
            self._unknown.clear()

    def invalidate_all(self) -> None:
        """Marks all tables that were written: their logs are read for their rows."""
        with self._lock:
            self._unknown |= self._added.keys()

    def add(self, table: str, rows: int) -> None:
        """Counts rows that were written into a table."""
        if rows:
            with self._lock:
                self._added[table] += rows

    def invalidate(self, table: str) -> None:
        """Marks a table that an earlier run has written: its log is read for its rows."""
        with self._lock:
            self._unknown.add(table)

    def take(self, before: Mapping[str, TableVersion]) -> dict[str, TableVersion]:
        """Returns the tables that were written since the last call, by name.

        Input: the tables as they were then. A table that is not among them is counted from its
        first rows; if it had some before, its log is read.
        """
        with self._lock:
            added, unknown = self._added, self._unknown
            self._added = Counter()
            self._unknown = set()

        tables = {}
        for table in sorted((added.keys() | unknown) - {"epochs", "lake"}):
            version = self._version_of(table)

            if table in unknown or (table not in before and version > 1):
                rows = self._rows_of(table)
            else:
                rows = added[table] + (before[table].rows if table in before else 0)

            tables[table] = TableVersion(version, rows)
        return tables

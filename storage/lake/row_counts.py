"""How many rows the tables hold, counted as they are written, for the committed rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from storage.lake.epochs import TableVersion


class RowCounts:
    """The rows of a lake's tables.

    Input: `version_of`: the version that a table stands at; `rows_of`: its rows by its log.
    """

    def __init__(self, version_of: Callable[[str], int], rows_of: Callable[[str], int]) -> None:
        self._version_of = version_of
        self._rows_of = rows_of
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._written: set[str] = set()

    def reset(self, rows: Mapping[str, int]) -> None:
        """Takes how many rows each table holds; from here on written rows are counted."""
        with self._lock:
            self._rows = dict(rows)
            self._written = set()

    def clear(self) -> None:
        """Drops the counts of all tables; it stays known which were written."""
        with self._lock:
            self._rows.clear()

    def add(self, table: str, rows: int) -> None:
        """Counts rows that were written into a table."""
        if rows == 0:
            return
        with self._lock:
            self._written.add(table)
            if table in self._rows or self._version_of(table) <= 1:
                self._rows[table] = self._rows.get(table, 0) + rows

    def invalidate(self, table: str) -> None:
        """Drops the count of a table that an earlier run has written: its log is read for it."""
        with self._lock:
            self._written.add(table)
            self._rows.pop(table, None)

    def changed(self) -> dict[str, TableVersion]:
        """Returns the tables that were written since the last call, by name."""
        with self._lock:
            tables = sorted(self._written - {"epochs", "lake"})
            self._written = set()

            for table in tables:
                if table not in self._rows:
                    self._rows[table] = self._rows_of(table)

            return {
                table: TableVersion(self._version_of(table), self._rows[table]) for table in tables
            }

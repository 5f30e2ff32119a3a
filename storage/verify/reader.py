"""One table after another, from a lake into DuckDB; one that cannot be read is empty and named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from storage.errors import BrokenLakeError, MissingTableError
from storage.lake.lake import Lake
from storage.lake.store_error import store_error
from storage.schemas import (
    DIGEST_FORMAT,
    GROUPS_FORMAT,
    SIGNED_FORMAT,
    TABLES,
    THIRD_EDITION_FORMAT,
)

# Columns that a lake of an earlier format lacks, by the format that brought them, and what stands
# for them. In format 1 `pending` and `waiting` had snapshots only, `delayed` the messages that came
# in.
_SINCE: dict[int, dict[str, tuple[str, ...]]] = {
    DIGEST_FORMAT: {
        "epochs": ('NULL::STRUCT("table" VARCHAR, version BIGINT, rows BIGINT)[] AS tables',),
        "pending": ("'snapshot' AS change", "NULL::BIGINT AS unit_offset"),
        "waiting": ("'snapshot' AS change",),
        "delayed": ("'put' AS change",),
    },
    SIGNED_FORMAT: {
        "op": ("NULL::BOOLEAN AS is_signed",),
        "pending": ("NULL::INTEGER AS unacknowledged",),
        "waiting": ("NULL::BOOLEAN AS is_signed",),
    },
    GROUPS_FORMAT: {
        "delayed": ("NULL::VARCHAR AS producer_group",),
        "catalog": ("NULL::VARCHAR AS producer_group",),
    },
    THIRD_EDITION_FORMAT: {
        "half": ("NULL::BIGINT AS delay_ms",),
        "schedule": ("NULL::BIGINT AS delay_ms",),
        "pending": (
            "stored_at AS age_from_at",
            "NULL::BIGINT AS delay_ms",
            "NULL::TIMESTAMPTZ AS deadline_at",
        ),
        # Before it `refused_units` said less, by the sets' offsets.
        "waiting": ("NULL::VARCHAR[] AS decided_sets",),
    },
}


class Reader:
    """The reader of one lake. `problems`: by table, what is wrong with it."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, lake: Lake, format_version: int
    ) -> None:
        self._connection = connection
        self.lake = lake
        self._format_version = format_version
        self.problems: dict[str, str] = {}

    def read(self, table: str, columns: str) -> None:
        """Puts a table's rows into `all_<table>`."""
        source = self.source(table, TABLES[table])
        if source is None:
            self.problems.setdefault(table, "is missing")
            source = TABLES[table].empty_table()
        begin, later = f"CREATE TABLE all_{table} AS", self._later_columns(table)
        if not self.load(table, begin, columns, source, later=later):
            self.load(table, begin, columns, TABLES[table].empty_table())

    def _later_columns(self, table: str) -> list[str]:
        """Returns the columns that the lake's format lacks, each as SQL of what stands for it."""
        return [
            text
            for since, tables in _SINCE.items()
            if self._format_version < since
            for text in tables.get(table, ())
        ]

    def probe(self, table: str) -> None:
        """Checks that a table without invariants can be read."""
        try:
            self.lake.read(table)
        except BrokenLakeError as error:
            self.problems[table] = error.problem

    def source(self, table: str, schema: pa.Schema) -> Any:
        """Returns what DuckDB can read a table's newest version from; None without a table."""
        try:
            names = self.lake.table(table).files()["path"].to_pylist()
        except MissingTableError:
            return None
        except BrokenLakeError as error:
            self.problems[table] = error.problem
            return schema.empty_table()
        if not names:
            return schema.empty_table()
        files = [f"{self.lake.table_path(table)}/{name}" for name in names]
        if not self.lake.place.is_local or any(map(_is_pattern, files)):
            return self.lake.dataset(table)
        try:
            return self._connection.read_parquet(files)
        except (duckdb.Error, OSError) as error:
            self.problems[table] = _unreadable(error)
            return schema.empty_table()

    def load(
        self,
        table: str,
        begin: str,
        columns: str,
        source: Any,
        parameters: dict[str, str | None] | None = None,
        later: Sequence[str] = (),
    ) -> bool:
        """Runs `begin` with the columns of a source. Output: whether its files can be read.

        Input: `later`: columns that it lacks, as SQL.
        """
        rows = "source"
        if later:
            names = [text.rpartition(" ")[2] for text in later]
            own = f"COLUMNS(name -> NOT list_contains({names}, name))"
            rows = f"(SELECT {own}, {', '.join(later)} FROM source)"
        self._connection.register("source", source)
        try:
            self._connection.execute(f"{begin} SELECT {columns} FROM {rows}", parameters)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            trouble = store_error(self.lake.place, error)
            if trouble is not None:
                raise trouble from error
            self.problems[table] = _unreadable(error)
            return False
        finally:
            self._connection.unregister("source")
        return True


def _is_pattern(path: str) -> bool:
    """Returns whether DuckDB would look for other files that fit a path."""
    return not {"*", "?", "["}.isdisjoint(path)


def _unreadable(error: BaseException) -> str:
    return f"has a file that cannot be read: {str(error).splitlines()[0]}"

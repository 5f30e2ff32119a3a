"""The tables of a lake in DuckDB; one that cannot be read is empty, with the problem noted."""

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

# Columns that a lake of an earlier format lacks, by the format that brought them, and their values
# there. In format 1 `pending` and `waiting` had snapshots only, `delayed` only messages that came
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
        # Earlier formats had `refused_units` with less, by the sets' offsets.
        "waiting": ("NULL::VARCHAR[] AS decided_sets",),
    },
}


class Reader:
    """The reader of one lake. `problems`: the problem of each table that has one."""

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

        create = f"CREATE TABLE all_{table} AS"
        missing_columns = self._missing_columns(table)
        if not self.load(table, create, columns, source, missing_columns=missing_columns):
            self.load(table, create, columns, TABLES[table].empty_table())

    def _missing_columns(self, table: str) -> list[str]:
        """Returns the columns that the lake's format lacks, each as SQL of its value."""
        columns: list[str] = []
        for since, tables in _SINCE.items():
            if self._format_version < since:
                columns += tables.get(table, ())
        return columns

    def probe(self, table: str) -> None:
        """Checks that a table without invariants can be read."""
        try:
            self.lake.read(table)
        except BrokenLakeError as error:
            self.problems[table] = error.problem

    def source(self, table: str, schema: pa.Schema) -> Any:
        """Returns a table's newest version as a source that DuckDB reads; None without a table."""
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
        if not self.lake.location.is_local or any(map(_is_pattern, files)):
            return self.lake.dataset(table)

        try:
            return self._connection.read_parquet(files)
        except (duckdb.Error, OSError) as error:
            self.problems[table] = _unreadable(error)
            return schema.empty_table()

    def load(
        self,
        table: str,
        statement: str,
        columns: str,
        source: Any,
        parameters: dict[str, str | None] | None = None,
        missing_columns: Sequence[str] = (),
    ) -> bool:
        """Runs `statement` with the columns of a source. Output: whether its files can be read.

        Input: `missing_columns`: columns that the source lacks, as SQL.
        """
        rows = "source"
        if missing_columns:
            names = [text.rpartition(" ")[2] for text in missing_columns]
            own_columns = f"COLUMNS(name -> NOT list_contains({names}, name))"
            rows = f"(SELECT {own_columns}, {', '.join(missing_columns)} FROM source)"

        self._connection.register("source", source)
        try:
            self._connection.execute(f"{statement} SELECT {columns} FROM {rows}", parameters)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            lake_error = store_error(self.lake.location, error)
            if lake_error is not None:
                raise lake_error from error
            self.problems[table] = _unreadable(error)
            return False
        finally:
            self._connection.unregister("source")

        return True


def _is_pattern(path: str) -> bool:
    """Returns whether DuckDB takes a path for a pattern of several files."""
    return not {"*", "?", "["}.isdisjoint(path)


def _unreadable(error: BaseException) -> str:
    return f"has a file that cannot be read: {str(error).splitlines()[0]}"

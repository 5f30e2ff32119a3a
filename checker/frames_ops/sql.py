"""SQL steps over Arrow frames."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import duckdb
import pyarrow as pa

_local = threading.local()
# On up to 250,000 rows optimizing and a second thread take longer than they save; our SQL is
# already in the right join order (DECISIONS.md 12).
_FEW_ROWS = 250_000
# DuckDB looks for a frame among the global names of its caller, so a statement runs with its frames
# as these. Registered as views and dropped again, they took 1.5 times as long for the statements
# of a decision on few rows, and 1.4 times on 100,000.
_STATEMENT = compile(
    "connection_.execute(text_, parameters_).fetch_arrow_table()", __name__, "eval"
)

# DuckDB has pyarrow make a scanner for each reading of a `pa.Table`, which takes 0.6 ms. Of a C
# stream it reads all columns, which takes longer where there are many rows.
_STREAMED_ROWS = 10_000


class _Stream:
    """A frame that DuckDB reads as Arrow's C stream: a new one each time that a text names it."""

    __slots__ = ("_frame",)

    def __init__(self, frame: pa.Table) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._frame.__arrow_c_stream__(requested_schema)


def _readable(frame: pa.Table) -> pa.Table | _Stream:
    return _Stream(frame) if frame.num_rows <= _STREAMED_ROWS else frame


def _connection(has_few_rows: bool) -> duckdb.DuckDBPyConnection:
    """Returns this thread's own in-memory engine; it keeps no data between steps."""
    name = "small" if has_few_rows else "large"
    if not hasattr(_local, name):
        setattr(_local, name, _connect(has_few_rows))

    connection: duckdb.DuckDBPyConnection = getattr(_local, name)
    return connection


def _connect(has_few_rows: bool) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1 if has_few_rows else 2,
            # A step reads the frames that are handed in, no files and no network.
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )
    connection.execute("SET disabled_filesystems = 'LocalFileSystem'")

    # In a process without a main file DuckDB prints a progress bar after two seconds. In a notebook
    # without ipywidgets there is none, and the setting is an error.
    with suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")

    # Results are fetched whole. With a full buffer threads wait for the fetch, and some did not
    # wake up again (duckdb#22215).
    connection.execute("SET streaming_buffer_size = '4GB'")

    if has_few_rows:
        connection.execute("PRAGMA disable_optimizer")

    return connection


def run(text: str, parameters: dict[str, Any] | None = None, /, **frames: pa.Table) -> pa.Table:
    """Returns the rows that a SQL text selects from the named frames.

    Input: frames by the names that the text uses; `$name` parameters.
    Output: rows in the order that the text asks for; in any order without ORDER BY.
    Errors: duckdb.Error for a text or a frame that does not fit, with the text in it.
    """
    row_count = sum(frame.num_rows for frame in frames.values())
    connection = _connection(has_few_rows=row_count <= _FEW_ROWS)

    variables = {
        **{name: _readable(frame) for name, frame in frames.items()},
        "connection_": connection,
        "text_": text,
        "parameters_": parameters or None,
    }
    rows: pa.Table = eval(_STATEMENT, variables)  # noqa: S307 (a constant)
    return rows


def select(
    schema: pa.Schema, text: str, parameters: dict[str, Any] | None = None, /, **frames: pa.Table
) -> pa.Table:
    """Returns the rows as `run` does, as a frame of a schema; none if no frame has rows."""
    if not any(frame.num_rows for frame in frames.values()):
        return schema.empty_table()
    return run(text, parameters, **frames).cast(schema)

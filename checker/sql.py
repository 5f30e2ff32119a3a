"""Run one SQL step over Arrow frames."""

from __future__ import annotations

import builtins
import threading
from types import FunctionType
from typing import Any

import duckdb
import pyarrow as pa

_local = threading.local()
# Up to so many rows optimizing and a second thread cost more than they save (DECISIONS.md 12).
_FEW_ROWS = 250_000


def _connection(has_few_rows: bool) -> duckdb.DuckDBPyConnection:
    """Return this thread's own in-memory engine; it keeps no data between steps."""
    name = "small" if has_few_rows else "large"
    if not hasattr(_local, name):
        connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1 if has_few_rows else 2,
                # Nothing is read but what is handed in, and nothing is fetched.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        connection.execute("SET disabled_filesystems = 'LocalFileSystem'")
        # Results are fetched whole. A full buffer makes threads wait for the fetch, and they did
        # not always wake up again (duckdb#22215).
        connection.execute("SET streaming_buffer_size = '4GB'")
        if has_few_rows:
            connection.execute("PRAGMA disable_optimizer")
        setattr(_local, name, connection)
    found: duckdb.DuckDBPyConnection = getattr(_local, name)
    return found


def run(text: str, parameters: dict[str, Any] | None = None, /, **frames: pa.Table) -> pa.Table:
    """Run `text` over the named frames and give its rows.

    Input: frames by the names that the text uses; `$name` parameters.
    Output: the rows the text selects, in the order it asks for (without ORDER BY: any order).
    Errors: duckdb.Error for a text or a frame that does not fit, with the text in it.
    """
    connection = _connection(sum(frame.num_rows for frame in frames.values()) <= _FEW_ROWS)
    # DuckDB takes a name it does not know for a variable of its caller. Registering each frame as
    # a view instead costs as much as planning the statement.
    names = {"connection_": connection, "text_": text, "parameters_": parameters or None}
    variables = {"__builtins__": builtins, **frames, **names}
    found: pa.Table = FunctionType(_execute.__code__, variables)()
    return found


def _execute() -> pa.Table:
    """Run with what `run` gives in the place of this module's names."""
    return connection_.execute(text_, parameters_).fetch_arrow_table()  # type: ignore[name-defined]  # noqa: F821

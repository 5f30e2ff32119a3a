"""Run one SQL step over Arrow frames."""

from __future__ import annotations

import threading
from typing import Any

import duckdb
import pyarrow as pa

_local = threading.local()


def _connection() -> duckdb.DuckDBPyConnection:
    """Give this thread's own in-memory engine; it keeps no data between steps."""
    if not hasattr(_local, "connection"):
        _local.connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 2,
                # Nothing is read but what is handed in, and nothing is fetched.
                "enable_external_access": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
    connection: duckdb.DuckDBPyConnection = _local.connection
    return connection


def run(text: str, parameters: dict[str, Any] | None = None, /, **frames: pa.Table) -> pa.Table:
    """Run `text` over the named frames and give its rows.

    Input: frames by the names that the text uses; `$name` parameters.
    Output: the rows the text selects, in the order it asks for (without ORDER BY: any order).
    Errors: duckdb.Error for a text or a frame that does not fit, with the text in it.
    """
    connection = _connection()
    for name, frame in frames.items():
        connection.register(name, frame)
    try:
        return connection.execute(text, parameters or None).fetch_arrow_table()
    finally:
        for name in frames:
            connection.unregister(name)

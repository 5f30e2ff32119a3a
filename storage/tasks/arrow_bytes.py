"""A table of Arrow as bytes, and back: how tables travel in a column of a Spark frame."""

from __future__ import annotations

import pyarrow as pa

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")  # most columns of a row are null


def as_bytes(rows: pa.Table) -> bytes:
    """Returns a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def from_bytes(value: pa.BinaryScalar) -> pa.Table:
    """Returns the table of an Arrow stream."""
    with pa.ipc.open_stream(value.as_buffer()) as stream:
        return stream.read_all()

"""The snapshots of a lake of years are compared with its changes, not each with all of them."""

from __future__ import annotations

import duckdb

from storage.verify.invariant import HALF
from storage.verify.state import OF_HALVES, _snapshot

_SNAPSHOTS = 100
_EPOCHS_OF_EACH = 100
_HALVES = 60_000
# Each snapshot with all changes before it took 3 GB for 120 of them.
_MEMORY = "400MB"


def _lake() -> duckdb.DuckDBPyConnection:
    """Returns a lake in which each half is put, and has left an epoch or two later.

    In a snapshot are the halves of its own epoch.
    """
    connection = duckdb.connect(config={"threads": 1, "memory_limit": _MEMORY})
    connection.execute("SET temp_directory = ''")
    connection.execute("SET preserve_insertion_order = false")

    epochs = _SNAPSHOTS * _EPOCHS_OF_EACH
    columns = ", ".join(f"NULL::BIGINT AS {name}" for name in OF_HALVES if name not in HALF)
    connection.execute(f"""
CREATE TABLE commits AS
SELECT epoch, MAP {{'snapshot': (epoch % {_EPOCHS_OF_EACH} = 0)::INT}} AS counts
FROM range(1, {epochs + 1}) t(epoch);

CREATE TABLE pending AS
WITH halves AS (
  SELECT 1 + half * ({epochs} - 2) // {_HALVES} AS epoch, half % 4 AS queue_id,
    half AS queue_offset
  FROM range({_HALVES}) t(half)
)
SELECT epoch, queue_id, queue_offset, 'put' AS change, {columns} FROM halves
UNION ALL
SELECT epoch + 1 + queue_offset % 2, queue_id, queue_offset, 'left', {columns} FROM halves
UNION ALL
SELECT s.epoch, queue_id, queue_offset, 'snapshot', {columns}
FROM halves h JOIN (FROM commits WHERE counts['snapshot'] = 1) s
  ON s.epoch >= h.epoch AND s.epoch < h.epoch + 1 + queue_offset % 2;
""")
    return connection


def _found(connection: duckdb.DuckDBPyConnection) -> list[tuple[int, str, str]]:
    text = _snapshot("pending", HALF, OF_HALVES)
    return connection.execute(
        f"SELECT epoch, place, problem FROM ({text}) WHERE problem IS NOT NULL ORDER BY ALL"
    ).fetchall()


def test_many_snapshots_need_little_memory_and_each_wrong_row_is_found() -> None:
    with _lake() as connection:
        assert _found(connection) == []

        rows = connection.execute(
            "SELECT epoch, queue_id, queue_offset FROM pending WHERE change = 'snapshot' "
            "AND epoch IN (300, 9000) ORDER BY ALL"
        ).fetchall()
        (lost_epoch, lost_queue, lost_offset), *_, (put_epoch, put_queue, put_offset) = rows
        connection.execute(
            "DELETE FROM pending WHERE change = 'snapshot' AND epoch = ? AND queue_offset = ?",
            [lost_epoch, lost_offset],
        )
        connection.execute(
            "DELETE FROM pending WHERE change = 'put' AND queue_offset = ?", [put_offset]
        )

        assert _found(connection) == [
            (lost_epoch, f"{lost_queue}-{lost_offset}", "not in the snapshot"),
            (
                put_epoch,
                f"{put_queue}-{put_offset}",
                "in the snapshot, and no change put it there",
            ),
        ]

"""Real topics as they stand at the newest committed epoch: queues, messages kept, limits."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames_ops.sql import run
from pipelines.epoch.recorded_state import topics_before
from pipelines.errors import OperatorError
from pipelines.explain.rows import Row, latest_committed
from pipelines.settings.nearest import did_you_mean
from storage.lake.epochs import COMMITTED
from storage.lake.integrity import require_readable
from storage.lake.lake import Lake
from storage.lake.pruned import read_rows
from storage.lake.table import queue_floor
from storage.maintenance.limits import Retention
from storage.maintenance.topic_retention import retention_of
from storage.rows import milliseconds
from txlake._committed import NAMED_EPOCHS_MAX
from txlake.protocol import FOREVER, UNDELIVERABLE_TOPIC

COLUMNS: Final = (
    "topic",
    "queues",
    "messages",
    "on_disk_bytes",
    "oldest_at",
    "newest_at",
    "keeps_ms",
    "keeps_bytes",
    "table",
)
QUEUE_COLUMNS: Final = ("topic", "queue_id", "begin_offset", "end_offset", "messages")

_ENDS = """
SELECT o.topic, o.queue_id, arg_max(o.next_offset, r.epoch) AS next_offset
FROM rows r, unnest(r.next_offsets) AS u(o) WHERE r.state = $committed AND r.epoch <= $epoch
GROUP BY ALL
"""


def read_topics(lake: Lake, default: Retention | None = None) -> list[Row]:
    """Returns every topic in the order of creation. Output: COLUMNS; ms, -1: for ever.

    Input: the settings' retention; None if it is not known: a topic without limits has null then.
    Errors: BrokenLakeError.
    """
    rows = catalog(lake)
    require_readable(lake, [_table(row) for row in rows])

    return [_topic(lake, row, default) for row in rows]


def catalog(lake: Lake) -> list[Row]:
    """Returns topic, table_id and queue_count of each topic that a committed epoch made."""
    rows: list[Row] = topics_before(lake, latest_committed(lake)[0] + 1).to_pylist()
    return rows


def require_topic(lake: Lake, name: str) -> Row:
    """Returns a topic's row of `catalog`. Errors: OperatorError when there is no such topic."""
    for row in catalog(lake):
        if row["topic"] == name:
            return row
    raise no_topic(lake, name)


def no_topic(lake: Lake, name: str) -> OperatorError:
    """Returns the error about a topic that does not exist."""
    return OperatorError(
        f"there is no topic {name!r} in the lake {lake.path}; `txlake topic list` names all"
        f"{did_you_mean(name, (row['topic'] for row in catalog(lake)))}"
    )


def _table(row: Row) -> str:
    """Returns the name of the table of a topic, from its row of `catalog`."""
    return f"topics/{row['table_id']}"


def _topic(lake: Lake, row: Row, default: Retention | None) -> Row:
    table = _table(row)
    files = lake.table(table).files()
    handle = lake.handle(table)
    own = retention_of(handle, Retention(-2, -2))  # -2: the topic has no limit of its own
    if row["topic"] == UNDELIVERABLE_TOPIC:  # an operator can still resume each message
        own = Retention()
    default_ms, default_bytes = (None, None) if default is None else (default.ms, default.bytes)

    return {
        "topic": row["topic"],
        "queues": row["queue_count"],
        "messages": pc.sum(files["num_records"]).as_py() or 0,
        "on_disk_bytes": pc.sum(files["size_bytes"]).as_py() or 0,
        "oldest_at": _statistic(files, "min.stored_at", pc.min),
        "newest_at": _statistic(files, "max.stored_at", pc.max),
        "keeps_ms": own.ms if own.ms >= FOREVER else default_ms,
        "keeps_bytes": own.bytes if own.bytes >= FOREVER else default_bytes,
        "table": table,
    }


def _statistic(files: pa.Table, column: str, aggregate: object) -> int | None:
    """Returns the minimum or maximum of an instant in the files' statistics; ms."""
    if files.num_rows == 0 or column not in files.column_names:
        return None
    at = aggregate(files[column]).as_py()  # type: ignore[operator]
    return None if at is None else milliseconds(at)


def queue_ends(lake: Lake) -> dict[tuple[str, int], int]:
    """Returns the next offset of every real queue that has had a message.

    Reads few columns of the newest rows of `epochs`: one of every NAMED_EPOCHS_MAX names every
    queue.
    """
    epoch, _ = latest_committed(lake)
    columns = ["epoch", "state", "next_offsets"]
    rows = read_rows(lake, "epochs", columns, {"epoch": (epoch - NAMED_EPOCHS_MAX, epoch)})
    ends = run(_ENDS, {"committed": COMMITTED, "epoch": epoch}, rows=rows).to_pylist()
    return {(row["topic"], row["queue_id"]): row["next_offset"] for row in ends}


def read_queues(lake: Lake, name: str) -> list[Row]:
    """Returns the queues of one topic. Output: QUEUE_COLUMNS.

    Errors: OperatorError when there is no such topic.
    """
    row = require_topic(lake, name)
    table = _table(row)
    ends = queue_ends(lake)
    require_readable(lake, [table])

    rows = []
    for queue_id in range(row["queue_count"]):
        begin = queue_floor(lake.handle(table), queue_id)
        end = ends.get((name, queue_id), 0)
        rows.append(
            {
                "topic": name,
                "queue_id": queue_id,
                "begin_offset": begin,
                "end_offset": end,
                "messages": end - begin,
            }
        )

    return rows

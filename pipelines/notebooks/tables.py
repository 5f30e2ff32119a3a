"""Notebook 1: the tables, and all that a lake says of one transaction."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from pipelines.explain.fetch import find
from pipelines.explain.report import Report, reports
from pipelines.explain.show import lines
from pipelines.explain.target import parse_target
from pipelines.notebooks.open_lake import OpenLake
from storage.errors import LakeError
from storage.rows import instant

# As in docs/protocol/tables.md "Tables", in the order of a transaction's life.
ONE_ROW_IS: Final = {
    "lake": "the lake",
    "half": "one record of the half topic",
    "op": "one record of the op topic",
    "schedule": "one record of the schedule topic",
    "admin": "one record of the admin topic",
    "epochs": "a state of an epoch: planned, then committed",
    "outcomes": "a half's end",
    "conflicts": "a naming, or an unreadable operation, without effect",
    "checks": "an attempt to ask",
    "delayed": "a change of what waits for its time",
    "deliveries": "what became of a message other than straight from its commit",
    "pending": "a change of a half that can still be ended",
    "waiting": "a change of a naming that waits for its half or for its set",
    "catalog": "a real topic, or a larger queue count of one",
    "consumer_offsets": "a commit of a consumer group",
    "consumer_members": "a sign of life of a member of a consumer group",
    "consumer_retries": "what became of a message that a consumer group refused",
    "consumer_dead_letters": "a message that a consumer group has given up",
}
_LIFE: Final[dict[str, Any]] = {
    "when": pl.Datetime("ms", "UTC"),
    "epoch": pl.Int64,
    "kind": pl.String,
    "what": pl.String,
}
_MESSAGE = "a delivered message of the topic "


def tables(lake: OpenLake) -> pl.DataFrame:
    """Returns the tables: what a row is, how many rows, in how many files, of which version."""
    names = lake.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal")["view_name"]
    meanings = {name: text for name, text in ONE_ROW_IS.items() if name in names}
    meanings |= {f"topics/{number}": _MESSAGE + topic for topic, number in lake.topics.items()}

    rows = []
    for table, meaning in meanings.items():
        handle = lake.lake.handle(table)
        files = pl.DataFrame(handle.get_add_actions(flatten=True))
        count = lake.sql(f'SELECT count(*) AS rows FROM "{table}"').item()
        size = files["size_bytes"].sum() / 1024 if len(files) else 0.0
        rows.append((table, meaning, count, len(files), round(size, 1), handle.version()))

    columns = ["table", "one row is", "rows", "files", "KiB", "version"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def pick_example(lake: OpenLake) -> str:
    """Returns a transaction worth telling: one that a check ended, if any; of those the most asked.

    Errors: LakeError if there is no transaction yet.
    """
    examples = lake.sql(
        """
        SELECT h.transaction_id FROM halves h
        LEFT JOIN outcomes o ON h.queue_id = o.queue_id AND h.queue_offset = o.queue_offset
        LEFT JOIN checks c ON h.queue_id = c.queue_id AND h.queue_offset = c.queue_offset
        GROUP BY h.transaction_id
        ORDER BY coalesce(bool_or(o.cause = 'check_answer'), false) DESC,
          coalesce(bool_or(o.outcome = 'COMMITTED'), false) DESC,
          count(c.check_id) DESC, min(h.epoch), h.transaction_id LIMIT 1
        """
    )

    if examples.is_empty():
        raise LakeError(f"the lake {lake.lake.path} has no transaction that can be read yet")
    return str(examples.item())


def life(lake: OpenLake, target: str) -> pl.DataFrame:
    """Returns what happened to a transaction id, or to half <queue>-<offset>, event by event."""
    events = [
        (instant(event.at), event.epoch, event.kind, event.text)
        for report in _reports(lake, target)
        for event in report.events
    ]
    return pl.DataFrame(events, schema=_LIFE, orient="row")


def verdict(lake: OpenLake, target: str) -> str:
    """Returns how a transaction stands and by which rule, as `txlake tx explain` says it."""
    return "\n".join(line for report in _reports(lake, target) for line in lines(report))


def _reports(lake: OpenLake, target: str) -> list[Report]:
    return reports(find(lake.lake, parse_target(target)), lake.last.epoch_at)[0]

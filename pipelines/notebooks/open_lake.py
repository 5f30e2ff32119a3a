"""A lake opened for reading: every table by its name in SQL, up to the newest committed epoch."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl

from pipelines.lake_sql import LakeSql
from storage.errors import NotALakeError
from storage.files.location import lake_location
from storage.lake.lake import Lake
from storage.rows import instant

if TYPE_CHECKING:
    from txlake import BodySchema

# Halves that can be read, and their waits. A wait lasts from the half's landing, or from its re-arm
# in the recorded state after a discard, to the next outcome.
_VIEWS = """
CREATE VIEW plans AS FROM epochs WHERE state = 'planned';
CREATE VIEW halves AS FROM half WHERE error IS NULL;
CREATE TABLE waits AS
WITH armed AS (
  SELECT queue_id, queue_offset, arm, epoch, stored_at AS at FROM pending WHERE change = 'put'
  UNION ALL
  SELECT queue_id, queue_offset, arm, epoch, decided_at FROM outcomes
),
rearmed AS (
  SELECT a.queue_id, a.queue_offset, min(a.epoch) AS epoch, arg_min(a.at, a.epoch) AS at
  FROM armed a JOIN halves h ON a.queue_id = h.queue_id AND a.queue_offset = h.queue_offset
  SEMI JOIN outcomes d ON a.queue_id = d.queue_id AND a.queue_offset = d.queue_offset
    AND d.outcome = 'DISCARDED' AND d.arm = a.arm - 1
  WHERE a.arm > 0
  GROUP BY a.queue_id, a.queue_offset, a.arm HAVING min(a.epoch) > any_value(h.epoch)
),
begun AS (
  SELECT queue_id, queue_offset, epoch AS from_epoch, stored_at AS from_at FROM halves
  UNION ALL
  FROM rearmed
)
SELECT b.queue_id, b.queue_offset, h.producer_group, h.transaction_id, h.real_topic, b.from_epoch,
  b.from_at, o.epoch AS to_epoch, o.decided_at AS to_at, o.outcome, o.cause
FROM begun b
JOIN halves h ON b.queue_id = h.queue_id AND b.queue_offset = h.queue_offset
LEFT JOIN outcomes o
  ON b.queue_id = o.queue_id AND b.queue_offset = o.queue_offset AND b.from_epoch <= o.epoch
QUALIFY row_number() OVER
  (PARTITION BY b.queue_id, b.queue_offset, b.from_epoch ORDER BY o.epoch) = 1
"""


class OpenLake:
    """A lake as it was when it was opened; open it again to see what came since.

    `epoch` is the newest committed one; rows of later epochs are hidden. Beside the lake's tables
    SQL sees `messages` (all topic tables, with their topic), `plans`, `halves`, `waits`, and by its
    name each topic whose bodies are columns.
    """

    def __init__(self, lake: Lake, bodies: Mapping[str, BodySchema] | None = None) -> None:
        self.lake = lake
        self.lake_id = lake.lake_id()
        self._connection = duckdb.connect(config={"threads": 2})
        self._connection.execute("SET TimeZone = 'UTC'")
        views = LakeSql(lake, self._connection, bodies)
        views.add_all()
        self.last, self.epoch, self.topics = views.last, views.epoch, views.topics
        self._connection.execute(_VIEWS)
        views.add_topics_with_columns(taken=("plans", "halves", "waits"))

    def sql(self, text: str, /, **values: Any) -> pl.DataFrame:
        """Returns the rows of a query over the tables; `$name` in it is a value of that name."""
        return pl.DataFrame(self._connection.execute(text, values or None).fetch_arrow_table())

    def _repr_html_(self) -> str:
        return (
            f"The lake <b>{html.escape(self.lake.path)}</b> ({self.lake_id}), up to epoch "
            f"{self.epoch} of {self.last_at():%Y-%m-%d %H:%M:%S} UTC"
        )

    def last_at(self) -> dt.datetime:
        """Returns `epoch_at` of the newest committed epoch."""
        return instant(self.last.epoch_at)


def open_lake(
    path: str,
    storage_options: Mapping[str, str] | None = None,
    bodies: Mapping[str, BodySchema] | None = None,
) -> OpenLake:
    """Returns an opened lake.

    Input: its folder, or its place in an object store; delta-rs's options for that, beside what the
    environment says (AWS_ACCESS_KEY_ID ...). `bodies`: by topic, the schema of its bodies
    (`txlake.read_schema`).
    Errors: LakeError if something that was committed is missing, or nothing is committed yet.
    """
    try:
        return OpenLake(Lake(lake_location(path, storage_options)), bodies)
    except NotALakeError as error:
        raise NotALakeError(
            f"{error}. `make demo` leaves one in demo-lake/; name another by TXLAKE_LAKE=FOLDER"
        ) from error


def show_whole_tables() -> None:
    """Makes a notebook show frames whole, up to 50 rows."""
    pl.Config(
        tbl_rows=50,
        tbl_cols=20,
        fmt_str_lengths=120,
        tbl_hide_dataframe_shape=True,
        tbl_width_chars=160,
    )

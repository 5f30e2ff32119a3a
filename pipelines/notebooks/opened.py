"""A lake opened for reading: every table by its name in SQL, up to the newest committed epoch."""

from __future__ import annotations

import html
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from storage.epochs import read_progress
from storage.errors import LakeError, NotALakeError
from storage.lake import Lake
from storage.schemas import TABLES, TOPIC

CONSUMER_OFFSETS = "consumer_offsets"
# Halves that can be read, each with the first half of its set (PROTOCOL.md "Sets"), and every time
# that one of them waited: from its landing, or from an operator's re-arm, to the next outcome.
_VIEWS = """
CREATE VIEW plans AS FROM epochs WHERE state = 'planned';
CREATE VIEW halves AS
SELECT *, CASE WHEN tran_size > 1 THEN min(queue_offset) OVER
    (PARTITION BY queue_id, producer_group, transaction_id, tran_size)
  ELSE queue_offset END AS unit_offset
FROM half WHERE error IS NULL;
CREATE VIEW rearms AS
SELECT DISTINCT h.queue_id, h.unit_offset, c.epoch
FROM (SELECT epoch, regexp_extract(target, '^half:([0-9]+)-([0-9]+)$', ['queue_id', 'offset']) AS at
      FROM admin WHERE result = 'rearmed') c
JOIN halves h ON h.queue_id = c.at.queue_id::INTEGER AND h.queue_offset = c.at.offset::BIGINT;
CREATE TABLE waits AS
WITH begun AS (
  SELECT queue_id, queue_offset, producer_group, transaction_id, real_topic,
    epoch AS from_epoch, stored_at AS from_at
  FROM halves
  UNION ALL
  SELECT h.queue_id, h.queue_offset, h.producer_group, h.transaction_id, h.real_topic,
    r.epoch, p.epoch_at
  FROM rearms r JOIN halves h ON r.queue_id = h.queue_id AND r.unit_offset = h.unit_offset
  JOIN plans p ON r.epoch = p.epoch
)
SELECT b.*, o.epoch AS to_epoch, o.decided_at AS to_at, o.outcome, o.cause
FROM begun b LEFT JOIN outcomes o
  ON b.queue_id = o.queue_id AND b.queue_offset = o.queue_offset AND b.from_epoch <= o.epoch
QUALIFY row_number() OVER
  (PARTITION BY b.queue_id, b.queue_offset, b.from_epoch ORDER BY o.epoch) = 1
"""


class OpenLake:
    """A lake as it was when it was opened. Open it again to see what came since.

    `epoch` is the newest committed one; rows of later epochs are not seen. Beside the lake's tables
    SQL sees `messages` (all topic tables, with their topic), `plans`, `halves`, `rearms`, `waits`.
    """

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.lake_id = lake.lake_id()
        progress = read_progress(lake)
        if progress.last is None:
            raise LakeError(f"the lake {lake.path} has no committed epoch yet")
        self.last = progress.last
        self.epoch = self.last.epoch
        self._connection = duckdb.connect(config={"threads": 2})
        self._connection.execute("SET TimeZone = 'UTC'")
        for table in TABLES:
            self._add(table, lake.schema(table))
        self._add_consumer_offsets()
        self.topics = dict(self._rows("SELECT DISTINCT topic, table_id FROM catalog ORDER BY 2"))
        for table in self.topic_tables():
            self._add(table, TOPIC)
        self._connection.register("no_messages", TOPIC.empty_table())
        self._connection.execute(f"CREATE VIEW messages AS {self._messages()}; {_VIEWS}")

    def sql(self, text: str, /, **values: Any) -> pl.DataFrame:
        """Run a query over the tables; `$name` in it is a value of that name."""
        found = pl.from_arrow(self._connection.execute(text, values or None).fetch_arrow_table())
        assert isinstance(found, pl.DataFrame)
        return found

    def path_of(self, table: str) -> str:
        """Give the place of a table, for other readers."""
        return self.lake.table_path(table)

    def topic_tables(self) -> list[str]:
        """Name the tables of the real topics."""
        return [f"topics/{table_id}" for table_id in self.topics.values()]

    def _repr_html_(self) -> str:
        at = self.last_at()
        return (
            f"The lake <b>{html.escape(self.lake.path)}</b> ({self.lake_id}), up to epoch "
            f"{self.epoch} of {at:%Y-%m-%d %H:%M:%S} UTC"
        )

    def last_at(self) -> Any:
        """Give T of the newest committed epoch."""
        ((at,),) = self._rows(f"SELECT max(epoch_at) FROM plans WHERE epoch = {self.epoch}")
        return at

    def _rows(self, text: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(text).fetchall()

    def _add(self, table: str, schema: pa.Schema) -> None:
        """Let SQL see a table, without the rows of epochs that are not committed."""
        name = "all_" + table.replace("/", "_")
        self._connection.register(name, self.lake.dataset(table))
        before = f" WHERE epoch <= {self.epoch}" if "epoch" in schema.names else ""
        self._connection.execute(f'CREATE VIEW "{table}" AS FROM {name}{before}')

    def _add_consumer_offsets(self) -> None:
        """Let SQL see the table that consumers make; there is none before the first of them."""
        try:
            self._add(CONSUMER_OFFSETS, self.lake.dataset(CONSUMER_OFFSETS).schema)
        except TableNotFoundError:
            return

    def _messages(self) -> str:
        parts = ["SELECT NULL::VARCHAR AS topic, * FROM no_messages"]
        parts += [
            f"SELECT '{topic}', * FROM \"topics/{table_id}\""
            for topic, table_id in self.topics.items()
        ]
        return " UNION ALL ".join(parts)


def open_lake(path: str) -> OpenLake:
    """Open a lake by its folder or URI.

    Errors: NotALakeError, NewerLakeError; LakeError where nothing is committed yet.
    """
    try:
        return OpenLake(Lake(path))
    except NotALakeError as error:
        raise NotALakeError(
            f"{error}. `make demo` leaves one in demo-lake/; name another by TXLAKE_LAKE=FOLDER"
        ) from error


def show_whole_tables() -> None:
    """Let a notebook show frames whole, up to 50 rows."""
    pl.Config(tbl_rows=50, tbl_cols=20, fmt_str_lengths=120, tbl_hide_dataframe_shape=True,
              tbl_width_chars=160)  # fmt: skip

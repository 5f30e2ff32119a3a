"""A lake's tables in DuckDB, narrow: each file is read once, and bodies are only hashed.

`all_<table>` has every row. DuckDB reads the files itself. If it would take their path for a
pattern, delta-rs reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import BrokenLakeError, MissingTableError
from storage.lake.chain import in_chain
from storage.lake.epochs import NO_PROGRESS, read_progress
from storage.lake.lake import Lake
from storage.lake.store_trouble import store_trouble
from storage.lake.whole import Fault, chain_faults, faults, steady
from storage.schemas import FORMAT_VERSION, TABLES, TOPIC

_EPOCHS_AT_ONCE = 500

# Hashes of what a reader sees of a message; the order of a map's entries does not count.
_PRINTS = """hash(body) AS body_print,
  hash(keys, tags, epoch_ms(born_at), list_sort(map_entries(properties)), raw_headers,
    producer_group, transaction_id) AS header_print"""
_MESSAGE = f"""queue_id, queue_offset, epoch_ms(stored_at) AS stored_ms, epoch, producer_group,
  transaction_id, real_topic, real_queue_id, delay_level, epoch_ms(deliver_at) AS deliver_ms,
  immunity_ms, tran_size, tran_seq, error, {_PRINTS}"""

COLUMNS = {
    "epochs": """epoch, state, epoch_ms(epoch_at) AS at_ms, known_at, halves_known_at,
    epoch_ms(asked_at) AS asked_ms, ranges,
      next_offsets, hash(parameters) AS parameters_id, parameters, counts, cluster_id, topic_ids,
      tables""",
    "half": _MESSAGE,
    "schedule": _MESSAGE,
    "op": """queue_id, queue_offset, epoch_ms(stored_at) AS stored_ms, epoch, producer_group,
      decision, half_offsets, transaction_ids, from_check, actor, error""",
    "admin": "queue_id, queue_offset, epoch, command, target, result, error",
    "delayed": "* EXCLUDE (deliver_at), epoch_ms(deliver_at) AS deliver_ms",
    "deliveries": "* EXCLUDE (decided_at), epoch_ms(decided_at) AS decided_ms",
    "outcomes": "* EXCLUDE (decided_at), epoch_ms(decided_at) AS decided_ms",
    "conflicts": "* EXCLUDE (decided_at), epoch_ms(decided_at) AS decided_ms",
    "checks": "* EXCLUDE (sent_at), epoch_ms(sent_at) AS sent_ms",
    "pending": """* EXCLUDE (stored_at, deliver_at, checked_at, last_answer_at),
      epoch_ms(stored_at) AS stored_ms, epoch_ms(deliver_at) AS deliver_ms,
      epoch_ms(checked_at) AS checked_ms, epoch_ms(last_answer_at) AS last_answer_ms""",
    "waiting": """* EXCLUDE (stored_at, landed_at), epoch_ms(stored_at) AS stored_ms,
      epoch_ms(landed_at) AS landed_ms""",
    "catalog": "* EXCLUDE (created_at), epoch_ms(created_at) AS created_ms",
}  # fmt: skip
_TOPIC_COLUMNS = f"""queue_id, queue_offset, epoch_ms(stored_at) AS stored_ms, source, real_topic,
  asked_queue_id, reason, half_queue_id, half_queue_offset, epoch, {_PRINTS}"""

# Each set of parameters once: all epochs of a run have the same ones.
_PARAMETER_SETS = """
CREATE TABLE parameter_sets AS
SELECT id,
  p['transaction_timeout_ms']::BIGINT AS transaction_timeout_ms,
  p['check_interval_ms']::BIGINT AS check_interval_ms, p['check_max']::INTEGER AS check_max,
  p['half_retention_ms']::BIGINT AS half_retention_ms,
  p['check_rate_max']::BIGINT AS check_rate_max,
  trim(p['late_end_policy'], '"') AS late_end_policy,
  p['orphan_operation_ttl_ms']::BIGINT AS orphan_operation_ttl_ms,
  p['auto_create_topics']::BOOLEAN AS auto_create_topics,
  p['default_queue_count']::INTEGER AS default_queue_count,
  p['topics_max']::BIGINT AS topics_max, p['delay_levels_ms']::BIGINT[] AS delay_levels_ms,
  p['deliver_at_max_ms']::BIGINT AS deliver_at_max_ms,
  coalesce(json_extract(p['floor'], '$.epoch')::BIGINT, 0) AS floor_epoch,
  json_extract_string(p['wire'], '$.topics.half') AS half_topic,
  json_extract_string(p['wire'], '$.topics.op') AS op_topic,
  json_extract_string(p['wire'], '$.topics.schedule') AS schedule_topic,
  json_extract_string(p['wire'], '$.topics.admin') AS admin_topic
FROM (SELECT parameters_id AS id, any_value(parameters) AS p FROM all_epochs
      WHERE state = 'planned' GROUP BY parameters_id)
"""
_CONSUMER_OFFSETS = pa.schema(
    [("consumer_group", pa.string()), ("topic", pa.string()), ("queue_id", pa.int32()),
     ("queue_offset", pa.int64()), ("generation", pa.int64())]
)  # fmt: skip


# Columns that format 1 lacks: its `pending` and `waiting` had snapshots only, its `delayed` the
# messages that came in.
_SINCE_FORMAT_2: dict[str, tuple[str, ...]] = {
    "epochs": ('NULL::STRUCT("table" VARCHAR, version BIGINT, rows BIGINT)[] AS tables',),
    "pending": ("'snapshot' AS change", "NULL::BIGINT AS unit_offset"),
    "waiting": ("'snapshot' AS change", "NULL::BIGINT[] AS refused_units"),
    "delayed": ("'put' AS change",),
}


def read_lake(connection: duckdb.DuckDBPyConnection, lake: Lake, format_version: int) -> None:
    """Fills `all_<table>`, `all_messages`, `parameter_sets`, `topic_tables`, `chain` and
    `table_problems`.

    `epochs` and `consumer_offsets` are read first, so the other tables hold at least the rows that
    these two refer to, even while a job or a consumer runs. A table that is missing or cannot be
    read is empty, and one row of `table_problems` says so.
    """
    reader = _Reader(connection, lake, format_version)
    connection.execute("CREATE TABLE table_problems (name VARCHAR, problem VARCHAR)")
    connection.execute("CREATE TABLE chain (epoch BIGINT, state VARCHAR, problem VARCHAR)")
    reader.read("epochs", COLUMNS["epochs"])
    connection.execute(_PARAMETER_SETS)
    connection.execute("ALTER TABLE all_epochs DROP COLUMN parameters")
    told = _read_logs(connection, lake) if format_version == FORMAT_VERSION else set()
    reader.look("lake")
    offsets = reader.source("consumer_offsets", _CONSUMER_OFFSETS)
    if offsets is None:
        offsets = _CONSUMER_OFFSETS.empty_table()
    elif lake.table("consumer_offsets").owner() not in ("", lake.tables_id()):
        reader.problems["consumer_offsets"] = "belongs to another lake"
    names = ", ".join(_CONSUMER_OFFSETS.names)
    reader.fill("consumer_offsets", "CREATE TABLE all_consumer_offsets AS", names, offsets)
    for table, columns in COLUMNS.items():
        if table != "epochs":
            reader.read(table, columns)
    _read_topics(connection, reader)
    for table, problem in sorted(reader.problems.items()):
        if table not in told:
            connection.execute("INSERT INTO table_problems VALUES (?, ?)", [table, problem])


def _read_logs(connection: duckdb.DuckDBPyConnection, lake: Lake) -> set[str]:
    """Asks the logs whether the lake is whole, and the rows of `epochs` whether they are a chain.

    Output: the tables with which something is wrong.
    """
    progress = NO_PROGRESS

    def look() -> list[Fault]:
        nonlocal progress
        progress = read_progress(lake)
        return faults(lake, progress)

    try:
        problems = {
            fault.table: fault.problem
            for fault in steady(lake, look)
            if fault.epoch is None and not fault.is_early  # other invariants look at these
        }
        tables = {*TABLES, *progress.tables}
    except BrokenLakeError as error:
        problems, tables = {"epochs": error.problem}, {"epochs"}
    for table in sorted(tables | problems.keys()):
        row = [table, problems.get(table)]
        connection.execute("INSERT INTO table_problems VALUES (?, ?)", row)
    for rows, found in _chained_rows(lake):
        broken = {(fault.epoch, fault.state): fault.problem for fault in found}
        connection.executemany(
            "INSERT INTO chain VALUES (?, ?, ?)",
            [[r["epoch"], r["state"], broken.get((r["epoch"], r["state"]))] for r in rows],
        )
    return {table for table, problem in problems.items() if problem is not None}


def _chained_rows(lake: Lake) -> Iterator[tuple[list[dict[str, Any]], list[Fault]]]:
    """Returns all rows of `epochs`, some hundred at a time, with the faults of their digests."""
    before: str | None = None
    try:
        newest = lake.last("epochs", "epoch") or 0
    except BrokenLakeError:
        return
    for low in range(1, newest + 1, _EPOCHS_AT_ONCE):
        within = (pc.field("epoch") >= low) & (pc.field("epoch") < low + _EPOCHS_AT_ONCE)
        try:
            rows = in_chain(lake.read("epochs", where=within).to_pylist())
        except BrokenLakeError:
            return
        if not rows:  # deleted
            continue
        if rows[0]["epoch"] == 1:
            before = lake.tables_id()
        yield rows, chain_faults(rows, before)
        before = rows[-1]["digest"]


def _read_topics(connection: duckdb.DuckDBPyConnection, reader: _Reader) -> None:
    found = connection.execute(
        "SELECT DISTINCT topic, table_id FROM all_catalog ORDER BY table_id, topic"
    ).fetchall()
    columns = f"$topic::VARCHAR AS topic, {_TOPIC_COLUMNS}"
    empty = TOPIC.empty_table()
    reader.fill("topics", "CREATE TABLE all_messages AS", columns, empty, {"topic": None})
    connection.execute("CREATE TABLE topic_tables (topic VARCHAR, table_id BIGINT)")
    for topic, table_id in found:
        table = f"topics/{table_id}"
        source = reader.source(table, TOPIC)
        if source is not None:
            reader.fill(table, "INSERT INTO all_messages", columns, source, {"topic": topic})
            connection.execute("INSERT INTO topic_tables VALUES (?, ?)", [topic, table_id])


class _Reader:
    def __init__(
        self, connection: duckdb.DuckDBPyConnection, lake: Lake, format_version: int
    ) -> None:
        self._connection = connection
        self._lake = lake
        self._format_version = format_version
        self.problems: dict[str, str] = {}

    def read(self, table: str, columns: str) -> None:
        """Puts a table's rows into `all_<table>`."""
        source = self.source(table, TABLES[table])
        if source is None:
            self.problems.setdefault(table, "is missing")
            source = TABLES[table].empty_table()
        elif self._format_version < FORMAT_VERSION and table in _SINCE_FORMAT_2:
            columns = columns.removesuffix("tables").rstrip(", \n")
            columns = ", ".join([columns, *_SINCE_FORMAT_2[table]])
        begin = f"CREATE TABLE all_{table} AS"
        if not self.fill(table, begin, columns, source):
            self.fill(table, begin, columns, TABLES[table].empty_table())

    def look(self, table: str) -> None:
        """Checks that a table without invariants can be read."""
        try:
            self._lake.read(table)
        except BrokenLakeError as error:
            self.problems[table] = error.problem

    def source(self, table: str, schema: pa.Schema) -> Any:
        """Returns what DuckDB can read a table's newest version from; None without a table."""
        try:
            handle = self._lake.handle(table)
        except MissingTableError:
            return None
        except BrokenLakeError as error:
            self.problems[table] = error.problem
            return schema.empty_table()
        files = handle.file_uris()
        if not files:
            return schema.empty_table()
        if not self._lake.place.is_local:
            return self._lake.dataset(table)
        # DuckDB takes *, ? and [ in a path for a pattern; delta-rs writes some characters as %20.
        path = self._lake.path
        if not files[0].startswith(path) or set("*?[") & set(path):
            return handle.to_pyarrow_dataset()
        try:
            return self._connection.read_parquet(files)
        except (duckdb.Error, OSError) as error:
            self.problems[table] = _unreadable(error)
            return schema.empty_table()

    def fill(
        self,
        table: str,
        begin: str,
        columns: str,
        source: Any,
        parameters: dict[str, str | None] | None = None,
    ) -> bool:
        """Runs `begin` with the columns of a source. Output: whether its files can be read."""
        self._connection.register("source", source)
        try:
            self._connection.execute(f"{begin} SELECT {columns} FROM source", parameters)
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            trouble = store_trouble(self._lake.place, error)
            if trouble is not None:
                raise trouble from error
            self.problems[table] = _unreadable(error)
            return False
        finally:
            self._connection.unregister("source")
        return True


def _unreadable(error: BaseException) -> str:
    return f"has a file that cannot be read: {str(error).splitlines()[0]}"

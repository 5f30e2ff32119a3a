"""Bring a lake's tables into DuckDB, narrow: each file is read once, bodies only to be hashed.

`all_<table>` has every row. Local files are read by DuckDB itself; of a lake elsewhere the files
come through delta-rs.
"""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from storage.errors import LakeError, NotALakeError
from storage.lake import Lake
from storage.schemas import TABLES, TOPIC

# What a reader sees of a message; the order of a map's entries is none of it.
_PRINTS = """hash(body) AS body_print,
  hash(keys, tags, epoch_ms(born_at), list_sort(map_entries(properties)), raw_headers,
    producer_group, transaction_id) AS header_print"""
_MESSAGE = f"""queue_id, queue_offset, epoch_ms(stored_at) AS stored_ms, epoch, producer_group,
  transaction_id, real_topic, real_queue_id, delay_level, epoch_ms(deliver_at) AS deliver_ms,
  immunity_ms, tran_size, tran_seq, error, {_PRINTS}"""

COLUMNS = {
    "epochs": """epoch, state, epoch_ms(epoch_at) AS at_ms, known_at, halves_known_at,
    epoch_ms(asked_at) AS asked_ms, ranges,
      next_offsets, hash(parameters) AS parameters_id, parameters, counts, cluster_id, topic_ids""",
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

# Each set of parameters once: all epochs of a run have the same.
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


def read_lake(connection: duckdb.DuckDBPyConnection, lake: Lake) -> None:
    """Fill `all_<table>`, `all_messages`, `parameter_sets` and `topic_tables`.

    `epochs` and `consumer_offsets` come first: what a running job or consumer writes meanwhile is
    then more than they speak of, never less.
    Errors: NotALakeError when a table is missing, LakeError when a file is.
    """
    try:
        _read_all(connection, _Reader(connection, lake))
    except (duckdb.IOException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise LakeError(f"a file of the lake {lake.path} cannot be read: {reason}") from error


def _read_all(connection: duckdb.DuckDBPyConnection, reader: _Reader) -> None:
    reader.read("epochs", COLUMNS["epochs"])
    connection.execute(_PARAMETER_SETS)
    connection.execute("ALTER TABLE all_epochs DROP COLUMN parameters")
    offsets = reader.source("consumer_offsets", _CONSUMER_OFFSETS)
    if offsets is None:
        offsets = _CONSUMER_OFFSETS.empty_table()
    names = ", ".join(_CONSUMER_OFFSETS.names)
    reader.fill("CREATE TABLE all_consumer_offsets AS", names, offsets)
    for table, columns in COLUMNS.items():
        if table != "epochs":
            reader.read(table, columns)
    _read_topics(connection, reader)


def _read_topics(connection: duckdb.DuckDBPyConnection, reader: _Reader) -> None:
    found = connection.execute(
        "SELECT DISTINCT topic, table_id FROM all_catalog ORDER BY table_id, topic"
    ).fetchall()
    columns = f"$topic::VARCHAR AS topic, {_TOPIC_COLUMNS}"
    reader.fill("CREATE TABLE all_messages AS", columns, TOPIC.empty_table(), {"topic": None})
    connection.execute("CREATE TABLE topic_tables (topic VARCHAR, table_id BIGINT)")
    for topic, table_id in found:
        source = reader.source(f"topics/{table_id}", TOPIC)
        if source is not None:
            reader.fill("INSERT INTO all_messages", columns, source, {"topic": topic})
            connection.execute("INSERT INTO topic_tables VALUES (?, ?)", [topic, table_id])


class _Reader:
    def __init__(self, connection: duckdb.DuckDBPyConnection, lake: Lake) -> None:
        self._connection = connection
        self._lake = lake

    def read(self, table: str, columns: str) -> None:
        """Put a table's rows into `all_<table>`."""
        source = self.source(table, TABLES[table])
        if source is None:
            raise NotALakeError(
                f"{self._lake.path} is not a whole lake: its table {table} is missing"
            )
        self.fill(f"CREATE TABLE all_{table} AS", columns, source)

    def source(self, table: str, schema: pa.Schema) -> Any:
        """Give what DuckDB can read a table's newest version from; None: there is no table."""
        try:
            handle = self._lake.handle(table)
        except TableNotFoundError:
            return None
        files = handle.file_uris()
        if not files:
            return schema.empty_table()
        # DuckDB reads local paths, and as patterns; delta-rs gives them with %20 and the like.
        path = self._lake.path
        if "://" in path or not files[0].startswith(path) or set("*?[") & set(path):
            return handle.to_pyarrow_dataset()
        return self._connection.read_parquet(files)

    def fill(
        self,
        begin: str,
        columns: str,
        source: Any,
        parameters: dict[str, str | None] | None = None,
    ) -> None:
        """Run `begin` with the columns of a source."""
        self._connection.register("source", source)
        try:
            self._connection.execute(f"{begin} SELECT {columns} FROM source", parameters)
        except (duckdb.IOException, OSError) as error:
            raise LakeError(
                f"a file of the lake {self._lake.path} cannot be read: {str(error).splitlines()[0]}"
            ) from error
        finally:
            self._connection.unregister("source")

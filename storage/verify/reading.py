"""A lake's tables in DuckDB, narrow: each file is read once, and bodies are only hashed.

`all_<table>` has every row. DuckDB reads the files itself; delta-rs reads those whose path DuckDB
takes for a pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import BrokenLakeError, MissingTableError
from storage.lake.chain import chain_order
from storage.lake.integrity import Fault, chain_faults, find_faults, retry_while_written
from storage.lake.lake import Lake
from storage.lake.progress import NO_PROGRESS, read_progress
from storage.lake.table import deleted_epoch, deleted_rows, queue_floor
from storage.schemas import CONSUMER_OFFSETS, CONSUMER_TABLES, DIGEST_FORMAT, TABLES, TOPIC
from storage.verify.reader import Reader

_EPOCHS_AT_ONCE = 500

# Hashes of the parts of a message that a reader sees; the order of a map's entries does not count.
_PRINTS = """hash(body) AS body_print,
  hash(keys, tags, epoch_ms(born_at), list_sort(map_entries(properties)), raw_headers,
    producer_group, transaction_id) AS header_print"""
_MESSAGE = f"""queue_id, queue_offset, epoch_ms(stored_at) AS stored_ms, epoch, producer_group,
  transaction_id, real_topic, real_queue_id, delay_level, epoch_ms(deliver_at) AS deliver_ms,
  immunity_ms, tran_size, tran_seq, error, {_PRINTS}, delay_ms"""

COLUMNS = {
    "epochs": """epoch, state, epoch_ms(epoch_at) AS at_ms, known_at, halves_known_at,
    epoch_ms(asked_at) AS asked_ms, ranges,
      next_offsets, hash(parameters) AS parameters_id, parameters, counts, cluster_id, topic_ids,
      rule_version, tables""",
    "half": _MESSAGE,
    "schedule": _MESSAGE,
    "op": """queue_id, queue_offset, epoch_ms(stored_at) AS stored_ms, epoch, producer_group,
      decision, half_offsets, transaction_ids, from_check, actor, error,
      is_signed""",
    "admin": "queue_id, queue_offset, epoch, command, target, result, error",
    "delayed": "* EXCLUDE (deliver_at), epoch_ms(deliver_at) AS deliver_ms",
    "deliveries": "* EXCLUDE (decided_at), epoch_ms(decided_at) AS decided_ms",
    "outcomes": "* EXCLUDE (decided_at), epoch_ms(decided_at) AS decided_ms",
    "conflicts": "* EXCLUDE (decided_at), epoch_ms(decided_at) AS decided_ms",
    "checks": "* EXCLUDE (sent_at), epoch_ms(sent_at) AS sent_ms",
    "pending": """* EXCLUDE (stored_at, age_from_at, deliver_at, deadline_at, checked_at,
        last_answer_at),
      epoch_ms(stored_at) AS stored_ms, epoch_ms(age_from_at) AS age_from_ms,
      epoch_ms(deliver_at) AS deliver_ms, epoch_ms(deadline_at) AS deadline_ms,
      epoch_ms(checked_at) AS checked_ms, epoch_ms(last_answer_at) AS last_answer_ms""",
    "waiting": """* EXCLUDE (stored_at, landed_at), epoch_ms(stored_at) AS stored_ms,
      epoch_ms(landed_at) AS landed_ms""",
    "catalog": "* EXCLUDE (created_at), epoch_ms(created_at) AS created_ms",
}
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
  coalesce(p['require_transaction_id']::BOOLEAN, false) AS require_transaction_id,
  coalesce(p['reject_after_immunity']::BOOLEAN, false) AS reject_after_immunity,
  p['auto_create_topics']::BOOLEAN AS auto_create_topics,
  p['default_queue_count']::INTEGER AS default_queue_count,
  p['topics_max']::BIGINT AS topics_max,
  coalesce(p['group_topics_max']::BIGINT, 1000000) AS group_topics_max,
  p['delay_levels_ms']::BIGINT[] AS delay_levels_ms,
  p['deliver_at_max_ms']::BIGINT AS deliver_at_max_ms,
  coalesce(p['due_at_max']::BIGINT, 253402300799999) AS due_at_max,
  coalesce(p['deliver_at_goes_first']::BOOLEAN, false) AS deliver_at_goes_first,
  coalesce(p['ages_from_known_at']::BOOLEAN, false) AS ages_from_known_at,
  coalesce(json_extract(p['floor'], '$.epoch')::BIGINT, 0) AS floor_epoch,
  coalesce(json_extract(p['floor'], '$.deleted')::BIGINT, 0) AS floor_deleted,
  json_extract_string(p['wire'], '$.topics.half') AS half_topic,
  json_extract_string(p['wire'], '$.topics.op') AS op_topic,
  json_extract_string(p['wire'], '$.topics.schedule') AS schedule_topic,
  json_extract_string(p['wire'], '$.topics.admin') AS admin_topic
FROM (SELECT parameters_id AS id, any_value(parameters) AS p FROM all_epochs
      WHERE state = 'planned' GROUP BY parameters_id)
"""
# Offsets that epochs passed because an operator had accepted that they are lost.
_LOSSES = """
CREATE TABLE losses AS
SELECT epoch, loss.topic AS topic, loss.partition AS queue_id, loss.first AS first_offset,
  loss.last AS last_offset, loss.admin_offset AS admin_offset
FROM (
  SELECT epoch, unnest(from_json(parameters['losses'],
    '[{"topic": "VARCHAR", "partition": "INTEGER", "first": "BIGINT", "last": "BIGINT",
       "admin_offset": "BIGINT"}]')) AS loss
  FROM all_epochs WHERE state = 'planned' AND map_contains(parameters, 'losses'))
"""
# Facts beside the rows of the tables.
_FACTS = """
CREATE TABLE table_problems (name VARCHAR, problem VARCHAR);
CREATE TABLE chain (epoch BIGINT, state VARCHAR, problem VARCHAR);
CREATE TABLE topic_tables (topic VARCHAR, table_id BIGINT);
-- Topics of which messages are deleted (`storage/maintenance/topic_retention.py`), and where their
-- queues begin. The columns of `gone` have names that no other table has: DuckDB puts a macro's
-- arguments in as text.
CREATE TABLE gone (
  gone_topic VARCHAR, gone_table VARCHAR, gone_epoch BIGINT, gone_rows BIGINT);
CREATE TABLE queue_floors (topic VARCHAR, queue_id INTEGER, queue_floor BIGINT)
"""
# Whether messages of a topic and an epoch are deleted.
_IS_GONE = {
    False: "CREATE MACRO is_gone(t, e) AS false",
    True: """
CREATE MACRO is_gone(t, e) AS EXISTS (FROM gone WHERE gone_topic = t AND gone_epoch >= e)
""",
}
_CONSUMER_OFFSETS = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("generation", pa.int64()),
    ]
)


def read_lake(connection: duckdb.DuckDBPyConnection, lake: Lake, format_version: int) -> None:
    """Fills the tables in `connection` that the invariants' frames are made of.

    These are `all_<table>`, `all_messages`, `parameter_sets`, `topic_tables`, `gone`,
    `queue_floors`, `chain` and `table_problems`.

    `epochs` and `consumer_offsets` are read first, so the other tables hold at least the rows that
    these two refer to, even while a job or a consumer runs. A table that is missing or cannot be
    read is empty, and one row of `table_problems` says so.
    """
    reader = Reader(connection, lake, format_version)
    connection.execute(_FACTS)

    reader.read("epochs", COLUMNS["epochs"])
    connection.execute(_PARAMETER_SETS)
    connection.execute(_LOSSES)
    connection.execute("ALTER TABLE all_epochs DROP COLUMN parameters")

    log_problems = _read_logs(connection, lake) if format_version >= DIGEST_FORMAT else set()
    reader.probe("lake")

    offsets = reader.source("consumer_offsets", _CONSUMER_OFFSETS)
    if offsets is None:
        offsets = _CONSUMER_OFFSETS.empty_table()
    elif lake.table("consumer_offsets").lake_id() not in ("", lake.majority_lake_id()):
        reader.problems["consumer_offsets"] = "belongs to another lake"

    reader.load(
        "consumer_offsets",
        "CREATE TABLE all_consumer_offsets AS",
        ", ".join(_CONSUMER_OFFSETS.names),
        offsets,
    )

    _probe_consumers(reader, lake)
    for table, columns in COLUMNS.items():
        if table != "epochs":
            reader.read(table, columns)
    _read_topics(connection, reader)

    for table, problem in sorted(reader.problems.items()):
        if table not in log_problems:
            connection.execute("INSERT INTO table_problems VALUES (?, ?)", [table, problem])


def _probe_consumers(reader: Reader, lake: Lake) -> None:
    """Checks that the other tables of consumers, if there, can be read and are this lake's."""
    for table in CONSUMER_TABLES:
        if table == CONSUMER_OFFSETS:
            continue

        try:
            lake.read(table, ["consumer_group"])
        except MissingTableError:
            continue
        except BrokenLakeError as error:
            reader.problems[table] = error.problem
            continue

        if lake.table(table).lake_id() not in ("", lake.majority_lake_id()):
            reader.problems[table] = "belongs to another lake"


def _read_logs(connection: duckdb.DuckDBPyConnection, lake: Lake) -> set[str]:
    """Checks by the logs that the lake is intact, and that the rows of `epochs` are a chain.

    Output: the tables that have a problem.
    """
    progress = NO_PROGRESS

    def find_problems() -> list[Fault]:
        nonlocal progress
        progress = read_progress(lake)
        return find_faults(lake, progress)

    try:
        problems = {
            fault.table: fault.problem
            for fault in retry_while_written(lake, find_problems)
            if fault.epoch is None and not fault.is_unplanned  # other invariants look at these
        }
        tables = {*TABLES, *progress.tables}
    except BrokenLakeError as error:
        problems = {"epochs": error.problem}
        tables = {"epochs"}

    for table in sorted(tables | problems.keys()):
        connection.execute("INSERT INTO table_problems VALUES (?, ?)", [table, problems.get(table)])

    for rows, faults in _chained_rows(lake):
        broken = {(fault.epoch, fault.state): fault.problem for fault in faults}
        connection.executemany(
            "INSERT INTO chain VALUES (?, ?, ?)",
            [
                [row["epoch"], row["state"], broken.get((row["epoch"], row["state"]))]
                for row in rows
            ],
        )

    return {table for table, problem in problems.items() if problem is not None}


def _chained_rows(lake: Lake) -> Iterator[tuple[list[dict[str, Any]], list[Fault]]]:
    """Returns all rows of `epochs`, some hundred at a time, with the faults of their digests."""
    before: str | None = None
    with suppress(BrokenLakeError):
        newest = lake.max_value("epochs", "epoch") or 0
        oldest = lake.table("epochs").min_value("epoch") or 1  # those before it are deleted
        for first in range(oldest, newest + 1, _EPOCHS_AT_ONCE):
            in_range = (pc.field("epoch") >= first) & (pc.field("epoch") < first + _EPOCHS_AT_ONCE)
            rows = chain_order(lake.read("epochs", where=in_range).to_pylist())

            if not rows:  # deleted
                continue

            if rows[0]["epoch"] == 1:
                before = lake.majority_lake_id()
            yield rows, chain_faults(rows, before)
            before = rows[-1]["digest"]


def _read_topics(connection: duckdb.DuckDBPyConnection, reader: Reader) -> None:
    """Fills `all_messages`, `topic_tables`, `gone` and `queue_floors`."""
    topics = connection.execute(
        "SELECT DISTINCT topic, table_id FROM all_catalog ORDER BY table_id, topic"
    ).fetchall()

    columns = f"$topic::VARCHAR AS topic, {_TOPIC_COLUMNS}"
    reader.load(
        "topics",
        "CREATE TABLE all_messages AS",
        columns,
        TOPIC.empty_table(),
        {"topic": None},
    )

    for topic, table_id in topics:
        table = f"topics/{table_id}"
        source = reader.source(table, TOPIC)
        if source is not None:
            reader.load(table, "INSERT INTO all_messages", columns, source, {"topic": topic})
            connection.execute("INSERT INTO topic_tables VALUES (?, ?)", [topic, table_id])
            _read_floors(connection, reader.lake, topic, table)

    (count,) = connection.execute("SELECT count(*) FROM gone").fetchall()[0]
    connection.execute(_IS_GONE[count > 0])


def _read_floors(connection: duckdb.DuckDBPyConnection, lake: Lake, topic: str, table: str) -> None:
    """Reads which messages a topic's table has deleted, and drops those deleted meanwhile."""
    try:
        handle = lake.handle(table)
    except BrokenLakeError:
        return

    epoch = deleted_epoch(handle)
    if not epoch:
        return

    connection.execute(
        "INSERT INTO gone VALUES (?, ?, ?, ?)", [topic, table, epoch, deleted_rows(handle)]
    )
    connection.execute("DELETE FROM all_messages WHERE topic = ? AND epoch <= ?", [topic, epoch])

    (queues,) = connection.execute(
        "SELECT max(queue_count) FROM all_catalog WHERE topic = ?", [topic]
    ).fetchall()[0]
    connection.executemany(
        "INSERT INTO queue_floors VALUES (?, ?, ?)",
        [[topic, queue_id, queue_floor(handle, queue_id)] for queue_id in range(queues)],
    )

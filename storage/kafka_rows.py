"""Decode Kafka records into columns, in Spark SQL.

Every record becomes exactly one row, whatever it holds: what cannot be read is named in `error`
(the first reason that applies) and kept raw. Header look-ups are `array_position` over the header
names, which Spark compiles; a lambda over the headers costs twice as much.

Source: PROTOCOL.md "Wire form" and "What can be read".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from txlake import protocol as p

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HALF, OP, SCHEDULE, ADMIN = "half", "op", "schedule", "admin"
KINDS = (HALF, OP, SCHEDULE, ADMIN)

_RESERVED = ", ".join(f"'{name}'" for name in sorted(p.RESERVED_HEADERS))
_FOREIGN = ", ".join(f"'{name}'" for name in sorted(p.FOREIGN_HEADERS))
# The largest instant that is carried, in ms: 9999-12-31. A later one is beyond every maximum.
INSTANT_MS_MAX = 253_402_300_799_999


@dataclass(frozen=True)
class WireLimits:
    """What decoding depends on: the topics' names and the configured limits."""

    topics: dict[str, str]  # kind -> Kafka topic
    check_topic_prefix: str
    message_bytes_max: int
    messages_max: int

    def own_topics(self) -> list[str]:
        """Give the names a real topic may not have."""
        return [*self.topics.values(), *p.SYSTEM_REAL_TOPICS]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _raw(name: str) -> str:
    """Give the bytes of the first header of that name, or NULL."""
    return f"get(headers.value, cast(array_position(names, '{name}') AS int) - 1)"


def _text(name: str) -> str:
    """Give a header as text, or NULL where it is missing, null or not UTF-8."""
    text = f"cast({_raw(name)} AS string)"
    return f"CASE WHEN is_valid_utf8({text}) THEN {text} END"


def _number(column: str, pattern: str, kind: str) -> str:
    return f"CASE WHEN {_full(column, pattern)} THEN try_cast({column} AS {kind}) END"


def _full(column: str, pattern: str) -> str:
    """Match the whole text: `$` would let a trailing newline pass."""
    return f"{column} RLIKE r'\\A{pattern}\\z'"


def _milliseconds(column: str) -> str:
    number = f"try_cast({column} AS bigint)"
    return (
        f"CASE WHEN {_full(column, p.NUMBER_PATTERN)} "
        f"THEN timestamp_millis(least({number}, {INSTANT_MS_MAX})) END"
    )


_FIELDS = (
    "kind", "partition AS queue_id", "offset AS queue_offset", "timestamp AS stored_at",
    "key AS raw_key", "value AS body", "headers", "names",
    f"{_text(p.PGROUP)} AS producer_group",
    f"{_text(p.UNIQ_KEY)} AS unique_key",
    f"{_text(p.REAL_TOPIC)} AS real_topic",
    f"{_text(p.REAL_QID)} AS real_qid",
    f"{_text(p.KEYS)} AS keys",
    f"{_text(p.TAGS)} AS tags",
    f"{_text(p.DELAY)} AS delay",
    f"{_text(p.DELIVER_AT)} AS deliver_at_ms",
    f"{_text(p.CHECK_IMMUNITY)} AS immunity_s",
    f"{_text(p.BORN_TIMESTAMP)} AS born_ms",
    f"{_text(p.TRAN_SIZE)} AS size_text",
    f"{_text(p.TRAN_SEQ)} AS seq_text",
    f"{_raw(p.TRAN_SIZE)} IS NULL AND {_raw(p.TRAN_SEQ)} IS NULL"
    f" AND NOT array_contains(names, '{p.TRAN_SIZE}')"
    f" AND NOT array_contains(names, '{p.TRAN_SEQ}') AS is_alone",
    f"NOT array_contains(names, '{p.TXV}') OR {_raw(p.TXV)} <=> X'31' AS is_known_version",
    f"array_contains(names, '{p.UNIQ_KEY}') AS has_unique_key",
    f"array_contains(names, '{p.PGROUP}') AS has_producer_group",
    f"CASE WHEN kind = 'op' THEN {_text(p.TRAN_TYPE)} END AS tran_type",
    f"CASE WHEN kind = 'op' THEN {_text(p.FROM_CHECK)} END AS from_check",
    f"CASE WHEN kind = 'op' THEN {_text(p.CHECK_ID)} END AS check_id",
    f"CASE WHEN kind = 'op' THEN {_text(p.REMARK)} END AS remark",
    f"CASE WHEN kind IN ('op', 'admin') THEN {_text(p.ACTOR)} END AS actor",
    f"CASE WHEN kind IN ('op', 'admin') THEN {_text(p.REASON)} END AS reason",
    f"CASE WHEN kind = 'admin' THEN {_text(p.COMMAND)} END AS command",
    f"CASE WHEN kind = 'admin' THEN {_text(p.TARGET)} END AS target",
    "CASE WHEN kind = 'op' AND is_valid_utf8(cast(value AS string)) THEN cast(value AS string) END"
    " AS offsets_text",
    f"size(array_intersect(names, array({_RESERVED}))) AS reserved_count",
)  # fmt: skip

# A user's headers are what follows the protocol's, where those come first (as our SDK writes
# them); else what is left when they are taken out. The pattern for offsets only looks for what
# may not be there: a pattern for the whole body would recurse once for each offset.
_SPLIT = (
    "*",
    f"""CASE
      WHEN NOT arrays_overlap(slice(names, reserved_count + 1, size(names)), array({_RESERVED}))
      THEN slice(headers, reserved_count + 1, size(headers))
      ELSE filter(headers, x -> NOT array_contains(array({_RESERVED}), x.key)) END
      AS user_headers""",
    r"""CASE WHEN offsets_text <> '' AND NOT offsets_text RLIKE '[^0-9,]|[0-9]{19}|,,|^,'
      THEN try_cast(split(regexp_replace(offsets_text, r',\z', ''), ',') AS array<bigint>) END
      AS half_offsets""",
    "CASE WHEN kind = 'op' THEN split(unique_key, ',') END AS transaction_ids",
    f"{_number('size_text', p.SMALL_NUMBER_PATTERN, 'int')} AS tran_size",
    f"{_number('seq_text', p.SMALL_NUMBER_PATTERN, 'int')} AS tran_seq",
    "octet_length(coalesce(body, X'')) + octet_length(array_join(names, ''))"
    " + octet_length(array_join(cast(headers.value AS array<string>), '')) AS record_bytes",
    # Everything a reader could want of the headers is in the columns.
    """size(array_distinct(names)) = size(names)
      AND size(array_compact(headers.value)) = size(headers)
      AND is_valid_utf8(array_join(cast(headers.value AS array<string>), ',')) AS fits""",
)


def _error(limits: WireLimits) -> str:
    own = ", ".join(_quoted(name) for name in (*limits.own_topics(), ".", ".."))
    prefix = _quoted(limits.check_topic_prefix)
    return f"""CASE
    WHEN NOT is_known_version THEN 'newer_version'
    WHEN kind = 'admin' THEN
      CASE WHEN coalesce(command, '') NOT IN ({", ".join(map(_quoted, p.COMMANDS))})
        THEN 'unknown_command' END
    WHEN kind = 'op' AND coalesce(tran_type, '') NOT IN ('8', '12', '0') THEN 'bad_tran_type'
    WHEN NOT coalesce({_full("producer_group", p.GROUP_PATTERN)}, false)
      AND (kind <> 'schedule' OR has_producer_group) THEN 'bad_producer_group'
    WHEN kind = 'op' THEN
      CASE WHEN half_offsets IS NULL THEN 'bad_offsets'
        WHEN has_unique_key AND (unique_key IS NULL
          OR size(transaction_ids) <> size(half_offsets)) THEN 'bad_transaction_id' END
    WHEN NOT coalesce({_full("unique_key", p.TRANSACTION_ID_PATTERN)}, false)
      AND (kind <> 'schedule' OR has_unique_key) THEN 'bad_transaction_id'
    WHEN NOT coalesce({_full("real_topic", p.TOPIC_PATTERN)}, false)
      OR real_topic IN ({own}) OR startswith(real_topic, {prefix}) THEN 'bad_real_topic'
    WHEN kind = 'half' AND NOT is_alone AND NOT coalesce(
      tran_size BETWEEN 1 AND {limits.messages_max} AND tran_seq < tran_size, false) THEN 'bad_set'
    WHEN record_bytes > {limits.message_bytes_max} THEN 'too_large'
  END AS error"""


_TEXT_HEADERS = (
    "filter(user_headers, (x, i) -> x.value IS NOT NULL"
    " AND is_valid_utf8(cast(x.value AS string))"
    " AND array_position(user_headers.key, x.key) = i + 1)"
)
_IS_MESSAGE = "kind IN ('half', 'schedule') AND error IS NULL"


def _message(column: str) -> str:
    """Keep a message's column where the record is a readable message."""
    return f"CASE WHEN {_IS_MESSAGE} THEN {column} END"


# An optional header that is there and cannot be read counts as absent; it is kept raw. So is a
# message's header that only another kind of record has a meaning for.
_OPTIONAL = {
    p.REAL_QID: ("real_qid", p.SMALL_NUMBER_PATTERN),
    p.DELAY: ("delay", p.SMALL_NUMBER_PATTERN),
    p.DELIVER_AT: ("deliver_at_ms", p.NUMBER_PATTERN),
    p.CHECK_IMMUNITY: ("immunity_s", p.SMALL_NUMBER_PATTERN),
    p.BORN_TIMESTAMP: ("born_ms", p.NUMBER_PATTERN),
}
_IS_LEFT_OUT = " OR ".join(
    f"(array_contains(names, '{header}') AND NOT coalesce({_full(column, pattern)}, false))"
    for header, (column, pattern) in _OPTIONAL.items()
)
_IS_FOREIGN = f"({_IS_MESSAGE} AND arrays_overlap(names, array({_FOREIGN})))"

_COLUMNS = (
    "kind", "queue_id", "queue_offset", "stored_at",
    f"CASE WHEN {_full('producer_group', p.GROUP_PATTERN)} THEN producer_group END"
    " AS producer_group",
    f"CASE WHEN kind <> 'op' AND {_full('unique_key', p.TRANSACTION_ID_PATTERN)} THEN unique_key"
    " END AS transaction_id",
    f"{_message('real_topic')} AS real_topic",
    f"{_message(_number('real_qid', p.SMALL_NUMBER_PATTERN, 'int'))} AS real_queue_id",
    f"{_message('keys')} AS keys",
    f"{_message('tags')} AS tags",
    f"{_message(_number('delay', p.SMALL_NUMBER_PATTERN, 'int'))} AS delay_level",
    f"{_message(_milliseconds('deliver_at_ms'))} AS deliver_at",
    f"{_message(_number('immunity_s', p.SMALL_NUMBER_PATTERN, 'bigint'))} * 1000 AS immunity_ms",
    "CASE WHEN kind = 'half' AND error IS NULL AND NOT is_alone THEN tran_size END AS tran_size",
    "CASE WHEN kind = 'half' AND error IS NULL AND NOT is_alone THEN tran_seq END AS tran_seq",
    f"{_message(_milliseconds('born_ms'))} AS born_at",
    f"""CASE WHEN NOT ({_IS_MESSAGE}) THEN NULL
      WHEN fits THEN map_from_arrays(user_headers.key, cast(user_headers.value AS array<string>))
      ELSE map_from_entries(transform({_TEXT_HEADERS},
        x -> struct(x.key, cast(x.value AS string)))) END AS properties""",
    "body",
    "CASE WHEN kind = 'op' AND error IS NULL THEN"
    " CASE tran_type WHEN '8' THEN 'COMMIT' WHEN '12' THEN 'ROLLBACK' ELSE 'UNKNOWN' END END"
    " AS decision",
    "CASE WHEN error IS NULL THEN half_offsets END AS half_offsets",
    "CASE WHEN error IS NULL THEN transaction_ids END AS transaction_ids",
    "CASE WHEN kind = 'op' THEN coalesce(from_check = 'true', false) END AS from_check",
    "check_id", "remark", "actor", "reason", "command", "target", "error", "raw_key",
    f"CASE WHEN error IS NOT NULL OR NOT fits OR {_IS_LEFT_OUT} OR {_IS_FOREIGN} THEN headers END"
    " AS raw_headers",
    "record_bytes",
)  # fmt: skip


def decode(records: DataFrame, limits: WireLimits) -> DataFrame:
    """Decode Kafka records (with headers) into one wide frame; `kind` says which table a row is of.

    Input: Spark's Kafka source columns; rows without a topic (ticks) are left out.
    Output: kind, then the columns of HALF, OP, SCHEDULE and ADMIN that the record has, and
    record_bytes (body, header names and values).
    Errors: none of a record's making; a record that cannot be read has `error`.
    """
    kinds = " ".join(
        f"WHEN {_quoted(topic)} THEN '{kind}'" for kind, topic in limits.topics.items()
    )
    headers = "coalesce(headers, cast(array() AS array<struct<key: string, value: binary>>))"
    return (
        records.where("topic IS NOT NULL")
        .selectExpr(
            f"CASE topic {kinds} END AS kind", "partition", "offset", "timestamp", "key", "value",
            f"{headers} AS headers",
        )
        .selectExpr("*", "headers.key AS names")
        .selectExpr(*_FIELDS)
        .selectExpr(*_SPLIT)
        .selectExpr("*", _error(limits))
        .selectExpr(*_COLUMNS)
    )  # fmt: skip

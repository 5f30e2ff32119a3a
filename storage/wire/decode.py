"""Decode Kafka records into columns, on Arrow frames, in the task that read them.

Every record becomes exactly one row, whatever it holds: a record that cannot be read has `error`,
the first reason that applies, and is kept raw. It takes a tenth of the processor time of the same
in Spark SQL (DECISIONS.md 5).

Source: docs/protocol/wire.md "Wire form" and "What can be read".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import schemas
from storage.wire.headers import Headers, Mask, as_text, byte_lengths, combined, to_mask
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE, WireLimits
from txlake import protocol as p

# Kafka's records as they are read, before decoding.
KAFKA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", schemas.HEADERS),
    ]
)
# A record of any kind: `kind`, and every column that one of the four tables has.
RECORDS = pa.schema(
    [
        ("kind", pa.string()),
        *{
            field.name: field
            for schema in (schemas.HALF, schemas.OP, schemas.ADMIN)
            for field in schema
            if field.name not in ("epoch", "result")
        }.values(),
    ]
)
# Values of TRAN_TYPE, and the decision that each stands for.
_TRAN_TYPES = pa.array(["8", "12", "0"])
_DECISIONS = pa.array(["COMMIT", "ROLLBACK", "UNKNOWN"])
_STORED_US_MAX = p.INSTANT_MS_MAX * 1_000
# The bytes that are kept of an operation or a command that is too large: the driver has them in
# memory.
KEPT_BYTES: Final = 1_024
# Matches text that is no list of offsets; a pattern for a whole list takes one more pass.
_NO_OFFSETS = r"[^0-9,]|[0-9]{19}|,,|^,"


def decode_rows(records: pa.Table, limits: WireLimits) -> pa.Table:
    """Decodes records; each becomes exactly one row.

    Input: KAFKA. Output: RECORDS, in the same order.
    A record that cannot be read has `error`; it never raises.
    """
    return _Decoder(records.combine_chunks(), limits).rows()


def _fullmatch(texts: pa.Array, pattern: str) -> Mask:
    """Returns for each text whether a pattern matches the whole of it."""
    return to_mask(pc.match_substring_regex(texts, rf"\A(?:{pattern})\z"))


def _fullmatch_encoded(texts: pa.Array, pattern: str) -> Mask:
    """Returns the mask of `_fullmatch`; faster if few different texts come again and again."""
    encoded = texts.dictionary_encode()
    is_match = np.append(_fullmatch(encoded.dictionary, pattern), False)
    index = pc.fill_null(encoded.indices, len(encoded.dictionary))
    return is_match[index.to_numpy(zero_copy_only=False)]


def _null_unless(is_wanted: Mask, values: pa.Array) -> pa.Array:
    """Returns values where they are wanted, null elsewhere; only wanted ones are copied."""
    if is_wanted.all():
        return values
    if not is_wanted.any():
        return pa.nulls(len(values), values.type)

    return values.take(pa.array(np.arange(len(values)), mask=~is_wanted))


class _Decoder:
    """One frame of records; headers that several columns need have a field."""

    def __init__(self, records: pa.Table, limits: WireLimits) -> None:
        self._records = records
        self._limits = limits
        self._headers = Headers(records["headers"], sorted(p.RESERVED_HEADERS))

        topics = pa.array(list(limits.topics.values()))
        kinds = pa.array(list(limits.topics))
        self._kind = kinds.take(pc.index_in(combined(records["topic"]), value_set=topics))
        self._is = {kind: to_mask(pc.equal(self._kind, kind)) for kind in limits.topics}
        self._is_wide = self._is[HALF] | self._is[SCHEDULE]

        value = combined(records["value"])
        self._is_large = self._too_large(value)
        self._body = self._kept_body(value)
        self._key = combined(records["key"])
        self._stored_us = combined(records["timestamp"]).cast(pa.int64())

        text = self._headers.text
        self._group = text(p.PGROUP)
        self._unique_key = text(p.UNIQ_KEY)
        self._real_topic = text(p.REAL_TOPIC)
        self._tran_type = text(p.TRAN_TYPE)

        self._well_formed: dict[str, Mask] = {}
        self._size = self._number(p.TRAN_SIZE)
        self._seq = self._number(p.TRAN_SEQ)
        self._is_alone = ~self._headers.has(p.TRAN_SIZE) & ~self._headers.has(p.TRAN_SEQ)

        is_operation = self._is[OP] & ~self._is_large
        self._half_offsets = _split_offsets(as_text(_null_unless(is_operation, self._body)))
        self._ids = pc.split_pattern(_null_unless(is_operation, self._unique_key), ",")

        self._error = self._errors()
        self._is_read = to_mask(self._error.is_null())
        self._is_message = self._is_wide & self._is_read

    def _is_well_formed(self, name: str) -> Mask:
        """Returns for each record whether its header of that name has the protocol's form."""
        if name in self._well_formed:
            return self._well_formed[name]

        matches = _fullmatch_encoded if name in _OF_FEW_TEXTS else _fullmatch
        is_well_formed = matches(self._headers.text(name), _PATTERNS[name])
        if name == p.BORN_TIMESTAMP:
            is_well_formed &= ~self._is_beyond(name, is_well_formed)

        self._well_formed[name] = is_well_formed
        return is_well_formed

    def _is_beyond(self, name: str, is_number: Mask) -> Mask:
        """Returns for each record whether its header is an instant that no column holds."""
        numbers = _null_unless(is_number, self._headers.text(name)).cast(pa.int64())
        return to_mask(pc.greater(numbers, p.INSTANT_MS_MAX))

    def _number(self, name: str) -> pa.Array:
        """Returns a header as numbers, null where it is not well-formed."""
        return _null_unless(self._is_well_formed(name), self._headers.text(name)).cast(pa.int64())

    def _instant(self, name: str) -> pa.Array:
        """Returns a header in ms as instants, at most the last one that a column holds."""
        instants = pc.min_element_wise(self._number(name), p.INSTANT_MS_MAX, skip_nulls=False)
        return instants.cast(pa.timestamp("ms", tz="UTC"))

    def _too_large(self, body: pa.Array) -> Mask:
        """Returns for each record whether it is larger, or names more, than is allowed."""
        limits = self._limits
        sizes = byte_lengths(body) + self._headers.sizes()
        is_large: Mask = self._is_wide & (sizes > limits.message_bytes_max)

        if limits.operation_namings_max is None:
            return is_large

        is_large |= sizes > limits.message_bytes_max
        operations = _null_unless(self._is[OP] & ~is_large, body)
        commas = pc.fill_null(pc.count_substring(operations, b","), 0)
        is_large |= commas.to_numpy(zero_copy_only=False) > limits.operation_namings_max
        return is_large

    def _kept_body(self, body: pa.Array) -> pa.Array:
        """Returns the values; of operations and commands that are too large only the beginning."""
        is_cut = self._is_large & ~self._is_wide
        if not is_cut.any():
            return body

        beginnings = pc.binary_slice(_null_unless(is_cut, body), 0, KEPT_BYTES)
        return pc.if_else(pa.array(is_cut), beginnings, _null_unless(~is_cut, body))

    def _kept_key(self) -> pa.Array:
        """Returns Kafka's keys; of operations and commands only the beginning."""
        is_cut = ~self._is_wide & (byte_lengths(self._key) > KEPT_BYTES)
        if not is_cut.any():
            return self._key

        beginnings = pc.binary_slice(self._key, 0, KEPT_BYTES)
        return pc.if_else(pa.array(is_cut), beginnings, self._key)

    def _errors(self) -> pa.Array:
        """Returns the first reason, in the protocol's order, why a record cannot be read."""
        has = self._headers.has
        is_schedule = self._is[SCHEDULE]
        is_half = self._is[HALF]
        is_op = self._is[OP]
        is_admin = self._is[ADMIN]

        # A name must be well-formed; a schedule record need not have it.
        is_bad_group = ~self._is_well_formed(p.PGROUP) & (~is_schedule | has(p.PGROUP))
        is_bad_id = ~self._is_well_formed(p.UNIQ_KEY) & (~is_schedule | has(p.UNIQ_KEY))

        # The first reason that applies; "": none of the later ones is a rule of this kind.
        reasons = (
            ("bad_timestamp", ~self._has_column_time()),
            ("newer_version", has(p.TXV) & ~self._is_version_1()),
            ("too_large", is_admin & self._is_large),
            ("unknown_command", is_admin & ~self._is_command()),
            ("", is_admin),
            ("bad_tran_type", is_op & ~to_mask(pc.is_in(self._tran_type, value_set=_TRAN_TYPES))),
            ("bad_producer_group", is_bad_group),
            ("too_large", is_op & self._is_large),
            ("bad_offsets", is_op & to_mask(self._half_offsets.is_null())),
            ("bad_transaction_id", is_op & has(p.UNIQ_KEY) & ~self._has_id_each()),
            ("", is_op),
            ("bad_transaction_id", is_bad_id),
            ("bad_real_topic", ~self._is_well_formed(p.REAL_TOPIC) | self._is_own_topic()),
            ("bad_set", is_half & ~self._is_alone & ~self._is_set()),
            ("too_large", self._is_wide & self._is_large),
        )
        codes = np.select([mask for _, mask in reasons], range(len(reasons)), -1)
        texts = pa.array([reason or None for reason, _ in reasons], pa.string())
        return texts.take(pa.array(codes, mask=codes < 0))

    def _has_column_time(self) -> Mask:
        """Returns for each record whether a column holds its time."""
        is_late_enough = pc.greater_equal(self._stored_us, 0)
        is_early_enough = pc.less_equal(self._stored_us, _STORED_US_MAX)
        return to_mask(pc.and_(is_late_enough, is_early_enough))

    def _is_version_1(self) -> Mask:
        """Returns for each record whether its header TXV is 1."""
        return to_mask(pc.equal(self._headers.raw(p.TXV), pa.scalar(b"1")))

    def _is_command(self) -> Mask:
        """Returns for each record whether its header COMMAND is one of the protocol's."""
        return to_mask(pc.is_in(self._headers.text(p.COMMAND), value_set=pa.array(p.COMMANDS)))

    def _has_id_each(self) -> Mask:
        """Returns for each operation whether it has as many transaction ids as offsets."""
        id_count = pc.list_value_length(self._ids)
        return to_mask(pc.equal(id_count, pc.list_value_length(self._half_offsets)))

    def _is_own_topic(self) -> Mask:
        """Returns for each record whether its real topic is one of the system's."""
        own_topics = pa.array([*self._limits.own_topics(), *p.NO_TOPICS])
        is_own = to_mask(pc.is_in(self._real_topic, value_set=own_topics))
        return is_own | to_mask(pc.starts_with(self._real_topic, self._limits.check_topic_prefix))

    def _is_set(self) -> Mask:
        """Returns for each record whether its TRAN_SIZE and TRAN_SEQ can be those of a set."""
        is_size = pc.and_(
            pc.greater_equal(self._size, 1),
            pc.less_equal(self._size, self._limits.messages_max),
        )
        return to_mask(pc.and_(is_size, pc.less(self._seq, self._size)))

    def _raw_headers(self) -> pa.Array:
        """Returns the headers as they came if the columns do not hold all of them, else null."""
        is_kept = ~self._is_read | ~self._headers.all_in_columns()
        for name in _OPTIONAL:
            is_kept |= self._headers.has(name) & ~self._is_well_formed(name)
        is_kept |= self._is_beyond(p.DELIVER_AT, self._is_well_formed(p.DELIVER_AT))
        for name in p.FOREIGN_HEADERS:
            is_kept |= self._headers.has(name) & self._is_message

        return self._headers.all_headers(is_kept & (self._is_wide | ~self._is_large))

    def _text_where(self, is_wanted: Mask, name: str) -> pa.Array:
        """Returns a header as text where it is wanted, null elsewhere."""
        return _null_unless(is_wanted, self._headers.text(name))

    def rows(self) -> pa.Table:
        """Returns the decoded records. Output: RECORDS."""
        columns = {
            **self._columns_of_all(),
            **self._columns_of_messages(),
            **self._columns_of_operations(),
        }
        return pa.table(
            [combined(columns[field.name]).cast(field.type) for field in RECORDS], schema=RECORDS
        )

    def _columns_of_all(self) -> dict[str, Any]:
        """Returns the columns that records of each kind have."""
        stored_us = pc.max_element_wise(pc.min_element_wise(self._stored_us, _STORED_US_MAX), 0)
        has_id = ~self._is[OP] & self._is_well_formed(p.UNIQ_KEY)

        return {
            "kind": self._kind,
            "queue_id": self._records["partition"],
            "queue_offset": self._records["offset"],
            "stored_at": stored_us.cast(pa.timestamp("us", tz="UTC")),
            "producer_group": _null_unless(self._is_well_formed(p.PGROUP), self._group),
            "transaction_id": _null_unless(has_id, self._unique_key),
            "body": self._body,
            "error": self._error,
            "raw_key": self._kept_key(),
            "raw_headers": self._raw_headers(),
        }

    def _columns_of_messages(self) -> dict[str, Any]:
        """Returns the columns of readable halves and schedule records, null for others."""
        is_message = self._is_message
        is_in_set = self._is[HALF] & self._is_read & ~self._is_alone
        immunity_s = _null_unless(is_message, self._number(p.CHECK_IMMUNITY))

        return {
            "real_topic": _null_unless(is_message, self._real_topic),
            "real_queue_id": _null_unless(is_message, self._number(p.REAL_QID)),
            "keys": self._text_where(is_message, p.KEYS),
            "tags": self._text_where(is_message, p.TAGS),
            "delay_level": _null_unless(is_message, self._number(p.DELAY)),
            "delay_ms": _null_unless(is_message, self._number(p.DELAY_MS)),
            "deliver_at": _null_unless(is_message, self._instant(p.DELIVER_AT)),
            "immunity_ms": pc.multiply(immunity_s, 1_000),
            "tran_size": _null_unless(is_in_set, self._size),
            "tran_seq": _null_unless(is_in_set, self._seq),
            "born_at": _null_unless(is_message, self._instant(p.BORN_TIMESTAMP)),
            "properties": self._headers.user_properties(is_message),
        }

    def _columns_of_operations(self) -> dict[str, Any]:
        """Returns the columns of operations and commands; those too large keep no long text."""
        is_op = self._is[OP]
        is_small_op = is_op & ~self._is_large
        is_small_command = self._is[ADMIN] & ~self._is_large
        is_small = is_small_op | is_small_command

        decision = _DECISIONS.take(pc.index_in(self._tran_type, value_set=_TRAN_TYPES))
        from_check = pc.fill_null(pc.equal(self._headers.text(p.FROM_CHECK), "true"), False)

        return {
            "decision": _null_unless(is_op & self._is_read, decision),
            "half_offsets": _null_unless(self._is_read, self._half_offsets),
            "transaction_ids": _null_unless(self._is_read, self._ids),
            "from_check": _null_unless(is_op, from_check),
            "check_id": self._text_where(is_small_op, p.CHECK_ID),
            "remark": self._text_where(is_small_op, p.REMARK),
            "actor": self._text_where(is_small, p.ACTOR),
            "reason": self._text_where(is_small, p.REASON),
            "signature": self._text_where(is_small_op, p.SIG),
            "is_signed": pa.nulls(self._records.num_rows, pa.bool_()),  # the driver has the keys
            "command": self._text_where(is_small_command, p.COMMAND),
            "target": self._text_where(is_small_command, p.TARGET),
        }


def _split_offsets(texts: pa.Array) -> pa.Array:
    """Returns the offsets in each text, null where it is no list of them."""
    is_list = ~to_mask(pc.match_substring_regex(texts, _NO_OFFSETS))
    is_list &= to_mask(pc.not_equal(texts, ""))

    lists = pc.replace_substring_regex(_null_unless(is_list, texts), r",\z", "")
    return pc.split_pattern(lists, ",").cast(pa.list_(pa.int64()))


# An optional header that cannot be read counts as absent and is kept raw. So does a BORN_TIMESTAMP
# that no column holds, and a message's header that only other kinds of records have.
_OPTIONAL = (
    p.REAL_QID,
    p.DELAY,
    p.DELAY_MS,
    p.DELIVER_AT,
    p.CHECK_IMMUNITY,
    p.BORN_TIMESTAMP,
)
_PATTERNS = {
    p.DELAY_MS: p.SPAN_PATTERN,
    **dict.fromkeys((p.DELIVER_AT, p.BORN_TIMESTAMP), p.NUMBER_PATTERN),
    **dict.fromkeys(
        (p.TRAN_SIZE, p.TRAN_SEQ, p.REAL_QID, p.DELAY, p.CHECK_IMMUNITY), p.SMALL_NUMBER_PATTERN
    ),
    p.PGROUP: p.GROUP_PATTERN,
    p.UNIQ_KEY: p.TRANSACTION_ID_PATTERN,
    p.REAL_TOPIC: p.TOPIC_PATTERN,
}
_OF_FEW_TEXTS = (p.PGROUP, p.REAL_TOPIC)  # the same few come again and again

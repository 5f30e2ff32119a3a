"""Decode Kafka records into columns, on Arrow frames, in the task that read them.

Every record becomes exactly one row, whatever it holds: what cannot be read is named in `error`
(the first reason that applies) and kept raw. A tenth of the processor time of the same in Spark SQL
(DECISIONS.md 5).

Source: PROTOCOL.md "Wire form" and "What can be read".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import schemas
from storage.wire.headers import Headers, Mask, as_text, combined, truth
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE, WireLimits
from txlake import protocol as p

# What Spark's Kafka source gives, as far as it is needed.
KAFKA_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
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
_DECISIONS = pa.array(["8", "12", "0"]), pa.array(["COMMIT", "ROLLBACK", "UNKNOWN"])
_STORED_US_MAX = p.INSTANT_MS_MAX * 1_000
# Of the value of an operation or a command that is too large: the driver has it in memory.
KEPT_BYTES: Final = 1_024
# Finds a forbidden character: a pattern for the whole body would match it once more.
_NO_OFFSETS = r"[^0-9,]|[0-9]{19}|,,|^,"


def decode_rows(records: pa.Table, limits: WireLimits) -> pa.Table:
    """Decodes records; each becomes exactly one row.

    Input: KAFKA_COLUMNS. Output: RECORDS, in the same order.
    A record that cannot be read has `error`; it never raises.
    """
    return _Decoder(records.combine_chunks(), limits).rows()


def _fullmatch(texts: pa.Array, pattern: str) -> Mask:
    return truth(pc.match_substring_regex(texts, rf"\A(?:{pattern})\z"))


def _full_of_few(texts: pa.Array, pattern: str) -> Mask:
    """Does what `_fullmatch` does, for few texts that come again and again."""
    few = texts.dictionary_encode()
    is_full = np.append(_fullmatch(few.dictionary, pattern), False)
    return is_full[pc.fill_null(few.indices, len(few.dictionary)).to_numpy(zero_copy_only=False)]


def _null_unless(wanted: Mask, values: pa.Array) -> pa.Array:
    """Returns values where they are wanted, null elsewhere; only wanted ones are copied."""
    if wanted.all():
        return values
    if not wanted.any():
        return pa.nulls(len(values), values.type)
    return values.take(pa.array(np.arange(len(values)), mask=~wanted))


def _sizes(values: pa.Array) -> Any:
    """Returns the bytes of each value; of null none."""
    return pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)


class _Decoder:
    """One frame. Masks are named `is_...`; a header that is asked for often has a field."""

    def __init__(self, records: pa.Table, limits: WireLimits) -> None:
        self._records, self._limits = records, limits
        self._headers = Headers(records["headers"], sorted(p.RESERVED_HEADERS))
        topics = pa.array(list(limits.topics.values()))
        kinds = pa.array(list(limits.topics))
        self._kind = kinds.take(pc.index_in(combined(records["topic"]), value_set=topics))
        self._is = {kind: truth(pc.equal(self._kind, kind)) for kind in limits.topics}
        self._is_wide = self._is[HALF] | self._is[SCHEDULE]
        self._key = combined(records["key"])
        self._is_large = self._too_large(combined(records["value"]))
        self._body = self._kept(combined(records["value"]))
        self._stored_us = combined(records["timestamp"]).cast(pa.int64())
        text = self._headers.text
        self._group, self._unique_key = text(p.PGROUP), text(p.UNIQ_KEY)
        self._real_topic, self._tran_type = text(p.REAL_TOPIC), text(p.TRAN_TYPE)
        self._well_formed: dict[str, Mask] = {}
        self._size, self._seq = self._number(p.TRAN_SIZE), self._number(p.TRAN_SEQ)
        has = self._headers.has
        self._is_alone = ~has(p.TRAN_SIZE) & ~has(p.TRAN_SEQ)
        self._half_offsets = self._offsets()
        self._ids = pc.split_pattern(
            _null_unless(self._is[OP] & ~self._is_large, self._unique_key), ","
        )
        self._error = self._errors()
        self._is_read = truth(self._error.is_null())
        self._is_message = self._is_wide & self._is_read

    def _is_well_formed(self, name: str) -> Mask:
        """Returns for each record whether its header of that name is as the protocol wants it."""
        if name not in self._well_formed:
            matches = _full_of_few if name in _OF_FEW_TEXTS else _fullmatch
            is_well_formed = matches(self._headers.text(name), _PATTERNS[name])
            if name == p.BORN_TIMESTAMP:
                is_well_formed &= ~self._is_beyond(name, is_well_formed)
            self._well_formed[name] = is_well_formed
        return self._well_formed[name]

    def _is_beyond(self, name: str, is_number: Mask) -> Mask:
        """Returns for each record whether its header is an instant that no column holds."""
        numbers = _null_unless(is_number, self._headers.text(name)).cast(pa.int64())
        return truth(pc.greater(numbers, p.INSTANT_MS_MAX))

    def _number(self, name: str) -> pa.Array:
        return _null_unless(self._is_well_formed(name), self._headers.text(name)).cast(pa.int64())

    def _instant(self, name: str) -> pa.Array:
        return pc.min_element_wise(self._number(name), p.INSTANT_MS_MAX, skip_nulls=False).cast(
            pa.timestamp("ms", tz="UTC")
        )

    def _too_large(self, body: pa.Array) -> Mask:
        """Returns for each record whether it is larger, or names more, than is allowed."""
        limits = self._limits
        sizes = _sizes(body) + self._headers.sizes()
        is_large: Mask = self._is_wide & (sizes > limits.message_bytes_max)

        if limits.operation_namings_max is None:
            return is_large

        is_large |= sizes > limits.message_bytes_max
        operations = _null_unless(self._is[OP] & ~is_large, body)
        commas = pc.fill_null(pc.count_substring(operations, b","), 0)
        is_large |= commas.to_numpy(zero_copy_only=False) > limits.operation_namings_max
        return is_large

    def _kept(self, body: pa.Array) -> pa.Array:
        """Returns the values; of operations and commands that are too large only a beginning."""
        is_cut = self._is_large & ~self._is_wide
        if not is_cut.any():
            return body
        beginnings = pc.binary_slice(_null_unless(is_cut, body), 0, KEPT_BYTES)
        return pc.if_else(pa.array(is_cut), beginnings, _null_unless(~is_cut, body))

    def _kept_key(self) -> pa.Array:
        """Returns Kafka's keys; of operations and commands only a beginning."""
        is_cut = ~self._is_wide & (_sizes(self._key) > KEPT_BYTES)
        if not is_cut.any():
            return self._key
        return pc.if_else(pa.array(is_cut), pc.binary_slice(self._key, 0, KEPT_BYTES), self._key)

    def _offsets(self) -> pa.Array:
        texts = as_text(_null_unless(self._is[OP] & ~self._is_large, self._body))
        is_list = ~truth(pc.match_substring_regex(texts, _NO_OFFSETS))
        is_list &= truth(pc.not_equal(texts, ""))
        listed = pc.replace_substring_regex(_null_unless(is_list, texts), r",\z", "")
        return pc.split_pattern(listed, ",").cast(pa.list_(pa.int64()))

    def _errors(self) -> pa.Array:
        """Returns the first reason, in the protocol's order, why a record cannot be read."""
        has, limits, is_ = self._headers.has, self._limits, self._is
        is_later = is_[SCHEDULE]
        sizes = pc.list_value_length(self._ids), pc.list_value_length(self._half_offsets)
        own = pa.array([*limits.own_topics(), *p.NO_TOPICS])
        is_own = truth(pc.is_in(self._real_topic, value_set=own))
        is_own |= truth(pc.starts_with(self._real_topic, limits.check_topic_prefix))
        is_set = truth(pc.and_(
            pc.and_(pc.greater_equal(self._size, 1),
                    pc.less_equal(self._size, limits.messages_max)),
            pc.less(self._seq, self._size),
        ))  # fmt: skip
        stored = self._stored_us
        reasons = (
            ("bad_timestamp", ~truth(pc.and_(
                pc.greater_equal(stored, 0), pc.less_equal(stored, _STORED_US_MAX)))),
            ("newer_version",
             has(p.TXV) & ~truth(pc.equal(self._headers.raw(p.TXV), pa.scalar(b"1")))),
            ("too_large", is_[ADMIN] & self._is_large),
            ("unknown_command", is_[ADMIN] & ~truth(
                pc.is_in(self._headers.text(p.COMMAND), value_set=pa.array(p.COMMANDS)))),
            ("", is_[ADMIN]),
            ("bad_tran_type",
             is_[OP] & ~truth(pc.is_in(self._tran_type, value_set=_DECISIONS[0]))),
            ("bad_producer_group",
             ~self._is_well_formed(p.PGROUP) & (~is_later | has(p.PGROUP))),
            ("too_large", is_[OP] & self._is_large),
            ("bad_offsets", is_[OP] & truth(self._half_offsets.is_null())),
            ("bad_transaction_id",
             is_[OP] & has(p.UNIQ_KEY) & ~truth(pc.equal(*sizes))),
            ("", is_[OP]),
            ("bad_transaction_id", ~self._is_well_formed(p.UNIQ_KEY)
             & (~is_later | has(p.UNIQ_KEY))),
            ("bad_real_topic", ~self._is_well_formed(p.REAL_TOPIC) | is_own),
            ("bad_set", is_[HALF] & ~self._is_alone & ~is_set),
            ("too_large", self._is_wide & self._is_large),
        )  # fmt: skip
        codes = np.select([mask for _, mask in reasons], range(len(reasons)), -1)
        texts = pa.array([reason or None for reason, _ in reasons], pa.string())
        return texts.take(pa.array(codes, mask=codes < 0))

    def _raw_headers(self) -> pa.Array:
        """Returns the headers as they came if the columns do not hold all of them, else null."""
        left_out = ~self._is_read | ~self._headers.all_in_columns()
        for name in _OPTIONAL:
            left_out |= self._headers.has(name) & ~self._is_well_formed(name)
        left_out |= self._is_beyond(p.DELIVER_AT, self._is_well_formed(p.DELIVER_AT))
        for name in p.FOREIGN_HEADERS:
            left_out |= self._headers.has(name) & self._is_message
        return self._headers.all_headers(left_out & (self._is_wide | ~self._is_large))

    def _when(self, wanted: Mask, name: str) -> pa.Array:
        return _null_unless(wanted, self._headers.text(name))

    def rows(self) -> pa.Table:
        """Returns the decoded records. Output: RECORDS."""
        text, message, is_ = self._headers.text, self._is_message, self._is
        is_op, is_in_set = is_[OP], is_[HALF] & self._is_read & ~self._is_alone
        is_whole = ~self._is_large  # of another operation or command nothing long is kept
        is_told = (is_op | is_[ADMIN]) & is_whole
        records = self._records
        index = pc.index_in(self._tran_type, value_set=_DECISIONS[0])
        columns: dict[str, Any] = {
            "kind": self._kind,
            "queue_id": records["partition"],
            "queue_offset": records["offset"],
            "stored_at": pc.max_element_wise(
                pc.min_element_wise(self._stored_us, _STORED_US_MAX), 0
            ).cast(pa.timestamp("us", tz="UTC")),
            "producer_group": _null_unless(self._is_well_formed(p.PGROUP), self._group),
            "transaction_id": _null_unless(
                ~is_op & self._is_well_formed(p.UNIQ_KEY), self._unique_key
            ),
            "real_topic": _null_unless(message, self._real_topic),
            "real_queue_id": _null_unless(message, self._number(p.REAL_QID)),
            "keys": self._when(message, p.KEYS),
            "tags": self._when(message, p.TAGS),
            "delay_level": _null_unless(message, self._number(p.DELAY)),
            "delay_ms": _null_unless(message, self._number(p.DELAY_MS)),
            "deliver_at": _null_unless(message, self._instant(p.DELIVER_AT)),
            "immunity_ms": pc.multiply(
                _null_unless(message, self._number(p.CHECK_IMMUNITY)), 1_000
            ),
            "tran_size": _null_unless(is_in_set, self._size),
            "tran_seq": _null_unless(is_in_set, self._seq),
            "born_at": _null_unless(message, self._instant(p.BORN_TIMESTAMP)),
            "properties": self._headers.user_properties(message),
            "body": self._body,
            "decision": _null_unless(is_op & self._is_read, _DECISIONS[1].take(index)),
            "half_offsets": _null_unless(self._is_read, self._half_offsets),
            "transaction_ids": _null_unless(self._is_read, self._ids),
            "from_check": _null_unless(
                is_op, pc.fill_null(pc.equal(text(p.FROM_CHECK), "true"), False)
            ),
            "check_id": self._when(is_op & is_whole, p.CHECK_ID),
            "remark": self._when(is_op & is_whole, p.REMARK),
            "actor": self._when(is_told, p.ACTOR),
            "reason": self._when(is_told, p.REASON),
            "signature": self._when(is_op & is_whole, p.SIG),
            "is_signed": pa.nulls(records.num_rows, pa.bool_()),  # the driver has the keys
            "command": self._when(is_[ADMIN] & is_whole, p.COMMAND),
            "target": self._when(is_[ADMIN] & is_whole, p.TARGET),
            "error": self._error,
            "raw_key": self._kept_key(),
            "raw_headers": self._raw_headers(),
        }
        return pa.table(
            [combined(columns[field.name]).cast(field.type) for field in RECORDS], schema=RECORDS
        )


# An optional header that cannot be read counts as absent and is kept raw, and so does a
# BORN_TIMESTAMP that no column holds. So does a message's header that has a meaning for other kinds
# of records alone.
_OPTIONAL = (
    p.REAL_QID, p.DELAY, p.DELAY_MS, p.DELIVER_AT, p.CHECK_IMMUNITY, p.BORN_TIMESTAMP,
)  # fmt: skip
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

"""Decoding a second time, record by record in plain Python: what `storage.wire.decode` must give.

Source: docs/protocol/wire.md "Wire form" and "What can be read".
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from storage.wire.decode import RECORDS
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE, WireLimits
from txlake import protocol as p

Row = dict[str, Any]
Headers = list[tuple[str, bytes | None]]
LAST_MS = 9_223_286_400_000  # 2262-04-11T00:00:00Z
UTC_1970 = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
DECISIONS = {"8": "COMMIT", "12": "ROLLBACK", "0": "UNKNOWN"}
OPTIONAL = {
    p.REAL_QID: p.SMALL_NUMBER_PATTERN,
    p.DELAY: p.SMALL_NUMBER_PATTERN,
    p.DELAY_MS: "[0-9]{1,15}",
    p.CHECK_IMMUNITY: p.SMALL_NUMBER_PATTERN,
    p.DELIVER_AT: p.NUMBER_PATTERN,
    p.BORN_TIMESTAMP: p.NUMBER_PATTERN,
}


def text_of(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


class PlainRecord:
    """One record; a header that is asked for is its first of that name."""

    def __init__(
        self, topic: str, value: bytes | None, headers: Headers, limits: WireLimits
    ) -> None:
        (self.kind,) = (kind for kind, name in limits.topics.items() if name == topic)
        self.value, self.headers, self.limits = value, headers, limits
        self.first: dict[str, bytes | None] = {}
        for name, content in headers:
            self.first.setdefault(name, content)
        self.is_wide = self.kind in (HALF, SCHEDULE)

    def text(self, name: str) -> str | None:
        return text_of(self.first.get(name))

    def fitting(self, name: str, pattern: str) -> str | None:
        text = self.text(name)
        return text if text is not None and re.fullmatch(pattern, text, re.ASCII) else None

    def number(self, name: str, pattern: str) -> int | None:
        text = self.fitting(name, pattern)
        return None if text is None else int(text)

    def instant(self, name: str) -> dt.datetime | None:
        ms = self.number(name, p.NUMBER_PATTERN)
        return None if ms is None else UTC_1970 + dt.timedelta(milliseconds=min(ms, LAST_MS))

    def is_beyond(self, name: str) -> bool:
        """Return whether a header is an instant that no column holds."""
        ms = self.number(name, p.NUMBER_PATTERN)
        return ms is not None and ms > LAST_MS

    def offsets(self) -> list[int] | None:
        text = text_of(self.value)
        if text is None or not re.fullmatch(p.OFFSETS_PATTERN, text, re.ASCII):
            return None
        return [int(part) for part in text.removesuffix(",").split(",")]

    def is_alone(self) -> bool:
        return p.TRAN_SIZE not in self.first and p.TRAN_SEQ not in self.first

    def ids(self) -> list[str] | None:
        text = self.text(p.UNIQ_KEY)
        return None if text is None else text.split(",")

    def error(self) -> str | None:
        if p.TXV in self.first and self.first[p.TXV] != b"1":
            return "newer_version"

        if self.kind == ADMIN and self.is_large():
            return "too_large"

        if self.kind == ADMIN:
            return None if self.text(p.COMMAND) in p.COMMANDS else "unknown_command"

        if self.kind == OP and self.text(p.TRAN_TYPE) not in DECISIONS:
            return "bad_tran_type"

        group_needed = self.kind != SCHEDULE or p.PGROUP in self.first
        if group_needed and self.fitting(p.PGROUP, p.GROUP_PATTERN) is None:
            return "bad_producer_group"

        return self.operation_error() if self.kind == OP else self.message_error()

    def operation_error(self) -> str | None:
        if self.is_large():
            return "too_large"
        offsets = self.offsets()
        ids = self.ids()
        if offsets is None:
            return "bad_offsets"
        if p.UNIQ_KEY in self.first and (ids is None or len(ids) != len(offsets)):
            return "bad_transaction_id"
        return None

    def message_error(self) -> str | None:
        id_needed = self.kind == HALF or p.UNIQ_KEY in self.first
        if id_needed and self.fitting(p.UNIQ_KEY, p.TRANSACTION_ID_PATTERN) is None:
            return "bad_transaction_id"

        topic = self.fitting(p.REAL_TOPIC, p.TOPIC_PATTERN)
        own = {*self.limits.topics.values(), *p.SYSTEM_REAL_TOPICS, ".", ".."}
        if topic is None or topic in own or topic.startswith(self.limits.check_topic_prefix):
            return "bad_real_topic"

        if self.kind == HALF and not self.is_alone():
            size = self.number(p.TRAN_SIZE, p.SMALL_NUMBER_PATTERN)
            seq = self.number(p.TRAN_SEQ, p.SMALL_NUMBER_PATTERN)
            if size is None or seq is None or not seq < size <= self.limits.messages_max:
                return "bad_set"

        return "too_large" if self.is_large() else None

    def is_large(self) -> bool:
        namings_max = self.limits.operation_namings_max
        if self.kind in (OP, ADMIN) and namings_max is None:
            return False
        parts = [self.value or b"", *(n.encode() for n, _ in self.headers)]
        parts += [content or b"" for _, content in self.headers]
        if sum(map(len, parts)) > self.limits.message_bytes_max:
            return True
        return self.kind == OP and (self.value or b"").count(b",") > (namings_max or 0)

    def properties(self) -> list[tuple[str, str]]:
        names = [name for name, _ in self.headers]
        return [
            (name, text)
            for place, (name, content) in enumerate(self.headers)
            if name not in p.RESERVED_HEADERS
            and names.index(name) == place
            and (text := text_of(content)) is not None
        ]

    def is_kept_raw(self, is_message: bool) -> bool:
        names = [name for name, _ in self.headers]
        does_not_fit = len(set(names)) < len(names) or any(
            text_of(content) is None for _, content in self.headers
        )
        left_out = any(n in self.first and self.fitting(n, o) is None for n, o in OPTIONAL.items())
        foreign = is_message and not p.FOREIGN_HEADERS.isdisjoint(names)
        beyond = self.is_beyond(p.DELIVER_AT) or self.is_beyond(p.BORN_TIMESTAMP)
        return self.error() is not None or does_not_fit or left_out or foreign or beyond


def plain_row(topic: str, value: bytes | None, headers: Headers | None, limits: WireLimits) -> Row:
    """Return a record's row but its place in Kafka; columns that it does not have are null."""
    r = PlainRecord(topic, value, headers or [], limits)
    error = r.error()

    is_message = r.is_wide and error is None
    is_cut = not r.is_wide and r.is_large()
    is_op, is_told = r.kind == OP, r.kind in (OP, ADMIN)
    seconds = r.number(p.CHECK_IMMUNITY, p.SMALL_NUMBER_PATTERN)
    in_set = r.kind == HALF and error is None and not r.is_alone()

    row: Row = dict.fromkeys(RECORDS.names) | {
        "kind": r.kind,
        "producer_group": r.fitting(p.PGROUP, p.GROUP_PATTERN),
        "transaction_id": None if is_op else r.fitting(p.UNIQ_KEY, p.TRANSACTION_ID_PATTERN),
        "body": value[:1_024] if is_cut and value is not None else value,
        "error": error,
        "raw_headers": (
            [{"key": name, "value": content} for name, content in r.headers]
            if r.is_kept_raw(is_message) and not is_cut
            else None
        ),
    }

    if is_message:
        row |= {
            "real_topic": r.text(p.REAL_TOPIC),
            "real_queue_id": r.number(p.REAL_QID, p.SMALL_NUMBER_PATTERN),
            "keys": r.text(p.KEYS),
            "tags": r.text(p.TAGS),
            "delay_level": r.number(p.DELAY, p.SMALL_NUMBER_PATTERN),
            "delay_ms": r.number(p.DELAY_MS, "[0-9]{1,15}"),
            "deliver_at": r.instant(p.DELIVER_AT),
            "immunity_ms": None if seconds is None else seconds * 1_000,
            "born_at": None if r.is_beyond(p.BORN_TIMESTAMP) else r.instant(p.BORN_TIMESTAMP),
            "properties": r.properties(),
        }

    if in_set:
        row["tran_size"] = r.number(p.TRAN_SIZE, p.SMALL_NUMBER_PATTERN)
        row["tran_seq"] = r.number(p.TRAN_SEQ, p.SMALL_NUMBER_PATTERN)

    if is_op:
        row["from_check"] = r.text(p.FROM_CHECK) == "true"

    if is_op and not is_cut:
        row |= {
            "check_id": r.text(p.CHECK_ID),
            "remark": r.text(p.REMARK),
            "signature": r.text(p.SIG),
        }
        if error is None:
            row["decision"] = DECISIONS[r.text(p.TRAN_TYPE) or ""]
            row["half_offsets"] = r.offsets()
            row["transaction_ids"] = r.ids()

    if is_told and not is_cut:
        row |= {"actor": r.text(p.ACTOR), "reason": r.text(p.REASON)}

    if r.kind == ADMIN and not is_cut:
        row |= {"command": r.text(p.COMMAND), "target": r.text(p.TARGET)}

    return row

"""Comparison of the raw producer's journal with the lake: what is known without the rules.

Every record that Kafka took is landed once, where it was stored and as it was sent. A message is
delivered at most once, and only if somebody sent a COMMIT for it. Every promise holds. How often
what happened, and everything about time, is left to `txlake verify` and to the replay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from bench.chaos.compare import Facts, Row, first, place_of
from bench.chaos.names import RAW_TOPIC
from bench.chaos.raw_journal import (
    DELIVERED,
    LATER,
    ORPHAN,
    UNREADABLE,
    WITHHELD,
    Promise,
    RawJournal,
    RawRecord,
)
from storage.lake.lake import Lake
from storage.rows import milliseconds
from storage.wire.record_kinds import ADMIN, HALF, KINDS, OP, SCHEDULE
from txlake.protocol import CANCEL, COMMIT, RESUME, SYSTEM_REAL_TOPICS, UNDELIVERABLE_TOPIC

Place = tuple[str, int, int]  # kind, queue, offset


class RawFacts:
    """What stands in the lake of the raw producer's records. `messages`: of all topics."""

    def __init__(self, lake: Lake, facts: Facts, journal: RawJournal) -> None:
        self.records = journal.records()
        self.landed: dict[str, list[Row]] = {}  # by kind
        for kind in KINDS:
            columns = ["queue_id", "queue_offset", "raw_key", "body", "error"]
            columns += ["command", "target", "result"] if kind == ADMIN else []
            self.landed[kind] = lake.read(kind, columns).to_pylist()

        self.conflicts: dict[tuple[int, int], list[str]] = defaultdict(list)
        for row in lake.read("conflicts").to_pylist():
            self.conflicts[row["queue_id"], row["op_queue_offset"]].append(row["reason"])

        self.undeliverable = {
            row["queue_offset"]: row for row in facts.messages.get(UNDELIVERABLE_TOPIC, [])
        }

        self.messages: dict[Place, list[tuple[str, Row]]] = defaultdict(list)
        for topic, rows in facts.messages.items():
            if topic not in SYSTEM_REAL_TOPICS:
                for row in rows:
                    self.messages[message_place(row)].append((topic, row))

        self.rows = {
            (kind, row["queue_id"], row["queue_offset"]): row
            for kind, rows in self.landed.items()
            for row in rows
        }

        self.cancelled = {
            row["target"]
            for row in self.landed[ADMIN]
            if row["command"] == CANCEL and row["result"] == "cancelled"
        }

    def of(self, record: RawRecord) -> list[tuple[str, Row]]:
        """Returns where a record's message is delivered."""
        return self.messages.get((record.kind, record.queue_id, record.queue_offset or 0), [])

    def is_cancelled(self, record: RawRecord) -> bool:
        """Returns whether a command took the message out of `delayed`."""
        return f"{record.kind}:{record.queue_id}-{record.queue_offset}" in self.cancelled


def message_place(row: Mapping[str, Any]) -> Place:
    """The half or schedule record that a message comes from."""
    return row["source"], row["half_queue_id"], row["half_queue_offset"]


def compare_raw(lake: Lake, facts: Facts, journal: RawJournal) -> list[str]:
    """Returns every difference, the first of each kind."""
    raw = RawFacts(lake, facts, journal)
    kinds = (
        _landed(raw),
        _messages(raw),
        _commands(raw),
        (text for promise in journal.promises() for text in _broken(promise, raw)),
    )
    return [text for kind in kinds for text in first(list(kind))]


def _landed(raw: RawFacts) -> Iterator[str]:
    """Every record is landed once, where Kafka has it, as it was sent; others at most once."""
    for kind, rows in raw.landed.items():
        found: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row["raw_key"] is not None:
                found[row["raw_key"].decode()].append(row)

        for record in raw.records.values():
            if record.kind != kind:
                continue
            there = found.pop(record.id, [])
            name = f"{kind} record {record.id} of story {record.story}"

            if len(there) > 1 or (record.queue_offset is not None and not there):
                yield f"{name} is landed {len(there)} times"

            for row in there:
                place = row["queue_id"], row["queue_offset"]
                sent_to = record.queue_id, record.queue_offset
                if row["body"] != record.body or sent_to not in (place, (place[0], None)):
                    yield f"{name} differs from its row {place[0]}-{place[1]}"

        for key in found:
            yield f"{kind} record {key} was never sent"


def _messages(raw: RawFacts) -> Iterator[str]:
    """A message is delivered once, as it was sent, and only if somebody sent a COMMIT for it."""
    committed = {
        transaction_id
        for record in raw.records.values()
        if record.kind == OP and record.about["decision"] == COMMIT
        for transaction_id in record.about["ends"]
    }

    for record in raw.records.values():
        if record.kind not in (HALF, SCHEDULE) or record.queue_offset is None:
            continue

        rows = raw.of(record)
        name = f"message {record.id} of story {record.story}"
        if len(rows) > 1:
            yield f"{name} is delivered {len(rows)} times: {[place_of(*row) for row in rows]}"

        if rows and record.kind == HALF and record.transaction_id not in committed:
            yield f"{name} was never committed, but is in {place_of(*rows[0])}"

        for topic, row in rows:
            if (row["keys"], row["body"]) != (record.id, record.body):
                yield f"{name} differs in {place_of(topic, row)}"


def _commands(raw: RawFacts) -> Iterator[str]:
    """A cancelled message is in no topic, a resumed one is in its topic."""
    for row in raw.landed[ADMIN]:
        name = f"command {row['queue_offset']} ({row['command']} {row['target']})"
        if row["command"] == CANCEL and row["result"] == "cancelled":
            kind, _, place = row["target"].partition(":")
            queue_id, queue_offset = map(int, place.split("-"))
            for topic, message in raw.messages.get((kind, queue_id, queue_offset), []):
                yield f"{name} cancelled a message that is in {place_of(topic, message)}"
        if row["command"] == RESUME and row["result"] == "resumed":
            message = raw.undeliverable[int(row["target"].partition(":")[2])]
            if not raw.messages.get(message_place(message)):
                yield f"{name} resumed a message that is in no topic"


def _broken(promise: Promise, raw: RawFacts) -> Iterator[str]:
    """Returns how a promise is broken."""
    records = [raw.records[id_] for id_ in promise.ids]

    for record in records:
        name = f"{promise.kind}: {record.id} of story {record.story}"
        if promise.kind == UNREADABLE:
            yield from _not_refused(name, record, promise.facts["reason"], raw)
        elif promise.kind == ORPHAN:
            reasons = Counter(raw.conflicts.get((record.queue_id, record.queue_offset or 0), []))
            if set(reasons) - {"orphan_expired"}:
                yield f"{name} came to {dict(reasons)}"
        else:
            yield from _misplaced(name, record, promise, raw.of(record), raw)

    if promise.kind == DELIVERED and promise.facts["is_set"]:
        yield from _out_of_order(records, raw)


def _misplaced(
    name: str, record: RawRecord, promise: Promise, rows: list[tuple[str, Row]], raw: RawFacts
) -> Iterator[str]:
    is_wanted = promise.kind == DELIVERED or (
        promise.kind == LATER and not raw.is_cancelled(record)
    )
    if len(rows) != is_wanted:
        yield f"{name} is delivered {len(rows)} times: {[place_of(*row) for row in rows]}"
    for topic, row in rows:
        if promise.kind != WITHHELD and topic != RAW_TOPIC:
            yield f"{name} is in {place_of(topic, row)}"
        not_before = promise.facts.get("not_before_ms")
        if not_before is not None and milliseconds(row["stored_at"]) < not_before:
            yield f"{name} is there too early: {place_of(topic, row)}"


def _not_refused(name: str, record: RawRecord, reason: str, raw: RawFacts) -> Iterator[str]:
    row = raw.rows.get((record.kind, record.queue_id, record.queue_offset or 0), {})
    if row.get("error") != reason:
        yield f"{name} has the error {row.get('error')}, not {reason}"
    elif record.kind == ADMIN and row["result"] != reason:
        yield f"{name} has the result {row['result']}, not {reason}"
    reasons = raw.conflicts.get((record.queue_id, record.queue_offset or 0))
    if record.kind == OP and reasons != ["unreadable_operation"]:
        yield f"{name} came to {reasons}"
    if raw.of(record):
        yield f"{name} is delivered"


def _out_of_order(records: list[RawRecord], raw: RawFacts) -> Iterator[str]:
    """The messages of a set are delivered in one epoch; those of one queue in TRAN_SEQ order."""
    rows = [row for record in records for _, row in raw.of(record)]
    if len({row["epoch"] for row in rows}) > 1:
        yield f"set {records[0].transaction_id} is delivered in several epochs"
    offsets: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        offsets[row["queue_id"]].append(row["queue_offset"])
    if any(found != sorted(found) for found in offsets.values()):
        yield f"set {records[0].transaction_id} is not in TRAN_SEQ order: {dict(offsets)}"

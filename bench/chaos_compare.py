"""Compare the producers' journal with the lake, and the lake with what the consumer saw.

Each difference is one sentence that names the row. No difference: every committed message is in
its topic once and as it was sent, nothing else is, and the consumer saw all of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.chaos_journal import COMMIT, ROLLBACK, SILENT, Journal, Seen
from storage.lake import Lake
from txlake.protocol import CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC

_OUTCOMES = {COMMIT: "COMMITTED", ROLLBACK: "ROLLED_BACK", SILENT: "DISCARDED"}
# Ends that come twice are what retries look like; every other reason would be somebody's mistake.
_EXPECTED_CONFLICTS = {"duplicate_end"}
NAMED_MAX = 20  # differences told of each kind


@dataclass(frozen=True)
class Facts:
    """What stands in the lake, as plain rows."""

    halves: list[dict[str, Any]]
    ends: Mapping[tuple[int, int], dict[str, Any]]  # the outcome that holds, by half coordinate
    checks: list[dict[str, Any]]
    conflicts: list[dict[str, Any]]
    messages: Mapping[str, list[dict[str, Any]]]  # by real topic, in queue order


def read_facts(lake: Lake) -> Facts:
    """Read what is compared."""
    ends: dict[tuple[int, int], dict[str, Any]] = {}
    for row in sorted(lake.read("outcomes").to_pylist(), key=lambda row: row["epoch"]):
        ends[row["queue_id"], row["queue_offset"]] = row
    columns = ["queue_id", "queue_offset", "transaction_id", "keys", "error"]
    messages = {}
    for row in lake.read("catalog").to_pylist():
        rows = lake.read(f"topics/{row['table_id']}").to_pylist()
        rows.sort(key=lambda row: (row["queue_id"], row["queue_offset"]))
        messages[row["topic"]] = rows
    return Facts(
        halves=lake.read("half", columns).to_pylist(),
        ends=ends,
        checks=lake.read("checks").to_pylist(),
        conflicts=lake.read("conflicts").to_pylist(),
        messages=messages,
    )


def undecided(facts: Facts, journal: Journal) -> list[str]:
    """Name the halves that have no end, or not yet the one that the journal has."""
    ends = journal.ends()
    found = []
    for half in facts.halves:
        place = half["queue_id"], half["queue_offset"]
        outcome = facts.ends.get(place, {}).get("outcome", "pending")
        end, why = ends.get(half["transaction_id"], ("nothing", ""))
        if outcome != _OUTCOMES.get(end):
            found.append(
                f"half {place[0]}-{place[1]} of transaction {half['transaction_id']} is {outcome};"
                f" the journal has {end} ({why})"
            )
    return found


def compare(facts: Facts, journal: Journal, seen: Seen, check_max: int) -> list[str]:
    """Give every difference, the first of each kind."""
    kinds = (
        (f"unreadable half: {half}" for half in facts.halves if half["error"]),
        iter(undecided(facts, journal)),
        _deliveries(facts, journal),
        _copies(facts),
        _gaps(facts),
        _unseen(facts, seen),
        _too_many_checks(facts, check_max),
        (
            f"conflict {row['reason']}: operation {row['queue_id']}-{row['op_queue_offset']} about"
            f" half offset {row['half_queue_offset']}"
            for row in facts.conflicts
            if row["reason"] not in _EXPECTED_CONFLICTS
        ),
    )
    return [text for kind in kinds for text in _first(list(kind))]


def _first(texts: Sequence[str]) -> list[str]:
    more = len(texts) - NAMED_MAX
    return [*texts[:NAMED_MAX], *([f"and {more} more like this"] if more > 0 else [])]


def _deliveries(facts: Facts, journal: Journal) -> Iterator[str]:
    """Compare topic tables with the journal: each committed message once, equal, nothing else."""
    delivered = defaultdict(list)
    for topic, rows in facts.messages.items():
        if topic != CHECK_MAX_TOPIC:
            for row in rows:
                delivered[row["keys"]].append((topic, row))
    committed = journal.committed()
    for key, (transaction_id, sent) in committed.items():
        rows = delivered.pop(key, [])
        name = f"message {key} of committed transaction {transaction_id}"
        if len(rows) != 1:
            places = [_place(topic, row) for topic, row in rows]
            yield f"{name} is delivered {len(rows)} times: {places}"
        for topic, row in rows:
            found = (topic, row["transaction_id"], row["body"])
            if found != (sent.topic, transaction_id, sent.body):
                yield f"{name} differs in {_place(topic, row)}"
            if sent.queue_id not in (None, row["queue_id"]):
                yield f"{name} asked for queue {sent.queue_id}, but is in {_place(topic, row)}"
    for key, rows in delivered.items():
        for topic, row in rows:
            yield f"message {key} was never committed, but is in {_place(topic, row)}"


def _copies(facts: Facts) -> Iterator[str]:
    """Each half that was discarded once has one copy; ends that came later leave it there."""
    copies = Counter(
        (row["half_queue_id"], row["half_queue_offset"])
        for row in facts.messages.get(CHECK_MAX_TOPIC, [])
    )
    for place, end in facts.ends.items():
        was_discarded = end["outcome"] == "DISCARDED" or end["cause"] == "late_end"
        if copies.pop(place, 0) != was_discarded:
            yield f"half {place} is {end['outcome']}, {end['cause']}: wrong copies of it"
    for place, count in copies.items():
        yield f"half {place} has no end, but {count} copies in {CHECK_MAX_TOPIC}"
    for row in facts.messages.get(UNDELIVERABLE_TOPIC, []):
        yield f"message {row['keys']} is undeliverable: {row['reason']}"


def _gaps(facts: Facts) -> Iterator[str]:
    """Queue offsets are contiguous from 0."""
    for topic, rows in facts.messages.items():
        expected: Counter[int] = Counter()
        for row in rows:
            if row["queue_offset"] != expected[row["queue_id"]]:
                yield f"{_place(topic, row)} stands where {expected[row['queue_id']]} is expected"
            expected[row["queue_id"]] = row["queue_offset"] + 1


def _unseen(facts: Facts, seen: Seen) -> Iterator[str]:
    """Compare what the consumer saw with the topic tables."""
    rows = seen.rows()
    topics = {topic for topic, *_ in rows}
    there = {
        (topic, row["queue_id"], row["queue_offset"], row["keys"]): row["body"]
        for topic, rows in facts.messages.items()
        if topic in topics
        for row in rows
    }
    for topic, queue_id, queue_offset, key, body, _ in rows:
        name = f"message {key} at {topic} {queue_id}-{queue_offset}"
        place = (topic, queue_id, queue_offset, key)
        if place not in there:
            yield f"the consumer saw {name}, which is not there"
        elif there.pop(place) != body:
            yield f"the consumer saw {name} with another body"
    for topic, queue_id, queue_offset, key in there:
        yield f"the consumer never saw message {key} at {topic} {queue_id}-{queue_offset}"


def _too_many_checks(facts: Facts, check_max: int) -> Iterator[str]:
    """No half is asked about more than check_max times, each question with its own number."""
    asked: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row in facts.checks:
        if row["acknowledged"]:
            place = (row["queue_id"], row["queue_offset"], row["arm"])
            asked[place].append(row["check_times"])
    for place, numbers in asked.items():
        if sorted(numbers) != list(range(1, len(numbers) + 1)) or len(numbers) > check_max:
            yield f"half {place} was asked about as number {sorted(numbers)}, {check_max} at most"


def _place(topic: str, row: Mapping[str, Any]) -> str:
    return f"{topic} {row['queue_id']}-{row['queue_offset']} (epoch {row['epoch']})"

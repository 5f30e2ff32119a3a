"""Comparison of the SDK producers' journal with the lake, and of the lake with what was seen.

Each difference is one sentence that names the row. No difference: every committed message is in
its topic once and as it was sent, nothing else is, and the consumer saw all of it. What the raw
producer sent is compared in `bench/chaos/raw_compare.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.chaos.journal import COMMIT, ROLLBACK, SILENT, Journal, Seen
from bench.chaos.names import CONSUMED, GROUP, TOPICS
from storage.lake.lake import Lake
from txlake.protocol import CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC

_OUTCOMES = {COMMIT: "COMMITTED", ROLLBACK: "ROLLED_BACK", SILENT: "DISCARDED"}
TOO_LATE = "end_after_discard"
# Ends that come twice are what retries look like, late ones what `late_end_policy = "reject"` does;
# every other reason would be somebody's mistake.
_EXPECTED_CONFLICTS = {"duplicate_end", TOO_LATE}
NAMED_MAX = 20  # differences told of each kind
Row = dict[str, Any]


@dataclass(frozen=True)
class Facts:
    """What stands in the lake, as plain rows: of the SDK producers' group, `messages` of all."""

    halves: list[Row]
    ends: Mapping[tuple[int, int], Row]  # the outcome that holds, by half coordinate
    checks: list[Row]  # of all groups
    conflicts: list[Row]
    named: set[tuple[int, int]]  # by a COMMIT or ROLLBACK
    messages: Mapping[str, list[Row]]  # by real topic, in queue order

    def given_up(self) -> set[str]:
        """The transactions that stay discarded: their end came too late, or never.

        Never: the job was away until the half had expired, so it did not ask those who knew.
        """
        ids = {
            (half["queue_id"], half["queue_offset"]): half["transaction_id"] for half in self.halves
        }
        late = {
            ids.get((row["queue_id"], row["half_queue_offset"]), "")
            for row in self.conflicts
            if row["reason"] == TOO_LATE
        }

        told = {ids.get(place, "") for place in self.named}

        discarded = [end for end in self.ends.values() if end["outcome"] == "DISCARDED"]
        unasked = {end["transaction_id"] for end in discarded if end["cause"] == "expired"} - told
        return (late | unasked) & {end["transaction_id"] for end in discarded}

    def delivered(self) -> int:
        """The number of messages of the SDK producers that are delivered."""
        return sum(
            row["producer_group"] == GROUP
            for topic in TOPICS
            for row in self.messages.get(topic, [])
        )

    def consumed(self) -> int:
        """The number of messages that the consumer has to see."""
        return sum(len(self.messages.get(topic, [])) for topic in CONSUMED)


def read_facts(lake: Lake) -> Facts:
    """Reads what is compared."""
    ends: dict[tuple[int, int], Row] = {}
    for row in sorted(lake.read("outcomes").to_pylist(), key=lambda row: row["epoch"]):
        if row["producer_group"] == GROUP:
            ends[row["queue_id"], row["queue_offset"]] = row

    columns = ["queue_id", "queue_offset", "producer_group", "transaction_id", "error"]
    halves = lake.read("half", columns).to_pylist()

    columns = ["queue_id", "queue_offset", "producer_group", "decision", "half_offsets"]
    operations = [
        row for row in lake.read("op", columns).to_pylist() if row["producer_group"] == GROUP
    ]
    own = {(row["queue_id"], row["queue_offset"]) for row in operations}

    messages = {}
    for row in lake.read("catalog").to_pylist():
        rows = lake.read(f"topics/{row['table_id']}").to_pylist()
        rows.sort(key=lambda row: (row["queue_id"], row["queue_offset"]))
        messages[row["topic"]] = rows

    return Facts(
        halves=[row for row in halves if row["producer_group"] == GROUP],
        ends=ends,
        checks=lake.read("checks").to_pylist(),
        conflicts=[
            row
            for row in lake.read("conflicts").to_pylist()
            if (row["queue_id"], row["op_queue_offset"]) in own
        ],
        named={
            (row["queue_id"], offset)
            for row in operations
            if row["decision"] in (COMMIT, ROLLBACK)
            for offset in row["half_offsets"]
        },
        messages=messages,
    )


def undecided(facts: Facts, journal: Journal) -> list[str]:
    """Names the halves that have no end, or not yet the one that the journal has."""
    ends = journal.ends()
    given_up = facts.given_up()
    found = []

    for half in facts.halves:
        place = half["queue_id"], half["queue_offset"]
        outcome = facts.ends.get(place, {}).get("outcome", "pending")
        end, why = ends.get(half["transaction_id"], ("nothing", ""))
        is_given_up = outcome == "DISCARDED" and half["transaction_id"] in given_up

        if outcome != _OUTCOMES.get(end) and not is_given_up:
            found.append(
                f"half {place[0]}-{place[1]} of transaction {half['transaction_id']} is {outcome};"
                f" the journal has {end} ({why})"
            )
    return found


def compare(facts: Facts, journal: Journal, seen: Seen, check_max: int) -> list[str]:
    """Returns every difference, the first of each kind."""
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

    return [text for kind in kinds for text in first(list(kind))]


def first(texts: Sequence[str]) -> list[str]:
    """Returns the first of many differences, and how many more there are."""
    more = len(texts) - NAMED_MAX
    return [*texts[:NAMED_MAX], *([f"and {more} more like this"] if more > 0 else [])]


def _deliveries(facts: Facts, journal: Journal) -> Iterator[str]:
    """Compares topic tables with the journal: each committed message once, equal, nothing else."""
    delivered = defaultdict(list)
    for topic, rows in facts.messages.items():
        if topic != CHECK_MAX_TOPIC:
            for row in rows:
                if row["producer_group"] == GROUP:
                    delivered[row["keys"]].append((topic, row))

    committed = journal.committed()
    given_up = facts.given_up()

    for key, (transaction_id, sent) in committed.items():
        if transaction_id in given_up:
            continue  # what is delivered of it stays in `delivered`: a difference
        found = delivered.pop(key, [])

        name = f"message {key} of committed transaction {transaction_id}"
        if len(found) != 1:
            places = [place_of(topic, row) for topic, row in found]
            yield f"{name} is delivered {len(found)} times: {places}"

        for topic, row in found:
            there = (topic, row["transaction_id"], row["body"])
            if there != (sent.topic, transaction_id, sent.body):
                yield f"{name} differs in {place_of(topic, row)}"
            if sent.queue_id not in (None, row["queue_id"]):
                yield f"{name} asked for queue {sent.queue_id}, but is in {place_of(topic, row)}"

    for key, found in delivered.items():
        for topic, row in found:
            yield f"message {key} was never committed, but is in {place_of(topic, row)}"


def _copies(facts: Facts) -> Iterator[str]:
    """Each half that was discarded once has one copy; ends that came later leave it there."""
    copies = Counter(
        (row["half_queue_id"], row["half_queue_offset"])
        for row in facts.messages.get(CHECK_MAX_TOPIC, [])
        if row["producer_group"] == GROUP
    )

    for place, end in facts.ends.items():
        was_discarded = end["outcome"] == "DISCARDED" or end["cause"] == "late_end"
        if copies.pop(place, 0) != was_discarded:
            yield f"half {place} is {end['outcome']}, {end['cause']}: wrong copies of it"

    for place, count in copies.items():
        yield f"half {place} has no end, but {count} copies in {CHECK_MAX_TOPIC}"

    for row in facts.messages.get(UNDELIVERABLE_TOPIC, []):
        if row["producer_group"] == GROUP:
            yield f"message {row['keys']} is undeliverable: {row['reason']}"


def _gaps(facts: Facts) -> Iterator[str]:
    """Queue offsets are contiguous from 0."""
    for topic, rows in facts.messages.items():
        expected: Counter[int] = Counter()
        for row in rows:
            if row["queue_offset"] != expected[row["queue_id"]]:
                yield f"{place_of(topic, row)} stands where {expected[row['queue_id']]} is expected"
            expected[row["queue_id"]] = row["queue_offset"] + 1


def _unseen(facts: Facts, seen: Seen) -> Iterator[str]:
    """Compares what the consumer saw with the topic tables."""
    there = {
        (topic, row["queue_id"], row["queue_offset"], row["keys"]): row["body"]
        for topic in CONSUMED
        for row in facts.messages.get(topic, [])
    }

    for topic, queue_id, queue_offset, key, body, _ in seen.rows():
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


def place_of(topic: str, row: Mapping[str, Any]) -> str:
    """Names the place of a message."""
    return f"{topic} {row['queue_id']}-{row['queue_offset']} (epoch {row['epoch']})"

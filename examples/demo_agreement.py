"""What the demo claims at its end, as a pure function: what was seen in, what disagrees out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from examples.order_service import REMINDER_LEVEL
from txlake import protocol

CHECK_MAX = 15
REMINDER_MS = protocol.delay_levels_ms(protocol.DELAY_LEVELS)[REMINDER_LEVEL - 1]


@dataclass(frozen=True)
class Seen:
    """Hold what stands in the databases and in the lake; everything by transaction id.

    From orders.sqlite: `committed`, `refused`, `order_points` (a sum), `to_remind`.
    From the lake: `halves` and `forgotten` (half messages of the two producer groups, of several
    in a transaction the first), `delivered` (topic `orders`), `rolled_back` and `causes`
    (outcomes), `reminded` (topic `reminders`) and how long after its order each was,
    `reminded_after_ms`, `given_up` (TRANS_CHECK_MAX_TIME_TOPIC), `checks` (acknowledged ones).
    From Kafka: `published` (topic `orders`, as any consumer reads it).
    From points.sqlite: `pointed` (rows), `balance_points` (a sum).
    From the demo itself: `killed`, the transaction whose service was killed before its COMMIT.
    """

    committed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    order_points: int = 0
    to_remind: tuple[str, ...] = ()
    halves: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    delivered: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    rolled_back: tuple[str, ...] = ()
    causes: Mapping[str, str] = field(default_factory=dict)
    reminded: tuple[str, ...] = ()
    reminded_after_ms: Mapping[str, int] = field(default_factory=dict)
    given_up: tuple[str, ...] = ()
    checks: Mapping[str, int] = field(default_factory=dict)
    pointed: tuple[str, ...] = ()
    balance_points: int = 0
    killed: str = ""

    def is_quiet(self, orders: int) -> bool:
        """Return whether all `orders` have ended and have arrived everywhere: nothing is open."""
        return (
            len(self.committed) + len(self.refused) >= orders
            and len(self.halves) >= orders
            and len(self.forgotten) >= 1
            and len(self.delivered) >= len(self.committed)
            and len(self.published) >= len(self.committed)
            and len(self.rolled_back) >= len(self.refused)
            and len(self.pointed) >= len(self.committed)
            and len(self.reminded) >= len(self.to_remind)
            and len(self.given_up) >= len(self.forgotten)
        )


def disagreements(seen: Seen, check_max: int = CHECK_MAX) -> list[str]:
    """Return every claim that does not hold, one sentence each; none is what we want."""
    return [
        *_nothing_happened(seen),
        *_differ("order in SQLite", seen.committed, "message in topic orders", seen.delivered),
        *_differ("order in SQLite", seen.committed, "record in Kafka", seen.published),
        *_differ("order in SQLite", seen.committed, "points row", seen.pointed),
        *_differ("order refused in SQLite", seen.refused, "rolled back", seen.rolled_back),
        *_differ(
            "half message of the order service",
            seen.halves,
            "committed or refused in SQLite",
            [*seen.committed, *seen.refused],
        ),
        *_differ(
            "half message of the forgetful service",
            seen.forgotten,
            "message in TRANS_CHECK_MAX_TIME_TOPIC",
            seen.given_up,
        ),
        *_differ(
            "order to remind of in SQLite",
            seen.to_remind,
            "message in topic reminders",
            seen.reminded,
        ),
        *_early(seen),
        *_killed(seen),
        *_asked(seen, check_max),
        *_points(seen),
    ]


def _nothing_happened(seen: Seen) -> Iterable[str]:
    for ids, what in (
        (seen.committed, "committed"),
        (seen.refused, "refused"),
        (seen.forgotten, "forgotten"),
        (seen.to_remind, "to be reminded of"),
    ):
        if not ids:
            yield f"nothing was {what}: the demo has not shown it"


def _differ(name: str, ones: Iterable[str], other_name: str, others: Iterable[str]) -> list[str]:
    """Compare two sides in which each transaction stands exactly once."""
    counts, other_counts = Counter(ones), Counter(others)
    told = [
        f"{transaction_id}: {count} times {side}, not once"
        for side, side_counts in ((name, counts), (other_name, other_counts))
        for transaction_id, count in side_counts.items()
        if count > 1
    ]
    told += [f"{one}: {name}, but not {other_name}" for one in counts if one not in other_counts]
    told += [f"{one}: {other_name}, but not {name}" for one in other_counts if one not in counts]
    return told


def _early(seen: Seen) -> Iterable[str]:
    for transaction_id, after_ms in seen.reminded_after_ms.items():
        if after_ms < REMINDER_MS:
            yield f"{transaction_id}: reminded {after_ms} ms after its order, not {REMINDER_MS}"


def _killed(seen: Seen) -> Iterable[str]:
    if seen.killed not in seen.committed:
        yield f"{seen.killed or 'nothing'}: killed, but no order in SQLite"
    if seen.killed not in seen.delivered:
        yield f"{seen.killed or 'nothing'}: killed, committed and never delivered"
    cause = seen.causes.get(seen.killed)
    if cause != "check_answer":
        yield f"{seen.killed or 'nothing'}: killed and ended by {cause}, not by check_answer"


def _asked(seen: Seen, check_max: int) -> Iterable[str]:
    for transaction_id in seen.forgotten:
        times = seen.checks.get(transaction_id, 0)
        if times != check_max:
            yield f"{transaction_id}: forgotten and asked {times} times, not {check_max}"


def _points(seen: Seen) -> Iterable[str]:
    if seen.order_points != seen.balance_points:
        yield f"orders are worth {seen.order_points} points, the balances {seen.balance_points}"

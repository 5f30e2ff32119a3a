"""Make a lake of any size without Kafka and Spark: rows as the job would have written them.

Run: python -m bench.synthetic_lake FOLDER TRANSACTIONS FILES

An epoch holds 1,000 transactions with ids as the SDK makes them (time first); FILES says how many
files each table has: as many as epochs is a lake that was never compacted, fewer is one that was.
Of each thousand transactions 1 is never answered, 10 are rolled back, 20 are ended by the answer
to a check, 50 in the epoch after their own; 25 are delayed for three epochs. Each hundredth epoch
takes a snapshot of the state.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.synthetic_rows import SyntheticRows
from checker.frames import RULE_VERSION, Parameters
from storage.lake.epochs import Plan, Range, committed_row, planned_row
from storage.lake.floor import FLOOR, Floor
from storage.lake.lake import Lake
from storage.lake.snapshots import Snapshot
from storage.rows import instant
from storage.schemas import LEFT, PUT, SNAPSHOT
from txlake import protocol as p

QUEUES = 4
EPOCH_ROWS = 1_000
EPOCH_MS = 2_000
SNAPSHOT_EPOCHS = 100
START_MS = 1_767_225_600_000  # 2026-01-01
TOPICS = {
    "half": p.HALF_TOPIC,
    "op": p.OP_TOPIC,
    "schedule": p.SCHEDULE_TOPIC,
    "admin": p.ADMIN_TOPIC,
}
_BODIES = np.random.default_rng(1).bytes(1 << 20)


class _Operation(NamedTuple):
    """An operation on the half of a number. `offset`: its own, in its queue."""

    number: int
    decision: str
    is_answer: bool
    offset: int


def transaction_id(number: int) -> str:
    """Return the id of a transaction, as two producers of our SDK would have made it."""
    at = START_MS + number * EPOCH_MS // EPOCH_ROWS
    return f"{at:012x}{('a1' if number % 2 else '5e') * 6}{number // 2:08x}"


def _is(numbers: Any, every: int, place: int) -> Any:
    return numbers % every == place


def _ends(numbers: Any, lag: int) -> Any:
    """Return the transactions that are ended so many epochs after their own."""
    silent, late, checked = _is(numbers, 1000, 7), _is(numbers, 20, 3), _is(numbers, 50, 11)
    kinds = [~silent & ~late & ~checked, late & ~checked, checked]
    return numbers[kinds[lag] & ~silent]


def make(path: str, transactions: int, files: int) -> Lake:
    """Write the lake."""
    lake = Lake(path)
    lake.create(instant(START_MS))
    lake.create_table("topics/1")

    epochs = transactions // EPOCH_ROWS
    rows = SyntheticRows(lake, max(1, epochs // files))
    rows.add(
        "catalog",
        1,
        topic=["orders"],
        table_id=[1],
        queue_count=[QUEUES],
        epoch=[1],
        created_at=[instant(START_MS)],
    )

    op_next = [0] * QUEUES
    real_next = [0] * QUEUES

    for epoch in range(1, epochs + 1):
        add_epoch(rows, epoch, op_next, real_next)
        rows.end_epoch(epoch, epoch == epochs)

    return lake


def add_epoch(rows: SyntheticRows, epoch: int, op_next: list[int], real_next: list[int]) -> None:
    """Add all rows of an epoch. Input: the next offsets of operations and messages, by queue."""
    at_ms = START_MS + epoch * EPOCH_MS
    at = instant(at_ms)
    first = (epoch - 1) * EPOCH_ROWS
    numbers = np.arange(first, first + EPOCH_ROWS)
    landed_before = list(op_next)

    _land_halves(rows, epoch, numbers)

    asked = numbers - EPOCH_ROWS
    asked = asked[(asked >= 0) & (_is(asked, 50, 11) | _is(asked, 1000, 7))]

    rows.add(
        "checks",
        len(asked),
        queue_id=asked % QUEUES,
        queue_offset=asked // QUEUES,
        arm=0,
        check_times=1,
        check_id=[f"{n % QUEUES}-{n // QUEUES}-0-1" for n in asked],
        producer_group="shop",
        sent_at=[at] * len(asked),
        acknowledged=[True] * len(asked),
        epoch=epoch,
    )

    ended = [_ends(numbers - lag * EPOCH_ROWS, lag) for lag in range(3)]
    ended = [numbers[numbers >= 0] for numbers in ended]

    answers = numbers[_is(numbers, 50, 11)]
    records = [(n, "UNKNOWN", False) for n in answers]
    for lag, ends in enumerate(ended):
        records += [(n, "ROLLBACK" if n % 100 == 13 else "COMMIT", lag == 2) for n in ends]

    operations = _land_operations(rows, epoch, at, records, op_next)
    _end_halves(rows, epoch, at, operations, real_next)

    gone = np.concatenate(ended[1:])
    _record_state(rows, epoch, at, np.setdiff1d(numbers, ended[0]), np.setdiff1d(asked, gone), gone)

    if epoch % SNAPSHOT_EPOCHS == 0:
        rows.take_snapshot(epoch)
    _add_epoch(rows, epoch, at_ms, landed_before, op_next, real_next)


def _land_halves(rows: SyntheticRows, epoch: int, numbers: np.ndarray) -> None:
    stored = [instant(START_MS + int(n) * EPOCH_MS // EPOCH_ROWS) for n in numbers]
    count = len(numbers)
    starts = (numbers * 251) % (len(_BODIES) - 256)

    rows.add(
        "half",
        count,
        queue_id=numbers % QUEUES,
        queue_offset=numbers // QUEUES,
        stored_at=stored,
        epoch=epoch,
        producer_group="shop",
        transaction_id=[transaction_id(int(n)) for n in numbers],
        real_topic="orders",
        keys=[f"order-{n}" for n in numbers],
        born_at=stored,
        body=[_BODIES[start : start + 256] for start in starts],
        delay_level=pa.array([1 if n % 40 == 17 else None for n in numbers], pa.int32()),
    )


def _record_state(
    rows: SyntheticRows,
    epoch: int,
    at: Any,
    waiting: np.ndarray,
    asked: np.ndarray,
    gone: np.ndarray,
) -> None:
    """Record what the epoch changed of the pending halves."""
    for numbers, times in ((waiting, 0), (asked, 1)):
        stored = [instant(START_MS + int(n) * EPOCH_MS // EPOCH_ROWS) for n in numbers]
        rows.add(
            "pending",
            len(numbers),
            change=PUT,
            queue_id=numbers % QUEUES,
            queue_offset=numbers // QUEUES,
            unit_offset=numbers // QUEUES,
            arm=0,
            stored_at=stored,
            age_from_at=stored,
            producer_group="shop",
            transaction_id=[transaction_id(int(n)) for n in numbers],
            real_topic="orders",
            check_times=times,
            unacknowledged=0,
            checked_at=[at if times else None] * len(numbers),
            delay_level=pa.array([1 if n % 40 == 17 else None for n in numbers], pa.int32()),
            discards=0,
            epoch=epoch,
        )

    rows.add(
        "pending",
        len(gone),
        change=LEFT,
        queue_id=gone % QUEUES,
        queue_offset=gone // QUEUES,
        epoch=epoch,
    )


def _land_operations(
    rows: SyntheticRows,
    epoch: int,
    at: Any,
    records: list[tuple[int, str, bool]],
    op_next: list[int],
) -> list[_Operation]:
    """Add an epoch's operations. Output: them, with the offsets that they got."""
    operations = []
    for number, decision, is_answer in records:
        queue = number % QUEUES
        operations.append(_Operation(number, decision, is_answer, op_next[queue]))
        op_next[queue] += 1

    rows.add(
        "op",
        len(operations),
        queue_id=[o.number % QUEUES for o in operations],
        queue_offset=[o.offset for o in operations],
        stored_at=[at] * len(operations),
        epoch=epoch,
        producer_group="shop",
        decision=[o.decision for o in operations],
        half_offsets=[[o.number // QUEUES] for o in operations],
        transaction_ids=[[transaction_id(int(o.number))] for o in operations],
        from_check=[o.is_answer for o in operations],
        check_id=[
            f"{o.number % QUEUES}-{o.number // QUEUES}-0-1" if o.is_answer else None
            for o in operations
        ],
        body=[b"%d," % (o.number // QUEUES) for o in operations],
    )
    return operations


def _end_halves(
    rows: SyntheticRows, epoch: int, at: Any, operations: list[_Operation], real_next: list[int]
) -> None:
    """Add what an epoch's operations end: outcomes, and messages that are delivered or delayed."""
    ends = [o for o in operations if o.decision != "UNKNOWN"]

    places: list[tuple[int | None, int | None]] = []  # real queue and offset
    for end in ends:
        if end.decision == "COMMIT" and not _is(end.number, 40, 17):
            queue = int(end.number // QUEUES % QUEUES)
            places.append((queue, real_next[queue]))
            real_next[queue] += 1
        else:
            places.append((None, None))

    ended = np.array([end.number for end in ends])

    rows.add(
        "outcomes",
        len(ends),
        queue_id=ended % QUEUES,
        queue_offset=ended // QUEUES,
        arm=0,
        outcome=["COMMITTED" if end.decision == "COMMIT" else "ROLLED_BACK" for end in ends],
        cause=["check_answer" if end.is_answer else "operation" for end in ends],
        op_queue_offset=[end.offset for end in ends],
        decided_at=[at] * len(ends),
        epoch=epoch,
        producer_group="shop",
        transaction_id=[transaction_id(int(number)) for number in ended],
        real_topic="orders",
        real_queue_id=[queue for queue, _ in places],
        real_queue_offset=[offset for _, offset in places],
    )

    _delay(rows, epoch, at, ended[_is(ended, 40, 17)])
    _deliver_delayed(rows, epoch, at, real_next)
    _deliver(rows, epoch, at, [(o.number, *place) for o, place in zip(ends, places, strict=True)])


def _delay(rows: SyntheticRows, epoch: int, at: Any, late: np.ndarray) -> None:
    rows.add(
        "delayed",
        len(late),
        change=PUT,
        source="half",
        queue_id=late % QUEUES,
        queue_offset=late // QUEUES,
        deliver_at=[at] * len(late),
        real_topic="orders",
        epoch=epoch,
    )


def _deliver(
    rows: SyntheticRows, epoch: int, at: Any, ended: list[tuple[int, int | None, int | None]]
) -> None:
    """Add messages of ended halves. Input: number, real queue and offset; null: none is sent."""
    messages = [(number, queue, offset) for number, queue, offset in ended if offset is not None]

    rows.add(
        "topics/1",
        len(messages),
        queue_id=[queue for _, queue, _ in messages],
        queue_offset=[offset for _, _, offset in messages],
        stored_at=[at] * len(messages),
        source="half",
        producer_group="shop",
        real_topic="orders",
        body=b"",
        half_queue_id=[number % QUEUES for number, _, _ in messages],
        half_queue_offset=[number // QUEUES for number, _, _ in messages],
        epoch=epoch,
    )


def _deliver_delayed(rows: SyntheticRows, epoch: int, at: Any, real_next: list[int]) -> None:
    due = np.arange((epoch - 6) * EPOCH_ROWS, (epoch - 5) * EPOCH_ROWS)
    due = due[(due >= 0) & (due % 40 == 17) & (due % 1000 != 7)]

    places = []
    for number in due:
        queue = int(number // QUEUES % QUEUES)
        places.append((queue, real_next[queue]))
        real_next[queue] += 1

    rows.add(
        "deliveries",
        len(due),
        source="half",
        queue_id=due % QUEUES,
        queue_offset=due // QUEUES,
        action="DELIVERED",
        real_topic="orders",
        real_queue_id=[q for q, _ in places],
        real_queue_offset=[o for _, o in places],
        decided_at=[at] * len(due),
        epoch=epoch,
    )

    rows.add(
        "delayed",
        len(due),
        change=LEFT,
        source="half",
        queue_id=due % QUEUES,
        queue_offset=due // QUEUES,
        epoch=epoch,
    )


def _add_epoch(
    rows: SyntheticRows,
    epoch: int,
    at_ms: int,
    ops_before: list[int],
    ops_after: list[int],
    real_next: list[int],
) -> None:
    halves = EPOCH_ROWS // QUEUES
    ranges = [
        Range(p.HALF_TOPIC, q, (epoch - 1) * halves, epoch * halves, epoch * halves)
        for q in range(QUEUES)
    ]

    ranges += [
        Range(p.OP_TOPIC, q, ops_before[q], ops_after[q], ops_after[q]) for q in range(QUEUES)
    ]

    wire = {
        "topics": TOPICS,
        "check_topic_prefix": p.CHECK_TOPIC_PREFIX,
        "message_bytes_max": p.MESSAGE_BYTES_MAX,
        "messages_max": p.MESSAGES_MAX,
    }

    known = dict.fromkeys(range(QUEUES), at_ms)
    newest = epoch // SNAPSHOT_EPOCHS * SNAPSHOT_EPOCHS
    snapshot = Snapshot(newest, START_MS + newest * EPOCH_MS if newest else 0)

    plan = Plan(
        epoch,
        at_ms,
        known,
        known,
        tuple(ranges),
        "cluster",
        {},
        {
            **asdict(Parameters()),
            "wire": wire,
            SNAPSHOT: snapshot.as_parameter(),
            FLOOR: Floor().as_parameter(),
        },
        "bench",
        RULE_VERSION,
    )

    now = instant(at_ms)
    rows.add_to_chain(planned_row(plan, now))

    counts = {SNAPSHOT: 1} if newest == epoch else {}
    written = rows.written(is_all=newest == epoch)
    ends = {("orders", queue): offset for queue, offset in enumerate(real_next)}
    rows.add_to_chain(committed_row(plan, now, counts, {}, ends, written))


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

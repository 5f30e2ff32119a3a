"""Stories that end well or not, by their first valid end: halves alone, sets, several at once."""

from __future__ import annotations

from bench.chaos.names import STRANGER_GROUP, UNASKED_GROUP
from bench.chaos.raw_journal import DELIVERED, WITHHELD, RawRecord
from bench.chaos.raw_world import Story, Transaction, World
from txlake.protocol import COMMIT, HALF_TOPIC, ROLLBACK, UNKNOWN

_LONG_PAUSE = 0.25  # of the ends that come early wait for a set over a restart of the job
_NOBODY = "nobody"  # a transaction id that no half has


def ends_of(
    world: World, of: Transaction, halves: list[RawRecord], decision: str, end: RawRecord
) -> None:
    """Promises what the first end of a transaction did; `halves` in TRAN_SEQ order."""
    if decision == COMMIT:
        world.promise_delivery(of, halves, end)
    else:
        world.promise(WITHHELD, halves)


def more_ends(world: World, halves: list[RawRecord]) -> Story:
    """Sends ends that change nothing: duplicates, and the other decision."""
    for _ in range(world.rng.choice((0, 0, 1, 2))):
        yield world.pause(0.7)
        world.end(world.rng.choice((COMMIT, ROLLBACK, UNKNOWN)), world.some(halves))


def alone(world: World) -> Story:
    """A half alone: perhaps UNKNOWN first, then an end, then more of them."""
    of = world.transaction()
    half = world.half(of, with_marker=world.rng.random() < 0.1)
    yield world.pause(0.3)
    if world.rng.random() < 0.3:
        world.end(UNKNOWN, [half])
        yield world.pause(0.5)
    decision = world.one_of(COMMIT=7, ROLLBACK=3)
    end = world.end(decision, world.some([half]))
    ends_of(world, of, [half], decision, end)
    yield from more_ends(world, [half])


def set_in_any_order(world: World) -> Story:
    """A set whose halves come in any order, some TRAN_SEQ twice; its end comes at any time."""
    rng = world.rng
    of = world.transaction(size=rng.randint(2, 5))
    order = rng.sample(range(of.size), of.size)

    for _ in range(rng.choice((0, 0, 1, 2))):
        seq = rng.randrange(of.size)
        order.insert(rng.randint(order.index(seq) + 1, len(order)), seq)

    ends_after = rng.randint(1, len(order))
    decision = world.one_of(COMMIT=7, ROLLBACK=3)

    halves: list[RawRecord] = []
    first: dict[int, RawRecord] = {}
    end: RawRecord | None = None

    for count, seq in enumerate(order, 1):
        half = world.half(of, seq)
        halves.append(half)
        first.setdefault(seq, half)

        if count == ends_after:
            if rng.random() < 0.2:
                world.end(UNKNOWN, world.some(halves))
            end = world.end(decision, world.some(halves))
            yield rng.uniform(3.0, 12.0) if rng.random() < _LONG_PAUSE else world.pause(0.3)
            if rng.random() < 0.3:
                world.end(rng.choice((COMMIT, ROLLBACK)), world.some(halves))

        yield world.pause(0.2)
    assert end is not None
    ends_of(world, of, [first[seq] for seq in range(of.size)], decision, end)

    world.promise(WITHHELD, [half for half in halves if half not in first.values()])
    yield from more_ends(world, halves)


def incomplete_set(world: World) -> Story:
    """A set that lacks a half for ever: its COMMIT waits, its ROLLBACK does not."""
    of = world.transaction(size=world.rng.randint(2, 4))
    seqs = world.rng.sample(range(of.size), of.size - 1)
    seqs += world.rng.sample(seqs, world.rng.randint(0, 1))  # perhaps a duplicate
    halves = []
    for seq in seqs:
        halves.append(world.half(of, seq))
        yield world.pause(0.2)
    for _ in range(world.rng.randint(1, 2)):
        world.end(world.rng.choice((COMMIT, COMMIT, ROLLBACK)), world.some(halves))
        yield world.pause(0.5)
    world.promise(WITHHELD, halves)


def several_at_once(world: World) -> Story:
    """One operation that names halves alone, sets, one half twice, and what it cannot end."""
    rng = world.rng
    queue_id = world.transaction().queue_id

    ended = []
    named = []

    for _ in range(rng.randint(2, 4)):
        size = rng.choice((1, 1, 2, 3))
        of = Transaction(world.kafka.new_id(), queue_id, size=size)
        halves = [world.half(of, seq) for seq in range(size)]
        ended.append((of, halves))
        named += world.some(halves)
        yield world.pause(0.1)

    rng.shuffle(named)
    decision = world.one_of(COMMIT=7, ROLLBACK=3)
    end = world.end(decision, named)

    for of, halves in ended:
        ends_of(world, of, halves, decision, end)

    yield from more_ends(world, named)


def strangers(world: World) -> Story:
    """Operations that name others' halves: of another group, or of a transaction of no one."""
    of = world.transaction()
    half = world.half(of)
    yield world.pause(0.2)
    end = world.kafka.end_of(HALF_TOPIC, of.queue_id)
    near = [offset for offset in range(end - 3, end + 1) if offset >= 0]
    world.operation(COMMIT, of.queue_id, near, [_NOBODY] * len(near))
    world.end(world.rng.choice((COMMIT, ROLLBACK)), [half], group=STRANGER_GROUP)
    world.operation(ROLLBACK, of.queue_id, [half.queue_offset or 0], [_NOBODY])
    yield world.pause(0.5)
    ends_of(world, of, [half], COMMIT, world.end(COMMIT, [half], with_ids=True))


def unasked(world: World) -> Story:
    """A half of a group without a check topic: nobody can be asked, an end still counts."""
    of = world.transaction(group=UNASKED_GROUP, is_checked=True)
    half = world.half(of)
    yield world.rng.uniform(1.0, 12.0)
    if world.rng.random() < 0.6:
        end = world.end(COMMIT, [half], group=UNASKED_GROUP)
        world.promise_delivery(of, [half], end)
    else:
        world.promise(WITHHELD, [half])


def beside_a_gap(world: World) -> Story:
    """A half in a Kafka transaction, and an operation that names the marker behind it too."""
    of = world.transaction()
    half = world.half(of, with_marker=True)
    offset = half.queue_offset or 0
    yield world.pause(0.3)
    ids = [of.transaction_id] * 2
    world.operation(COMMIT, of.queue_id, [offset + 1, offset], ids)
    world.promise(DELIVERED, [half], is_set=False)

"""The stories of a soak, each a kind of traffic, and how many of each are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.soak.kafka import EPOCH_MS
from bench.soak.traffic import (
    ABSENT,
    EARLY_QUEUE,
    MUTE,
    REAL_TOPICS,
    SHOP,
    Sent,
    Story,
    World,
    encoded,
)
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake import protocol as p

# A half is asked about 1, 3 and 5 epochs after it was landed, and given up 2 epochs later.
IMMUNITY_MS = EPOCH_MS
CHECK_INTERVAL_MS = 2 * EPOCH_MS
CHECK_MAX = 3
_GIVEN_UP = 12  # epochs after which a half that nobody ends is given up
ORPHAN_EPOCHS = 10  # that an operation waits for its half
_FAR = 1_000_000_000  # an offset that no half gets
_WIDE = "wide"
_NARROW = "narrow"
_QUEUE = 5  # a queue that a new topic of 4 queues lacks


def alone(world: World) -> Story:
    """Tells of a half that its producer ends, soon."""
    half = world.half()
    if world.rng.random() < 0.4:
        yield 1
    world.end(world.one_of(COMMIT=8, ROLLBACK=2), half)
    if world.rng.random() < 0.05:
        yield 1
        world.end(world.one_of(COMMIT=1, ROLLBACK=1), half)


def together(world: World) -> Story:
    """Tells of halves that one operation ends."""
    halves = [world.half(queue=0) for _ in range(world.rng.randint(2, 4))]
    yield 1
    world.end(p.COMMIT, *halves)


def unanswered(world: World) -> Story:
    """Tells of a half that the answer to a check ends."""
    world.half()
    yield 1


def _members(world: World, size: int, count: int) -> list[Sent]:
    id_ = world.new_id()
    queue = world.rng.randrange(EARLY_QUEUE)
    return [
        world.half(queue=queue, id_=id_, extra={p.TRAN_SIZE: str(size), p.TRAN_SEQ: str(seq)})
        for seq in range(count)
    ]


def whole_set(world: World) -> Story:
    """Tells of a set that is complete, sometimes with a duplicate."""
    halves = _members(world, 3, 3)
    yield 1
    world.end(world.one_of(COMMIT=4, ROLLBACK=1), halves[0])
    if world.rng.random() < 0.2:
        yield 1
        extra = {p.TRAN_SIZE: "3", p.TRAN_SEQ: "0"}
        world.half(queue=halves[0].queue, id_=halves[0].id, extra=extra)


def part_of_a_set(world: World) -> Story:
    """Tells of a set that lacks a member for long, most often for ever; its COMMIT waits."""
    halves = _members(world, 3, 2)
    world.end(p.COMMIT, halves[0])
    yield world.within(0.1, 0.6)
    if world.rng.random() < 0.3:
        extra = {p.TRAN_SIZE: "3", p.TRAN_SEQ: "2"}
        world.half(queue=halves[0].queue, id_=halves[0].id, extra=extra)


def given_up(world: World) -> Story:
    """Tells of a half that is given up; sometimes ended after that, or made pending again."""
    half = world.half(MUTE)
    if world.rng.random() < 0.2:
        yield 1
        world.command(p.RESEND, f"half:{half.queue}-{half.offset}")

    yield _GIVEN_UP

    what = world.one_of(nothing=4, late=2, resumed=2)
    if what == "late":
        world.end(world.one_of(COMMIT=1, ROLLBACK=1), half)
    elif what == "resumed":
        world.command(p.RESUME, f"half:{half.queue}-{half.offset}")
        yield 2
        if world.rng.random() < 0.5:
            world.end(p.COMMIT, half)


def unasked(world: World) -> Story:
    """Tells of a half whose group cannot be asked: it expires."""
    world.half(ABSENT)
    yield 1


def below_the_floor(world: World) -> Story:
    """Tells of ends and commands that come when the half is below the floor."""
    half = world.half()
    world.end(p.COMMIT, half)
    yield world.within(1.3, 2.4)
    world.end(world.one_of(COMMIT=1, ROLLBACK=1), half)
    if world.rng.random() < 0.3:
        world.command(p.RESUME, f"half:{half.queue}-{half.offset}")


def _delay(world: World) -> dict[str, str]:
    if world.rng.random() < 0.7:
        return {p.DELAY: world.rng.choice(("3", "8", "14", "16"))}  # 10 s to 30 minutes
    epochs = world.within(0.1, 1.5)
    return {p.DELIVER_AT: str(world.kafka.now_ms + epochs * EPOCH_MS)}


def delayed(world: World) -> Story:
    """Tells of a committed message that waits for its time, sometimes cancelled."""
    half = world.half(extra=_delay(world))
    world.end(p.COMMIT, half)
    yield 2
    if world.rng.random() < 0.1:
        world.command(p.CANCEL, f"half:{half.queue}-{half.offset}")


def scheduled(world: World) -> Story:
    """Tells of a message without a transaction, sometimes delayed, sometimes cancelled."""
    offset = world.scheduled(_delay(world) if world.rng.random() < 0.8 else {})
    yield 1
    if world.rng.random() < 0.1:
        world.command(p.CANCEL, f"schedule:0-{offset}")


def orphan(world: World) -> Story:
    """Tells of an operation whose half never comes."""
    world.operation(p.COMMIT, 0, [_FAR + world.kafka.next_offset(OP, 0)], [world.new_id()], MUTE)
    yield 1


def early(world: World) -> Story:
    """Tells of an operation that comes before its half, whose offset is foretold."""
    id_ = world.new_id()
    offset = world.foretold
    world.foretold += 1
    world.operation(p.COMMIT, EARLY_QUEUE, [offset], [id_], SHOP)
    yield 1  # the stories of an epoch go on in the order in which they began
    world.half(queue=EARLY_QUEUE, id_=id_)


def strangers(world: World) -> Story:
    """Tells of operations without effect: of another group, of another transaction."""
    half = world.half()
    yield 1
    world.end(p.ROLLBACK, half, group="stranger")
    world.operation(p.ROLLBACK, half.queue, [half.offset], ["another"], half.group)
    world.end(p.COMMIT, half)


def unreadable(world: World) -> Story:
    """Tells of records that cannot be read."""
    send = world.kafka.send
    send(HALF, 0, b"no group", encoded({p.UNIQ_KEY: world.new_id(), p.REAL_TOPIC: "orders"}))
    send(OP, 0, b"no offsets", encoded({p.PGROUP: MUTE, p.TRAN_TYPE: "8"}))
    send(SCHEDULE, 0, b"no topic", [])
    send(ADMIN, 0, None, encoded({p.COMMAND: "DANCE"}))
    yield 1


def operator(world: World) -> Story:
    """Tells of commands that change nothing, and of a full round of maintenance."""
    world.command(p.PING)
    world.command(p.CREATE_TOPIC, f"topic:{REAL_TOPICS[0]}:2")
    world.command(p.CANCEL, "half:0-0")
    yield 1
    if world.rng.random() < 0.1:
        world.command(p.MAINTAIN)


def undeliverable(world: World) -> Story:
    """Tells of a message that its topic cannot take; one of two is delivered later."""
    topic = world.rng.choice((_WIDE, _NARROW))
    half = world.half(topic=topic, extra={p.REAL_QID: str(_QUEUE)})
    world.end(p.COMMIT, half)
    yield 4
    if topic == _WIDE:
        world.command(p.CREATE_TOPIC, f"topic:{_WIDE}:{_QUEUE + 1}")
    world.command(p.RESUME, f"undeliverable:{world.rng.randrange(4)}")


# Undeliverable messages are kept for ever, on purpose. So they are told at the beginning alone.
UNDELIVERABLE = 12
STORIES: Mapping[Callable[[World], Story], float] = {
    alone: 0.40,
    together: 0.05,
    unanswered: 0.08,
    whole_set: 0.06,
    part_of_a_set: 0.02,
    given_up: 0.05,
    unasked: 0.02,
    below_the_floor: 0.04,
    delayed: 0.10,
    scheduled: 0.08,
    orphan: 0.02,
    early: 0.02,
    strangers: 0.02,
    unreadable: 0.02,
    operator: 0.02,
}

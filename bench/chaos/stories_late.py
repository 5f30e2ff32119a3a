"""Stories of halves that nobody ends in time, and of operations that come before their half."""

from __future__ import annotations

from collections.abc import Sequence

from bench.chaos.names import RAW_TOPIC
from bench.chaos.raw_journal import ORPHAN, RawRecord
from bench.chaos.raw_world import Story, World
from bench.chaos.settings import ORPHAN_TTL_MS_MIN
from txlake import protocol as p
from txlake.protocol import COMMIT, HALF_TOPIC, RESEND, RESUME, ROLLBACK, UNKNOWN

_DISCARD_LIMIT_S = 90.0
_ENDED = ("COMMITTED", "ROLLED_BACK")
_FAR = 1_000_000  # so many offsets ahead no half comes in any run
_AHEAD = 8  # halves that others may send meanwhile


def given_up(world: World) -> Story:
    """A half or a set, complete or not, that is left to be discarded; then late ends and RESUME."""
    rng = world.rng
    size = rng.choice((1, 2, 3))
    of = world.transaction(size=size, is_checked=True)

    halves = [world.half(of, seq) for seq in rng.sample(range(size), size)]
    if size > 1 and rng.random() < 0.2:
        halves.append(world.half(of, rng.randrange(size)))  # a duplicate

    world.journal.begin_silence(of.transaction_id, [half.id for half in halves])

    if rng.random() < 0.3:
        yield world.pause(1.0)
        world.end(UNKNOWN, world.some(halves))
    if rng.random() < 0.3:
        yield world.pause(1.0)
        target = rng.choice(halves)
        world.command(RESEND, f"half:{target.queue_id}-{target.queue_offset}")

    yield from after_the_discard(world, halves)


def after_the_discard(world: World, halves: Sequence[RawRecord]) -> Story:
    """Waits for the discard, then ends and re-arms in several orders, some rounds long."""
    rng = world.rng
    first = min(halves, key=lambda half: half.queue_offset or 0)
    target = rng.choice(halves)

    for _ in range(rng.randint(1, 3)):
        yield from world.wait_for_outcome(first, ("DISCARDED", *_ENDED), _DISCARD_LIMIT_S)
        yield world.pause(0.5)

        action = world.one_of(end_and_resume=4, resume_and_end=2, end=2, resume=2)
        if action.startswith("end"):
            world.end(world.one_of(COMMIT=7, ROLLBACK=3), every(world, halves))
            yield rng.uniform(0.5, 4.0)

        if "resume" in action:
            world.command(RESUME, f"half:{target.queue_id}-{target.queue_offset}")
            yield rng.uniform(0.5, 4.0)

        if action.endswith("_end"):
            world.end(world.one_of(COMMIT=7, ROLLBACK=3), world.some(halves))
            yield world.pause(1.0)
    world.journal.end_silence(first.transaction_id)


def every(world: World, halves: Sequence[RawRecord]) -> list[RawRecord]:
    """Returns mostly all halves, in any order, so that one operation names its set often."""
    if world.rng.random() < 0.7:
        return world.rng.sample(halves, len(halves))
    return world.some(halves)


def orphan(world: World) -> Story:
    """An operation that names a half that never comes; perhaps beside one that is there."""
    of = world.transaction()
    end = world.kafka.end_of(HALF_TOPIC, of.queue_id)
    offsets = [end + _FAR + world.rng.randrange(_FAR) for _ in range(world.rng.randint(1, 2))]
    decision = world.rng.choice((COMMIT, ROLLBACK, UNKNOWN))
    carries_ids = world.rng.random() < 0.7
    ids = [world.kafka.new_id() for _ in offsets]
    sent = world.operation(decision, of.queue_id, offsets, ids, carries_ids=carries_ids)
    world.promise(ORPHAN, [sent])
    yield 0.0


def early(world: World) -> Story:
    """An operation that comes before its half: it names the offsets where that may stand."""
    of = world.transaction()
    end = world.kafka.end_of(HALF_TOPIC, of.queue_id)
    offsets = list(range(end, end + _AHEAD))
    ids = [of.transaction_id] * len(offsets)
    sent = world.operation(COMMIT, of.queue_id, offsets, ids)

    yield world.rng.choice((0.0, 0.2, 2.0))
    half = world.half(of)
    later_ms = (half.stored_ms or 0) - (sent.stored_ms or 0)

    if half.queue_offset in offsets and later_ms < ORPHAN_TTL_MS_MIN:
        world.promise_delivery(of, [half], sent)
    else:
        yield world.pause(0.5)
        world.end(ROLLBACK, [half])


def operators_mistakes(world: World) -> Story:
    """Commands that fit nothing, and some that change nothing that messages show."""
    for command, target in world.rng.sample(
        (
            (p.RESUME, "half:0-999999999"),
            (p.RESUME, "undeliverable:999999999"),
            (p.RESUME, "half:first"),
            (p.RESEND, "half:0-999999999"),
            (p.CANCEL, "half:1-999999999"),
            (p.CANCEL, "schedule:0-999999999"),
            (p.CANCEL, "nothing:1"),
            (p.CREATE_TOPIC, f"topic:{p.CHECK_MAX_TOPIC}:3"),
            (p.CREATE_TOPIC, f"topic:{RAW_TOPIC}:1"),
            (p.MAINTAIN, None),
            (p.PING, None),
        ),
        world.rng.randint(1, 3),
    ):
        world.command(command, target)
        yield world.pause(0.3)

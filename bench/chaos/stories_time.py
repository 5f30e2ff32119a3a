"""Stories of messages with a delay, and of those that their topic cannot take."""

from __future__ import annotations

import time

from bench.chaos.names import NARROW_TOPIC, NEW_TOPIC, RAW_GROUP, TOPIC_QUEUES
from bench.chaos.raw_journal import LATER, RawRecord
from bench.chaos.raw_world import Story, World, is_in_time
from storage.wire.record_kinds import HALF
from txlake import protocol as p

_LATER_MS = 15_000  # how far ahead a message asks to be delivered, at most
_LIMIT_S = 30.0
_NARROW_TOPICS, _NEW_TOPICS = 3, 20
_WIDE = 2 * TOPIC_QUEUES


def _delay(world: World) -> tuple[dict[str, str], int | None]:
    """Returns headers that delay a message, and the instant that they name, if they do."""
    if world.rng.random() < 0.5:
        return {p.DELAY: str(world.rng.randint(1, 4))}, None
    at = int(time.time() * 1000) + world.rng.randint(-1_000, _LATER_MS)
    return {p.DELIVER_AT: str(at)}, at


def _cancel(world: World, message: RawRecord) -> Story:
    if world.rng.random() < 0.8:
        if message.kind == HALF:  # what an epoch commits can be cancelled from the next one on
            yield from world.wait_for_outcome(message, ("COMMITTED",), _LIMIT_S)
        else:  # the same holds of what it lands
            yield world.rng.uniform(1.0, 6.0)
        place = f"{message.kind}:{message.queue_id}-{message.queue_offset}"
        for _ in range(world.rng.choice((1, 1, 2))):
            world.command(p.CANCEL, place)


def delayed(world: World) -> Story:
    """A half with a delay: committed, then perhaps cancelled."""
    of = world.transaction()
    headers, at = _delay(world)
    half = world.half(of, 0, headers)
    yield world.pause(0.3)
    if is_in_time(half, world.end(p.COMMIT, [half])):
        world.promise(LATER, [half], not_before_ms=at)
    yield from _cancel(world, half)


def delayed_set(world: World) -> Story:
    """A set whose halves have delays of their own."""
    of = world.transaction(size=world.rng.randint(2, 3))
    halves = []
    for seq in range(of.size):
        headers, at = _delay(world) if world.rng.random() < 0.7 else ({}, None)
        halves.append((world.half(of, seq, headers), at))
    yield world.pause(0.3)
    end = world.end(p.COMMIT, world.some([half for half, _ in halves]))
    for half, at in halves:
        if is_in_time(halves[0][0], end):
            world.promise(LATER, [half], not_before_ms=at)
    yield from _cancel(world, halves[0][0])


def scheduled(world: World) -> Story:
    """A message without a transaction, delayed or not; then perhaps cancelled."""
    headers, at = _delay(world) if world.rng.random() < 0.8 else ({}, None)
    if world.rng.random() < 0.5:
        headers |= {p.PGROUP: RAW_GROUP, p.UNIQ_KEY: world.kafka.new_id()}
    message = world.scheduled(headers)
    world.promise(LATER, [message], not_before_ms=at)
    yield from _cancel(world, message)


def too_high_a_queue(world: World) -> Story:
    """A message for a queue that its topic has not: RESUME, CREATE_TOPIC, RESUME."""
    topic = f"{NARROW_TOPIC}-{world.rng.randrange(_NARROW_TOPICS)}"
    of = world.transaction(topic=topic)
    half = world.half(of, 0, {p.REAL_QID: str(world.rng.randrange(_WIDE))})
    yield world.pause(0.3)
    world.end(p.COMMIT, [half])
    yield from _resume(world, half, f"topic:{topic}:{_WIDE}")


def new_topic(world: World) -> Story:
    """A message for a topic that may be made, or not; then RESUME."""
    topic = f"{NEW_TOPIC}-{world.rng.randrange(_NEW_TOPICS)}"
    of = world.transaction(topic=topic)
    half = world.half(of)
    yield world.pause(0.3)
    world.end(p.COMMIT, [half])
    yield from _resume(world, half, f"topic:{topic}:1")


def _resume(world: World, half: RawRecord, new_topic: str) -> Story:
    """Resumes a message that turns out to be undeliverable, before and after help."""
    yield from world.wait_for_outcome(half, ("COMMITTED",), _LIMIT_S)
    yield 2.0  # the row of an undeliverable message comes with its outcome
    offset = world.look.undeliverable_offset_of(half)
    if offset is None:
        return

    target = f"undeliverable:{offset}"
    steps = world.rng.choice(
        ((p.RESUME, p.CREATE_TOPIC, p.RESUME), (p.CREATE_TOPIC, p.RESUME, p.RESUME))
    )

    for step in steps:
        world.command(step, target if step == p.RESUME else new_topic)
        yield world.pause(1.0)

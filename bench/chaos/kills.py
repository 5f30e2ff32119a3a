"""Who is killed in a chaos run, how, and when: a list that the seed draws."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.chaos.names import (
    BROKER,
    CONSUMER,
    EXECUTORS,
    JOB,
    KAFKA_CONSUMER,
    PRODUCERS,
    PUBLISHERS,
    RAW,
    STANDBY,
)

PAUSE_S_MIN = 0.2
# When a job can be killed, and what it has said then.
STARTING, STREAMING, WORKING = "while it starts", "while it streams", "after its first epoch"
EXECUTOR_PARTS = ("an executor", "a daemon", "a worker")
STANDING_BY = "while it stands by"
SAYS = {
    STREAMING: ("running; owner",),
    # Before it runs it finishes the epoch of the one before.
    WORKING: ("running; owner", " landed, "),
    STANDING_BY: ("standby: ready",),
}
# What else happens to drivers where there are two: suspended for longer than Kafka counts them.
SUSPENDED, STOPPED = "suspended", "SIGTERM"
_WRITERS = (JOB, STANDBY, CONSUMER)  # of the lake, whose store can lose answers


@dataclass(frozen=True)
class Kill:
    """One kill: whom, and how. `pause_s` is counted from the last kill, or from when it says so.

    `whom`: of the job's processes: python, jvm, all; of its executors': one's JVM, its daemon of
    Python workers, or a Python worker; of two drivers: also SUSPENDED and STOPPED. `when`: what to
    wait for first; STARTING is nothing, for a job that is just starting or recovering.
    `loses_answers`: the store of the lake loses answers from before the kill until after it.
    """

    target: str
    whom: str
    when: str
    pause_s: float
    loses_answers: bool = False

    @property
    def name(self) -> str:
        """The name of the one it kills; of a job also how and when."""
        if self.target == EXECUTORS:
            return f"{self.target} ({self.whom})"
        if self.target in PUBLISHERS:
            return f"publisher ({self.whom})"
        is_driver = self.target in (JOB, STANDBY)
        return f"{self.target} ({self.whom}) {self.when}" if is_driver else self.target

    @property
    def says(self) -> tuple[str, ...]:
        """What its target has to have said before, in this order; empty for nothing."""
        return SAYS.get(self.when, ())


def schedule(
    kills: int,
    seed: int,
    pause_s_max: float,
    has_broker: bool = False,
    has_cluster: bool = False,
    has_standby: bool = False,
    is_published: bool = False,
) -> list[Kill]:
    """Returns the kills of a seed."""
    rng = random.Random(seed)
    targets = {JOB: 10, PRODUCERS[0]: 2, PRODUCERS[1]: 2, RAW: 3, CONSUMER: 3}

    if has_broker:
        targets[BROKER] = 2
    if has_cluster:
        targets[EXECUTORS] = 10
    if has_standby:
        targets[STANDBY] = 5
    if is_published:
        targets |= {PUBLISHERS[0]: 5, PUBLISHERS[1]: 5, KAFKA_CONSUMER: 3}

    found = []

    for _ in range(kills):
        target = rng.choices(list(targets), list(targets.values()))[0]
        if target == STANDBY or (target == JOB and has_standby):
            found.append(_of_two(rng, target, pause_s_max))
            continue

        if target in PUBLISHERS:
            how = rng.choices(("all", SUSPENDED, STOPPED), (6, 3, 1))[0]
            found.append(Kill(target, how, STARTING, rng.uniform(PAUSE_S_MIN, pause_s_max)))
            continue

        whom = rng.choices(("all", "python", "jvm"), (5, 3, 2))[0] if target == JOB else "all"
        if target == EXECUTORS:
            found.append(
                Kill(target, rng.choice(EXECUTOR_PARTS), WORKING, rng.uniform(0, pause_s_max))
            )
            continue

        weights = (0 if whom == "jvm" else 6, 4, 10)  # before there is a JVM none can be killed
        when = rng.choices((STARTING, STREAMING, WORKING), weights)[0]
        pause_s = rng.uniform(PAUSE_S_MIN, pause_s_max)
        found.append(Kill(target, whom, when if target == JOB else STARTING, pause_s))

    return found


def with_lost_answers(kills: Sequence[Kill], seed: int, count: int) -> list[Kill]:
    """Returns the kills, with so many at a store that loses answers: of who writes the lake.

    Errors: ValueError if there are fewer of these.
    """
    writers = [number for number, kill in enumerate(kills) if kill.target in _WRITERS]
    if count > len(writers):
        raise ValueError(
            f"{len(writers)} of {len(kills)} kills are of processes that write the lake; {count} "
            "were to lose answers"
        )
    chosen = random.Random(f"{seed}/lost answers").sample(writers, count)
    return [replace(kill, loses_answers=number in chosen) for number, kill in enumerate(kills)]


def _of_two(rng: random.Random, target: str, pause_s_max: float) -> Kill:
    """Draws what happens to the active one of two drivers, or to the other."""
    whom = rng.choices(("all", "python", "jvm", SUSPENDED, STOPPED), (5, 3, 2, 5, 3))[0]
    # At its very start a driver has no JVM, and does not know SIGTERM yet.
    is_early = whom in ("all", "python")
    if target == STANDBY:
        when = rng.choices((STARTING, STANDING_BY), (4 if is_early else 0, 10))[0]
    else:
        when = rng.choices((STARTING, STREAMING, WORKING), (6 if is_early else 0, 4, 10))[0]
    return Kill(target, whom, when, rng.uniform(PAUSE_S_MIN, pause_s_max))

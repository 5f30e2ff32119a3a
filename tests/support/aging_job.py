"""A paper job whose floor rises: old rows of its lake can be deleted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from checker.rules.known_at import EndOffsetSample, known_at
from storage.lake.aging import advance_floor
from storage.lake.epochs import Plan
from storage.lake.floor import FLOOR, Floor
from storage.lake.lake import Lake
from storage.lake.snapshots import Snapshot
from storage.maintenance.limits import Retention, StepResult
from storage.maintenance.maintenance import Maintenance
from storage.schemas import SNAPSHOT
from tests.support.damage import WholeJob
from tests.support.in_memory_job import TOPICS
from tests.support.maintenance_rounds import NOW_GONE
from txlake.protocol import COMMIT, CREATE_TOPIC, RESUME, ROLLBACK

SNAPSHOT_EPOCHS = 3
EPOCH_MS = 60_000
RETENTION_MS = 6 * EPOCH_MS


class AgingJob(WholeJob):
    """A job that takes a snapshot every third epoch, and moves its floor with it."""

    def __init__(self, path: Path, **parameters: Any) -> None:
        super().__init__(path, **parameters)
        self.last: Plan | None = None
        self.maintained = StepResult()
        self.topics = Retention()

    @property
    def floor(self) -> Floor:
        """Return the floor of the newest epoch."""
        return Floor() if self.last is None else self.last.floor

    def _is_snapshot(self) -> bool:
        return self.epoch % SNAPSHOT_EPOCHS == 0

    def _plan(self, known: bool, ops_ahead: int) -> Plan:
        floor = self.floor
        snapshot = Snapshot() if self.last is None else self.last.snapshot
        if self.last is not None and self._is_snapshot():
            floor = advance_floor(self.lake, self.last, self.at - RETENTION_MS)
        if self._is_snapshot():
            snapshot = Snapshot(self.epoch, self.at)
        plan = super()._plan(known, ops_ahead)
        marks = {FLOOR: floor.as_parameter(), SNAPSHOT: snapshot.as_parameter()}
        self.last = replace(plan, parameters={**plan.parameters, **marks})
        return self.last

    def maintenance(self, before_change: Callable[[], None] = lambda: None) -> Maintenance:
        """Return a keeper of the lake, as a start makes it."""
        lake = Lake(self.lake.path, is_driver=True)
        limits = replace(NOW_GONE, retention_ms=RETENTION_MS, topics=self.topics)
        maintenance = Maintenance(lake, limits, before_change)
        if self.last is not None:
            maintenance.resume_from(self.last)
        return maintenance

    def die_behind_a_step(self, table: str) -> bool:
        """Take steps until one has deleted or merged. Output: whether one has.

        The keeper is forgotten then, as a crash does it: the next one knows only the lake.
        """
        for done in self.maintenance().steps(table, is_full=True):
            self.maintained += done
            if done.rows_expired or done.merges:
                return True
        return False

    def maintain(self) -> StepResult:
        """Take all steps of a round, as the job does between two epochs."""
        maintenance = self.maintenance()
        done = StepResult()
        for table in maintenance.tables():
            done = sum(maintenance.steps(table, is_full=True), done)
        self.lake.reset()
        self.maintained += done
        return done


def live(job: AgingJob, chance: random.Random, epochs: int) -> None:
    """Run some epochs with all kinds of traffic, some of it late."""
    halves: list[tuple[int, int]] = []

    for _ in range(epochs):
        for _ in range(chance.randint(0, 4)):
            queue = chance.randrange(2)
            kind = chance.random()

            if kind < 0.2:  # sets, some of them never complete
                name = f"set{chance.randrange(4)}"
                columns = {"tran_size": 2, "tran_seq": chance.randrange(2)}
                halves.append((queue, job.half(name, queue, **columns)))
            elif kind < 0.3:
                other = f"other{chance.randrange(4)}"  # more than topics_max
                halves.append((queue, job.half("asks", queue, real_topic=other)))
            elif kind < 0.4:
                job.half("bad", queue, error="bad_set")
            else:
                delay = chance.choice((None, None, None, 3, 16))
                halves.append((queue, job.half(f"tx{job.epoch}", queue, delay_level=delay)))

        for _ in range(chance.randint(0, 4) if halves else 0):
            queue, offset = chance.choice(halves[-12:] if chance.random() < 0.7 else halves)
            offset += chance.choice((0, 0, 0, 0, 0, 9))
            job.end(chance.choice((COMMIT, COMMIT, ROLLBACK)), offset, queue=queue)

        if halves and chance.random() < 0.2:
            job.command(RESUME, "half:{}-{}".format(*chance.choice(halves)))

        if chance.random() < 0.1:
            job.command(RESUME, f"undeliverable:{chance.randrange(3)}")
            job.command(CREATE_TOPIC, f"topic:other{chance.randrange(4)}:1")

        if chance.random() < 0.2:
            job.schedule(delay_level=chance.choice((3, 18)))

        job.run(EPOCH_MS)


class LaggingJob(AgingJob):
    """A job that lands the op topic late; `known_at` follows from what Kafka was asked."""

    def __init__(self, path: Path, **parameters: Any) -> None:
        super().__init__(path, **parameters)
        self._horizons: list[EndOffsetSample] = []
        self._known: dict[int, int] = {}

    def _plan(self, known: bool, ops_ahead: int) -> Plan:
        plan = super()._plan(known, ops_ahead)
        ends = {r.topic_partition: r.end_offset for r in plan.ranges}
        self._horizons.append(EndOffsetSample(self.at, ends))
        self._known = known_at(self._horizons, plan.landed(), self._known, TOPICS["op"])
        self.last = replace(plan, known_at=dict(self._known))
        return self.last

    def _known_at(self, queue: int, known: bool) -> int | None:
        return self._known.get(queue)


def lag(job: LaggingJob, chance: random.Random, epochs: int) -> None:
    """Run epochs that land operations for long after Kafka had them, or soon."""
    ahead, halves = 0, 0
    for _ in range(epochs):
        for _ in range(chance.randint(0, 2)):
            halves = 1 + job.half(f"tx{job.epoch}-{halves}")
        count = min(chance.randint(0, 3), ahead) if ahead else chance.randint(0, 1)
        for _ in range(count if halves else 0):
            job.end(chance.choice((COMMIT, ROLLBACK)), chance.randrange(halves))
        ahead = max(0, ahead - count) + chance.choice((0, 0, 0, 0, 5, 25))
        job.run(EPOCH_MS, ops_ahead=ahead)

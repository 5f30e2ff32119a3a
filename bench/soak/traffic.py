"""All kinds of traffic, in small: stories of transactions, told epoch by epoch.

A story is a generator. It sends records, and yields how many epochs later it goes on. What is drawn
follows a seed; a story lasts at most 2.5 retentions, so the stories that are being told do not
become more and more.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.soak.kafka import EPOCH_MS, QUEUES, Header, MemoryKafka
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE
from txlake import protocol as p

# Answers its checks; always UNKNOWN; has no check topic.
SHOP, MUTE, ABSENT = "shop", "mute", "absent"
REAL_TOPICS = ("orders", "payments", "audit")
EARLY_QUEUE = QUEUES - 1  # its offsets can be foretold: `early` alone writes halves there
_BODY_BYTES = 256
_NO_HEADERS: Mapping[str, str] = {}
Story = Generator[int, None, None]


@dataclass(frozen=True)
class Sent:
    """A half that was sent."""

    queue: int
    offset: int
    id: str
    group: str


class World:
    """What a story can do. Input: the retention in epochs."""

    def __init__(self, kafka: MemoryKafka, rng: random.Random, retention: int) -> None:
        self.kafka, self.rng, self.retention = kafka, rng, retention
        self.foretold = 0  # the next offset of the queue that `early` writes
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        """Returns an id that no other transaction has."""
        return f"{self.kafka.now_ms:012x}{next(self._numbers):08x}"

    def half(
        self,
        group: str = SHOP,
        queue: int | None = None,
        topic: str | None = None,
        id_: str | None = None,
        extra: Mapping[str, str] = _NO_HEADERS,
    ) -> Sent:
        """Sends a half."""
        queue = self.rng.randrange(EARLY_QUEUE) if queue is None else queue
        id_ = id_ or self.new_id()

        values = {
            p.TRAN_MSG: "true",
            p.PGROUP: group,
            p.UNIQ_KEY: id_,
            p.REAL_TOPIC: topic or self.rng.choice(REAL_TOPICS),
            "kind": "soak",
            p.KEYS: f"key-{id_}",
            **extra,
        }

        return Sent(queue, self.kafka.send(HALF, queue, self.body(), encoded(values)), id_, group)

    def end(self, decision: str, *halves: Sent, group: str | None = None, **extra: str) -> None:
        """Sends an operation that names halves of one queue."""
        first = halves[0]
        offsets = [half.offset for half in halves]
        self.operation(
            decision,
            first.queue,
            offsets,
            [half.id for half in halves],
            group or first.group,
            extra,
        )

    def operation(
        self,
        decision: str,
        queue: int,
        offsets: Sequence[int],
        ids: Sequence[str],
        group: str,
        extra: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        """Sends an operation."""
        headers: list[Header] = list(p.operation_headers(group, decision, ids, extra.items()))
        self.kafka.send(OP, queue, p.operation_body(offsets), headers)

    def scheduled(self, extra: Mapping[str, str], topic: str = "audit") -> int:
        """Sends a schedule record. Output: its offset, in queue 0."""
        return self.kafka.send(SCHEDULE, 0, self.body(), encoded({p.REAL_TOPIC: topic, **extra}))

    def command(self, name: str, target: str = "") -> None:
        """Sends an operator's command."""
        values = {p.COMMAND: name, p.TARGET: target, p.ACTOR: "ada", p.REASON: "soak"}
        self.kafka.send(ADMIN, 0, None, encoded(values))

    def body(self) -> bytes:
        """Returns a body of which half can be compressed away."""
        return self.rng.randbytes(_BODY_BYTES // 4).hex().encode() * 2

    def within(self, least: float, most: float) -> int:
        """Returns a number of epochs, drawn between two parts of the retention."""
        return round(self.rng.uniform(least, most) * self.retention)

    def one_of(self, **weights: int) -> str:
        """Returns one of the names, by its weight."""
        return self.rng.choices(list(weights), list(weights.values()))[0]


class Traffic:
    """The stories of one soak."""

    def __init__(
        self, world: World, stories: Mapping[Callable[[World], Story], float], per_epoch: float
    ) -> None:
        self._world = world
        self._told: list[tuple[int, int, Story]] = []
        self._numbers = itertools.count()
        self._questions: list[dict[str, str]] = []
        self._rates = {story: per_epoch * rate for story, rate in stories.items()}
        self._owed: dict[Any, float] = dict.fromkeys(stories, 0.0)

    @property
    def telling(self) -> int:
        """Returns how many stories have not ended."""
        return len(self._told)

    def asked(self, question: dict[str, str]) -> None:
        """Takes a check, by its headers; it is answered in the next epoch."""
        self._questions.append(question)

    def begin(self, story: Story, epoch: int) -> None:
        """Adds a story that begins in an epoch."""
        heapq.heappush(self._told, (epoch, next(self._numbers), story))

    def minute(self, number: int, from_ms: int) -> None:
        """Sends what is sent in a minute, at instants from `from_ms` on."""
        kafka, rng = self._world.kafka, self._world.rng
        kafka.now_ms = from_ms

        questions = self._questions
        self._questions = []
        for question in questions:
            self._answer(question)

        for story, rate in self._rates.items():  # each kind at its rate, whatever is drawn
            self._owed[story] += rate * rng.uniform(0.5, 1.5)
            while self._owed[story] >= 1:
                self._owed[story] -= 1
                self.begin(story(self._world), number)

        while self._told and self._told[0][0] <= number:
            _, order, told = heapq.heappop(self._told)
            kafka.now_ms = min(kafka.now_ms + rng.randrange(2_000), from_ms + EPOCH_MS - 1)

            pause = next(told, None)
            if pause is not None:
                heapq.heappush(self._told, (number + max(1, pause), order, told))

    def _answer(self, question: Mapping[str, str]) -> None:
        """Answers a check as its group does."""
        world = self._world
        group = question[p.PGROUP]
        decision = p.UNKNOWN
        if group == SHOP:
            decision = world.one_of(COMMIT=6, ROLLBACK=2, UNKNOWN=2)
        offsets = [int(offset) for offset in question[p.HALF_QUEUE_OFFSET].split(",")]
        ids = [question[p.UNIQ_KEY]] * len(offsets)
        extra = {p.FROM_CHECK: "true", p.CHECK_ID: question[p.CHECK_ID]}
        world.operation(decision, int(question[p.HALF_QUEUE_ID]), offsets, ids, group, extra)


def encoded(values: Mapping[str, str]) -> list[Header]:
    """Returns headers as Kafka has them."""
    return [(name, value.encode()) for name, value in values.items()]

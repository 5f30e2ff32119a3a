"""A producer of the chaos run that writes Kafka records by hand: stories of every kind at once.

Sets, duplicates, operations that name several halves or none, late ends, discards, operators'
commands, delays, orphans, unreadable records. Many stories are told at the same time, until the
process is killed; its successor takes up the halves that were left to be discarded. With the file
`stop-sending` beside the journal no new story begins.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.chaos.names import RAW_GROUP, STOP_FILE
from bench.chaos.raw_journal import RawJournal
from bench.chaos.raw_kafka import NotStoredError, RawKafka
from bench.chaos.raw_look import LakeLook
from bench.chaos.raw_world import Story, World
from bench.chaos.stories import (
    alone,
    beside_a_gap,
    incomplete_set,
    set_in_any_order,
    several_at_once,
    strangers,
    unasked,
)
from bench.chaos.stories_late import (
    after_the_discard,
    early,
    given_up,
    operators_mistakes,
    orphan,
)
from bench.chaos.stories_time import delayed, delayed_set, new_topic, scheduled, too_high_a_queue
from bench.chaos.stories_unread import unreadable
from pipelines.settings import load

ENDED = "all stories told"
STORIES: Mapping[Callable[[World], Story], int] = {
    alone: 12,
    set_in_any_order: 20,
    incomplete_set: 5,
    several_at_once: 12,
    strangers: 6,
    unasked: 3,
    beside_a_gap: 3,
    given_up: 16,
    orphan: 4,
    early: 5,
    operators_mistakes: 4,
    delayed: 9,
    delayed_set: 3,
    scheduled: 7,
    too_high_a_queue: 8,
    new_topic: 3,
    unreadable: 8,
}
_BETWEEN_S = 0.2  # stories begin, on average
_AFTER_STOP_S = 15.0  # stories go on so long when no new one begins


class Teller:
    """The stories that are being told, by when each goes on."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._numbers = itertools.count()
        self._told: list[tuple[float, int, str, Story]] = []
        self._next_at = 0.0

    def begin(self, name: str, story: Story) -> None:
        """Adds a story."""
        heapq.heappush(self._told, (time.monotonic(), next(self._numbers), name, story))

    def resume(self) -> None:
        """Goes on with the halves that dead producers left to be discarded."""
        for halves in self._world.journal.silences():
            self.begin("taken_up", after_the_discard(self._world, halves))

    def go_on(self, *, begins_new: bool) -> bool:
        """Tells what is due. Output: whether any story has not ended."""
        now = time.monotonic()
        if begins_new and now >= self._next_at:
            begun = self._rng.choices(list(STORIES), list(STORIES.values()))[0]
            self.begin(begun.__name__, begun(self._world))
            self._next_at = now + self._rng.expovariate(1 / _BETWEEN_S)

        while self._told and self._told[0][0] <= time.monotonic():
            _, number, name, story = heapq.heappop(self._told)
            self._world.story = name
            try:
                pause_s = next(story)
            except StopIteration:
                continue
            except NotStoredError as error:
                print(f"{name}: {error}", flush=True)
                continue
            heapq.heappush(self._told, (time.monotonic() + pause_s, number, name, story))

        return bool(self._told)


def main() -> None:
    """Tells stories until the stop file is there, then those that have begun, until SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--conf", required=True, help="settings that say where the lake is")
    parser.add_argument("--name", required=True, help="different for each start")
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    stop_file = options.journal.with_name(STOP_FILE)

    journal = RawJournal(options.journal)
    kafka = RawKafka(options.bootstrap_servers, journal, options.name)
    kafka.make_check_topic(RAW_GROUP)
    seed = f"{options.seed}/{options.name}"
    world = World(kafka, journal, LakeLook(load(options.conf).lake.location()), seed)
    teller = Teller(world, random.Random(f"{seed}/stories"))
    teller.resume()

    stopped_at = None
    while not ended.is_set():
        if stopped_at is None and stop_file.exists():
            stopped_at = time.monotonic()
        has_more = teller.go_on(begins_new=stopped_at is None)

        is_over = stopped_at is not None and time.monotonic() > stopped_at + _AFTER_STOP_S
        if is_over or (stopped_at is not None and not has_more):
            print(ENDED, flush=True)
            ended.wait()

        ended.wait(0.01)


if __name__ == "__main__":
    main()

"""A kill loop: two groups of three consumers share queues under traffic, and are killed.

    python -m bench.consumer_kills --seconds 60 --seed 1

Each consumer is a process with a listener that refuses some messages once or more, and some for
ever. Processes are killed (SIGKILL), or stopped (SIGTERM), and started again. Then the journal of
every group must say: each message was done, or refused too often and is dead; a queue's messages
came in order; and no retry came before its delay.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.consumer_kills_member import RETRIES_MAX, RETRY_DELAYS_MS, TOPIC, refusals
from tests.support.lake_factory import LakeFactory
from txlake._retries import DEAD, WAITING, ConsumerRetries
from txlake.errors import TxlakeError

GROUPS = ("points", "mails")
MEMBERS = 3
QUEUES = 4
DEADLINE_S = 240
ROOT = Path(__file__).parents[1]


class KillLoopError(Exception):
    """What went wrong in a run."""


@dataclass(slots=True)
class Member:
    """A consumer that is started again whenever it ended."""

    lake: Path
    group: str
    journal: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts its process."""
        command = [
            sys.executable,
            "-m",
            "bench.consumer_kills_member",
            "--lake",
            str(self.lake),
            "--group",
            self.group,
            "--journal",
            str(self.journal),
        ]

        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def end(self, number: signal.Signals) -> None:
        """Ends its process by a signal."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)


@dataclass(slots=True)
class Calls:
    """What one group's journal says: the instants (ns) of each message's calls, by attempt."""

    at: dict[tuple[int, int], dict[int, list[int]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    done: set[tuple[int, int]] = field(default_factory=set)
    count: int = 0

    @classmethod
    def read(cls, journal: Path) -> Calls:
        """Reads a journal."""
        calls = cls()
        for line in journal.read_text().splitlines() if journal.exists() else ():
            queue_id, offset, times, at, is_refused = map(int, line.split())
            calls.at[queue_id, offset][times].append(at)
            calls.count += 1
            if not is_refused:
                calls.done.add((queue_id, offset))
        return calls


def run(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Runs the loop in a folder. Output: what happened, in numbers. Errors: KillLoopError."""
    rng = random.Random(seed)
    lake = LakeFactory(folder / "lake")
    lake.make_topic(TOPIC, QUEUES)
    members = [
        Member(lake.path, group, folder / f"{group}.journal", folder / f"{group}-{number}.log")
        for group in GROUPS
        for number in range(MEMBERS)
    ]
    ends: Counter[str] = Counter()
    counts = dict.fromkeys(range(QUEUES), 0)

    try:
        for member in members:
            member.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            delivered = {queue_id: rng.randint(0, 8) for queue_id in range(QUEUES)}
            lake.deliver(TOPIC, delivered)
            for queue_id, count in delivered.items():
                counts[queue_id] += count

            if rng.random() < 0.12:
                member = rng.choice(members)
                number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                member.end(number)
                ends[number.name] += 1
                member.start()
            time.sleep(0.1)

        _wait_until_done(lake, members, counts)
    finally:
        for member in members:
            member.end(signal.SIGTERM)

    result: dict[str, Any] = {"messages": sum(counts.values()), "ends": dict(ends)}
    for group in GROUPS:
        result[group] = check(group, Calls.read(folder / f"{group}.journal"), counts, lake.path)
    return result


def _expected(counts: Mapping[int, int]) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Returns the messages that are done in the end, and those that are dead."""
    places = {(queue_id, at) for queue_id, count in counts.items() for at in range(count)}
    dead = {place for place in places if refusals(place[1]) > RETRIES_MAX}
    return places - dead, dead


def _refused(lake: Path, group: str, state: str) -> set[tuple[int, int]]:
    rows = ConsumerRetries(str(lake / "consumer_retries")).newest().values()
    return {
        (row.queue_id, row.queue_offset)
        for row in rows
        if row.consumer_group == group and row.state == state
    }


def _wait_until_done(lake: LakeFactory, members: list[Member], counts: Mapping[int, int]) -> None:
    done, dead = _expected(counts)
    deadline = time.monotonic() + DEADLINE_S
    journals = {member.group: member.journal for member in members}

    while True:
        missing: dict[str, Any] = {}
        for group, journal in journals.items():
            try:
                calls = Calls.read(journal)
                missing[group] = {
                    "not done": len(done - calls.done),
                    "not dead": len(dead - _refused(lake.path, group, DEAD)),
                    "waiting": len(_refused(lake.path, group, WAITING)),
                }
            except TxlakeError as error:
                missing[group] = {str(error): 1}
        if not any(any(each.values()) for each in missing.values()):
            return

        if time.monotonic() > deadline:
            raise KillLoopError(f"not done within {DEADLINE_S} s: {missing}")
        for member in members:
            if member.process is not None and member.process.poll() is not None:
                log = member.log.read_text()[-2_000:]
                raise KillLoopError(f"a consumer of {member.group} ended by itself: {log}")
        time.sleep(0.3)


def check(group: str, calls: Calls, counts: Mapping[int, int], lake: Path) -> dict[str, int]:
    """Compares one group's journal with what must be. Errors: KillLoopError."""
    done, dead = _expected(counts)
    if calls.done != done:
        raise KillLoopError(f"{group}: lost {sorted(done - calls.done)[:5]}")
    if _refused(lake, group, DEAD) != dead:
        raise KillLoopError(f"{group}: dead are not {sorted(dead)[:5]} ...")

    early = 0
    for place, by_attempt in calls.at.items():
        for times in range(1, max(by_attempt) + 1):
            delay_ns = RETRY_DELAYS_MS[min(times, len(RETRY_DELAYS_MS)) - 1] * 1_000_000
            if min(by_attempt[times]) < min(by_attempt[times - 1]) + delay_ns:
                early += 1
                if early == 1:
                    print(f"{group}: {place}, retry {times} came early", file=sys.stderr)
    if early:
        raise KillLoopError(f"{group}: {early} retries came before their delay")

    for queue_id, count in counts.items():
        first = [min(calls.at[queue_id, offset][0]) for offset in range(count)]
        if first != sorted(first):
            raise KillLoopError(f"{group}: messages of queue {queue_id} came out of order")

    attempts = sum(len(by_attempt) for by_attempt in calls.at.values())
    return {"calls": calls.count, "repeated": calls.count - attempts, "dead": len(dead)}


def main() -> None:
    """Runs the loop and prints its numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(Path(folder), options.seconds, options.seed)))


if __name__ == "__main__":
    main()

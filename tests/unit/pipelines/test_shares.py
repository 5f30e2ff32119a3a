"""The shares of an epoch's offsets that tasks read: of equal length, each offset in one."""

from __future__ import annotations

import random

import pytest

from pipelines.epoch.land import shares_of
from storage.tasks.kafka_reader import RecordRange

A, B, C = ("half", 0), ("half", 1), ("op", 0)
CASES = [  # offsets by partition, tasks | offsets of each task | why
    ({A: range(10, 20)}, 1, [["half 0: 10-20"]], "one task reads all"),
    ({A: range(10, 20)}, 2, [["half 0: 10-15"], ["half 0: 15-20"]], "a partition is cut"),
    ({A: range(5), B: range(5)}, 2, [["half 0: 0-5"], ["half 1: 0-5"]], "and not without need"),
    (
        {C: range(2), A: range(4), B: range(7, 13)},
        2,
        [["half 0: 0-4", "half 1: 7-9"], ["half 1: 9-13", "op 0: 0-2"]],
        "a cut is where half of all records are passed",
    ),
    ({A: range(1)}, 2, [[], ["half 0: 0-1"]], "fewer records than tasks"),
    ({A: range(3, 3), B: range(4, 6)}, 1, [["half 1: 4-6"]], "a partition without records"),
    ({}, 2, [[], []], "no partition"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("offsets", "tasks", "expected"),
    [case[:3] for case in CASES],
    ids=[case[3] for case in CASES],
)
def test_tasks_have_equal_shares(
    offsets: dict[tuple[str, int], range], tasks: int, expected: list[list[str]]
) -> None:
    assert [[_text(r) for r in share] for share in shares_of(offsets, tasks)] == expected


def _text(record_range: RecordRange) -> str:
    r = record_range
    return f"{r.topic} {r.partition}: {r.start}-{r.stop}"


def test_each_offset_is_in_one_share() -> None:
    rng = random.Random(5)
    for _ in range(200):
        offsets = {
            (topic, partition): _random_range(rng)
            for topic in ("half", "op")
            for partition in range(rng.randrange(1, 4))
        }
        tasks = rng.randrange(1, 6)
        shares = shares_of(offsets, tasks)

        read = [
            (r.topic, r.partition, offset)
            for share in shares
            for r in share
            for offset in range(r.start, r.stop)
        ]
        wanted = [(*place, offset) for place, span in offsets.items() for offset in span]
        sizes = [sum(r.stop - r.start for r in share) for share in shares]
        assert sorted(read) == sorted(wanted)
        assert len(shares) == tasks
        assert max(sizes) - min(sizes) <= 1


def _random_range(rng: random.Random) -> range:
    start = rng.randrange(100)
    return range(start, start + rng.randrange(30))

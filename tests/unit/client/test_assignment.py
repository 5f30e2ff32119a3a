"""Which member of a group has which queues: a table of cases, and what holds for all."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from txlake._assignment import Queue, assign


def queues(topic: str, count: int) -> list[Queue]:
    return [(topic, queue_id) for queue_id in range(count)]


def members(**topics: str) -> dict[str, frozenset[str]]:
    return {name: frozenset(words.split()) for name, words in topics.items()}


def owned(**text: str) -> dict[Queue, str]:
    """Return owners of queues of topic t: `a="0 1"`."""
    return {("t", int(queue_id)): name for name, ids in text.items() for queue_id in ids.split()}


CASES = [
    # count, members, owners, expected, why
    (4, members(a="t"), {}, owned(a="0 1 2 3"), "one member has all"),
    (4, members(a="t", b="t"), {}, owned(a="0 2", b="1 3"), "free queues go to the smallest"),
    (4, members(a="t", b="t"), owned(a="0 1 2 3"), owned(a="0 1", b="2 3"), "the last ones move"),
    (3, members(a="t", b="t"), owned(a="0 1 2"), owned(a="0 1", b="2"), "one more may stay"),
    (3, members(a="t", b="t"), owned(b="0 1", a="2"), owned(b="0 1", a="2"), "nothing moves"),
    (4, members(a="t", b="t"), owned(a="0", c="1 2 3"), owned(a="0 2", b="1 3"), "a member died"),
    (2, members(a="t", b="t", c="t"), {}, owned(a="0", b="1"), "more members than queues"),
    (2, members(a="t", b="u"), owned(b="0 1"), owned(a="0 1"), "an owner that does not read it"),
    (2, members(b="u"), {}, {}, "nobody reads it"),
    (5, members(a="t", b="t"), owned(a="0 1"), owned(a="0 1 4", b="2 3"), "queues that are new"),
    (0, members(a="t"), {}, {}, "no queue"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "topics", "owners", "expected", "why"), CASES, ids=[case[-1] for case in CASES]
)
def test_the_share_of_each_member(
    count: int,
    topics: dict[str, frozenset[str]],
    owners: dict[Queue, str],
    expected: dict[Queue, str],
    why: str,
) -> None:
    assert assign(queues("t", count), topics, owners) == expected


def test_members_that_read_different_topics_are_balanced_over_all() -> None:
    topics = members(a="t u", b="u")
    share = assign([*queues("t", 2), *queues("u", 2)], topics, {})
    assert Counter(share.values()) == {"a": 2, "b": 2}
    assert {share["u", 0], share["u", 1]} == {"b"}


@pytest.mark.parametrize("seed", range(50))
def test_any_share_is_balanced_stable_and_moves_no_more_than_it_must(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"m{number}" for number in range(rng.randint(1, 6))]
    topics = {name: frozenset({"t"}) for name in names}
    all_queues = queues("t", rng.randint(0, 20))
    owners = {queue: rng.choice([*names, "gone"]) for queue in all_queues if rng.random() < 0.8}

    share = assign(all_queues, topics, owners)
    counts = Counter(dict.fromkeys(names, 0))
    counts.update(share.values())
    assert share.keys() == set(all_queues)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert assign(all_queues, topics, share) == share

    # A member with no more than the smallest count lost none.
    before = Counter(owner for owner in owners.values() if owner in topics)
    for name in names:
        if before[name] <= min(counts.values()):
            assert all(share[queue] == name for queue, owner in owners.items() if owner == name)

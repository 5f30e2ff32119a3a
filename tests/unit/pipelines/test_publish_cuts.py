"""Where what is committed is cut into Kafka transactions."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from pipelines.publish.batch_limits import ALONE, QueueRows, cuts, has_large_epoch, units_of


@dataclass(frozen=True)
class Case:
    """Queues as words: `1a 1a 2`: two rows of epoch 1, of transaction a, then one alone."""

    why: str
    queues: tuple[str, ...]
    rows_max: int
    cuts: list[tuple[int, ...]]
    is_whole: bool = True


CASES = [
    Case("all of it fits", ("1 2 3", "1"), 4, [(3, 1)]),
    Case("whole epochs, as many as fit", ("1 1 2 2 3", "1 3"), 5, [(4, 1), (5, 2)]),
    Case("an epoch of its own size", ("1 2 2 2", "2"), 4, [(1, 0), (4, 1)]),
    Case("a large epoch is cut between messages", ("1 1 1 1",), 2, [(2,), (4,)]),
    Case("a transaction is on one side of a cut", ("1 1a 1a 1",), 2, [(1,), (3,), (4,)]),
    Case("one that is larger than the limit is whole", ("1a 1a 1a",), 2, [(3,)]),
    Case("a set in two queues", ("1a 1b", "1a 1b"), 2, [(1, 1), (2, 2)]),
    Case("sets that cross are not torn", ("1a 1b", "1b 1a"), 2, [(2, 2)]),
    Case("a set of the same id in another epoch is another", ("1a 2a",), 1, [(1,), (2,)]),
    Case("an epoch that may have more rows is left", ("1 2", "1"), 9, [(1, 1)], is_whole=False),
    Case("no epoch is known to be whole", ("1 1",), 9, [], is_whole=False),
]


def queue_of(text: str, units: dict[str, int], is_whole: bool) -> QueueRows:
    epochs = [int(word[0]) for word in text.split()]
    names = [word[1:] for word in text.split()]
    numbers = [ALONE if not name else units.setdefault(name, len(units)) for name in names]
    return QueueRows(np.array(epochs), np.array(numbers), is_whole)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_cuts(case: Case) -> None:
    units: dict[str, int] = {}
    queues = [
        queue_of(text, units, case.is_whole or number > 0)
        for number, text in enumerate(case.queues)
    ]
    assert cuts(queues, case.rows_max) == case.cuts


def rows_of(*transactions: tuple[str | None, str | None]) -> pa.Table:
    """Return rows of message transactions, each as its group and id."""
    texts = pa.string()
    groups, ids = zip(*transactions, strict=True) if transactions else ((), ())
    return pa.table(
        {"producer_group": pa.array(groups, texts), "transaction_id": pa.array(ids, texts)}
    )


def test_a_unit_is_a_group_and_an_id_in_whatever_queue() -> None:
    queues = [
        rows_of(("shop", "1"), (None, "1"), ("bank", "1"), ("shop", None)),
        rows_of(),
        rows_of(("shop", None), ("shop", "2"), ("shop", "1"), (None, "1"), (None, None)),
    ]
    units = units_of(queues).tolist()

    shop, nobody, bank = units[:3]
    assert len({shop, nobody, bank, ALONE}) == 4
    assert units[3:] == [ALONE, ALONE, ALONE, shop, nobody, ALONE]
    assert units_of([rows_of(), rows_of()]).tolist() == []


@pytest.mark.parametrize(("rows_max", "is_large"), [(2, True), (3, False)])
def test_units_count_where_an_epoch_is_larger_than_the_limit(rows_max: int, is_large: bool) -> None:
    queues = [queue_of("1 2 2", {}, True), queue_of("1 2", {}, True)]
    assert has_large_epoch(queues, rows_max) == is_large


@pytest.mark.parametrize("seed", range(20))
def test_random_sets_are_never_torn_and_all_is_taken(seed: int) -> None:
    chosen = random.Random(seed)
    sizes = [chosen.randrange(1, 60) for _ in range(chosen.randrange(1, 5))]
    epochs = [sorted(chosen.choices(range(3), k=size)) for size in sizes]
    units = [chosen.choices([ALONE, *range(12)], k=size) for size in sizes]
    queues = [
        QueueRows(np.array(epoch), np.array(unit), True)
        for epoch, unit in zip(epochs, units, strict=True)
    ]

    found = cuts(queues, chosen.randrange(1, 30))

    assert found[-1] == tuple(sizes)
    before = tuple(0 for _ in sizes)
    for cut in found:
        assert sum(cut) > sum(before)
        taken, left = set(), set()
        for epoch, unit, first, end in zip(epochs, units, before, cut, strict=True):
            assert first <= end
            named = list(zip(epoch, unit, strict=True))
            taken |= {one for one in named[first:end] if one[1] != ALONE}
            left |= {one for one in named[end:] if one[1] != ALONE}
        assert taken.isdisjoint(left)
        before = cut

"""Where committed rows are cut into Kafka transactions: never inside a message transaction.

A cut is a number of rows for each queue: a prefix of every queue. It takes whole epochs, as many as
the limit allows. A single epoch that is larger is cut between message transactions. Within
an epoch the messages of a transaction may stand in several queues, with others between them; a cut
is sound when each transaction is on one side of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# The columns of a topic's table by which its rows are of one message transaction.
UNIT_COLUMNS: Final = ("producer_group", "transaction_id")
ALONE: Final = -1  # the unit of a message that shares it with no other
_MISSING: Final = -1
Array = Any  # numpy's generics say more than they help


@dataclass(frozen=True)
class QueueRows:
    """The next rows of one queue: each row's epoch, and its message transaction as a number.

    `is_whole`: whether these are all its committed rows.
    """

    epochs: Array
    units: Array
    is_whole: bool


def units_of(tables: Iterable[pa.Table]) -> Array:
    """Returns the message transaction of each row as a number.

    ALONE where a row is its only one: without an id, or with one that no other row has.
    Input: rows with UNIT_COLUMNS; those of one transaction can stand in several tables.
    """
    rows = pa.concat_tables(table.select(list(UNIT_COLUMNS)) for table in tables)
    groups, ids = (_numbers(rows[name]) for name in UNIT_COLUMNS)

    is_shared = (np.bincount(ids + 1)[ids + 1] > 1) & (ids != _MISSING)
    return np.where(is_shared, ids * (len(ids) + 1) + groups + 1, ALONE)


def _numbers(texts: pa.ChunkedArray) -> Array:
    """Returns a number for each text, the same for the same text; _MISSING where there is none."""
    encoded = texts.combine_chunks().dictionary_encode()
    return pc.fill_null(encoded.indices, _MISSING).to_numpy().astype(np.int64)


def cuts(queues: Sequence[QueueRows], rows_max: int) -> list[tuple[int, ...]]:
    """Returns the cuts, each as the number of rows of every queue up to it, in their order.

    Empty if no epoch is known to be whole: more rows are needed.
    """
    counts = _epoch_ends(queues)
    all_cuts: list[tuple[int, ...]] = []
    taken = np.zeros(len(queues), np.int64)
    number = 0

    while number < len(counts):
        sizes = counts[number:].sum(axis=1) - taken.sum()
        fitting = int(np.searchsorted(sizes, rows_max, side="right"))
        if fitting:
            number += fitting
            taken = counts[number - 1]
            all_cuts.append(tuple(taken.tolist()))
            continue

        for cut in _cuts_within(queues, taken, counts[number], rows_max):
            all_cuts.append(tuple(cut.tolist()))
        taken = counts[number]
        number += 1

    return all_cuts


def has_large_epoch(queues: Sequence[QueueRows], rows_max: int) -> bool:
    """Returns whether an epoch is larger than the limit, so that the units count."""
    ends = _epoch_ends(queues).sum(axis=1)
    return bool((np.diff(ends, prepend=0) > rows_max).any())


def _epoch_ends(queues: Sequence[QueueRows]) -> Array:
    """Returns for each epoch that is whole in all queues the number of rows up to it, by queue."""
    epochs = np.unique(np.concatenate([queue.epochs for queue in queues]))
    unsure = [queue.epochs[-1] for queue in queues if not queue.is_whole]
    if unsure:
        epochs = epochs[epochs < min(unsure)]

    return np.stack(
        [np.searchsorted(queue.epochs, epochs, side="right") for queue in queues], axis=1
    ).astype(np.int64)


def _cuts_within(
    queues: Sequence[QueueRows], first: Array, last: Array, rows_max: int
) -> list[Array]:
    """Returns the cuts of one large epoch, its end as the last one."""
    spans = list(zip(first, last, strict=True))
    queue_of = np.concatenate(
        [np.full(end - start, number) for number, (start, end) in enumerate(spans)]
    )
    row = np.concatenate([np.arange(start, end) for start, end in spans])
    names = np.concatenate(
        [queue.units[start:end] for queue, (start, end) in zip(queues, spans, strict=True)]
    )

    named = np.flatnonzero(names != ALONE)
    _, unit, count = np.unique(names[named], return_inverse=True, return_counts=True)
    is_linked = count[unit] > 1
    linked = named[is_linked]
    queue_of = queue_of[linked]
    row = row[linked]
    unit = unit[is_linked]

    all_cuts = []
    taken = first
    while (taken < last).any():
        taken = _next_cut(taken, last, rows_max, queue_of, row, unit, len(count))
        all_cuts.append(taken)
    return all_cuts


def _next_cut(
    taken: Array, last: Array, rows_max: int, queue_of: Array, row: Array, unit: Array, units: int
) -> Array:
    """Returns the next sound cut: near the limit, beyond it if no smaller cut is sound."""
    remaining = last - taken
    share = rows_max / remaining.sum()

    while share < 1:
        limit = taken + np.ceil(remaining * share).astype(np.int64)
        cut = _largest_sound_cut(limit, queue_of, row, unit, units)
        if (cut > taken).any():
            return np.maximum(cut, taken)
        share *= 2

    return last


def _largest_sound_cut(cut: Array, queue_of: Array, row: Array, unit: Array, units: int) -> Array:
    """Returns the largest sound cut within a cut: rows of a unit that is beyond it are left out."""
    cut = cut.copy()

    while True:
        is_inside = row < cut[queue_of]
        is_beyond = np.zeros(units, bool)
        is_beyond[unit[~is_inside]] = True
        torn = np.flatnonzero(is_inside & is_beyond[unit])

        if not len(torn):
            return cut
        np.minimum.at(cut, queue_of[torn], row[torn])

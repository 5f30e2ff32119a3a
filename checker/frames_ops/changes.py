"""The changes of the state in an epoch, row by row. A restart reads them and runs no rule.

Two frames are compared by their keys and columns, whatever the columns mean. So every change that
a decision makes is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import STATE_KEYS, Change, State
from checker.frames_ops.columns import Mask, Numbers, filter_rows, index_of, take, to_mask
from storage.schemas import row_keys


def changes(before: State, after: State) -> Mapping[str, Change]:
    """Returns the differences between two states, by frame; `topics` and `next_offsets` aside.

    Both states can be parts: the rows that the epoch can touch.
    """
    return {
        name: change(getattr(before, name), getattr(after, name), key)
        for name, key in STATE_KEYS.items()
    }


def change(before: pa.Table, after: pa.Table, key: Sequence[str]) -> Change:
    """Returns the rows that came in or changed, and the keys of those that are gone.

    Input: two frames of one schema; a key stands once in each.
    """
    if before is after or not (before.num_rows or after.num_rows):
        return Change(after.slice(0, 0), before.slice(0, 0).select(list(key)))

    keys_before, keys_after = _keys(before, after, key)

    index_before = index_of(keys_after, keys_before)
    has_before = index_before >= 0
    is_put = ~has_before

    if has_before.any():
        is_put[has_before] = _differ(
            filter_rows(after, has_before),
            take(before, index_before[has_before]),
        )

    is_gone = index_of(keys_before, keys_after) < 0

    return Change(
        filter_rows(after, is_put),
        filter_rows(before.select(list(key)), is_gone),
    )


def _keys(before: pa.Table, after: pa.Table, key: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Returns one number for the key of each row of both frames; equal keys have equal numbers."""
    if tuple(key) == ("queue_id", "queue_offset"):
        return row_keys(before), row_keys(after)

    both = pa.concat_tables([before.select(list(key)), after.select(list(key))])

    numbers = np.zeros(both.num_rows, np.int64)
    for name in key:
        codes = both[name].combine_chunks().dictionary_encode()
        numbers = numbers * len(codes.dictionary) + codes.indices.to_numpy()
        _, numbers = np.unique(numbers, return_inverse=True)

    return numbers[: before.num_rows], numbers[before.num_rows :]


def _differ(left: pa.Table, right: pa.Table) -> Mask:
    """Returns for each pair of rows whether any column differs; two nulls are equal."""
    differs = np.zeros(left.num_rows, bool)
    for name in left.column_names:
        left_values = left[name]
        right_values = right[name]
        if pa.types.is_list(left_values.type):
            if left_values.null_count < len(left_values) or right_values.null_count < len(
                right_values
            ):
                pairs = zip(left_values.to_pylist(), right_values.to_pylist(), strict=True)
                differs |= np.array([first != second for first, second in pairs], bool)
            continue
        differs |= ~to_mask(pc.equal(left_values, right_values)) & (
            to_mask(left_values.is_valid()) | to_mask(right_values.is_valid())
        )

    return differs

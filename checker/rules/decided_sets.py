"""The sets for which each operation is decided, so that it is decided once for each.

An operation can name several halves of one set. It is decided for the set at the first position
whose half exists, whatever the verdict. Its other positions that name the set are absorbed: they
have no effect, not even if their half lands in a later epoch.

So a naming that waits for its half must record the sets for which its operation is decided already:
the column `decided_sets`. If several namings of an operation wait, the first one has the list.

Source: docs/protocol/rules.md "Sets", 4.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames_ops.columns import Mask, Numbers, filter_rows, index_of, to_int64, to_mask
from storage.schemas import row_keys

DECIDED: Final = pa.schema(
    [("queue_id", pa.int32()), ("op_queue_offset", pa.int64()), ("set_name", pa.string())]
)


def decided_sets(namings: pa.Table) -> pa.Table:
    """Returns the sets for which operations were decided in earlier epochs, one row each.

    Input: NAMINGS. Output: DECIDED.
    """
    has_list = to_mask(namings["decided_sets"].is_valid())
    if not has_list.any():
        return DECIDED.empty_table()

    with_lists = filter_rows(namings, has_list).combine_chunks()
    lists = with_lists["decided_sets"].combine_chunks()

    # One row for each element of each list.
    rows = with_lists.take(pc.list_parent_indices(lists))
    columns = [rows["queue_id"], rows["op_queue_offset"], pc.list_flatten(lists)]
    return pa.table(columns, schema=DECIDED)


def is_absorbed(namings: pa.Table, halves: pa.Table, new_halves: pa.Table) -> Mask:
    """Returns for each naming whether its operation is decided for its set at another position.

    Input: NAMINGS; `halves`: a row for each naming, with the half that it names: `set_name` (null
    if that half is in no set or does not exist) and `unit_offset`, which is the same for all halves
    of a set; NEW_HALVES.
    """
    is_decided = np.zeros(namings.num_rows, bool)
    indices = np.flatnonzero(to_mask(halves["set_name"].is_valid()))
    if len(indices) == 0:
        return is_decided

    # In earlier epochs: such a position waited for its half until now, so that half is new.
    decided = decided_sets(namings)
    if decided.num_rows:
        in_sets = namings.take(pa.array(indices))
        set_names = halves["set_name"].take(pa.array(indices))

        is_new = index_of(row_keys(in_sets, "half_queue_offset"), row_keys(new_halves)) >= 0
        is_decided[indices] = is_new & _is_decided_earlier(in_sets, set_names, decided)

    # In this epoch: of the positions of one operation that name one set, the first counts.
    remaining = indices[~is_decided[indices]]
    operations = row_keys(namings, "op_queue_offset")[remaining]
    positions = to_int64(namings["position"])[remaining]
    units = to_int64(halves["unit_offset"])[remaining]

    order = np.lexsort((positions, units, operations))
    is_same_operation = np.diff(operations[order]) == 0
    is_same_set = np.diff(units[order]) == 0

    all_but_first = remaining[order[1:]]
    is_decided[all_but_first] = is_same_operation & is_same_set

    return is_decided


def _is_decided_earlier(namings: pa.Table, set_names: pa.ChunkedArray, decided: pa.Table) -> Mask:
    """Returns for each naming whether its operation and its set stand in `decided` (DECIDED)."""
    decided_keys = set(zip(*(decided[name].to_pylist() for name in DECIDED.names), strict=True))

    keys = zip(
        namings["queue_id"].to_pylist(),
        namings["op_queue_offset"].to_pylist(),
        set_names.to_pylist(),
        strict=True,
    )

    return np.array([key in decided_keys for key in keys], bool)


def decided_sets_after(
    namings: pa.Table, set_names: pa.ChunkedArray, is_ahead: Mask
) -> pa.ChunkedArray:
    """Returns the column `decided_sets` of the namings after this epoch.

    Input: NAMINGS; the set that each names (null if its half is in no set or does not exist);
    `is_ahead`: the namings that go on waiting for their half.
    """
    operations = row_keys(namings, "op_queue_offset")
    in_set = to_mask(set_names.is_valid())
    has_list = to_mask(namings["decided_sets"].is_valid())

    has_decided = index_of(operations, operations[in_set | has_list]) >= 0
    is_recorder = is_ahead & has_decided
    if not is_recorder.any():
        return pa.chunked_array([pa.nulls(namings.num_rows, pa.list_(pa.string()))])

    sets: dict[tuple[int, int], set[str]] = defaultdict(set)
    for row in decided_sets(namings).to_pylist():
        sets[row["queue_id"], row["op_queue_offset"]].add(row["set_name"])

    named = filter_rows(namings, in_set).select(["queue_id", "op_queue_offset"])
    for row, name in zip(named.to_pylist(), set_names.drop_null().to_pylist(), strict=True):
        sets[row["queue_id"], row["op_queue_offset"]].add(name)

    lists: list[list[str] | None] = [None] * namings.num_rows
    for index in _first_of_each(operations, to_int64(namings["position"]), is_recorder):
        key = namings["queue_id"][index].as_py(), namings["op_queue_offset"][index].as_py()
        lists[index] = sorted(sets[key])

    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def _first_of_each(operations: Numbers, positions: Numbers, is_wanted: Mask) -> Numbers:
    """Returns the row number of the first wanted position of each operation."""
    rows = np.flatnonzero(is_wanted)
    in_order = rows[np.lexsort((positions[rows], operations[rows]))]
    is_first = np.diff(operations[in_order], prepend=-1) != 0

    return in_order[is_first]

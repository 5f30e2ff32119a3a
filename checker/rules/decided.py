"""For which sets an operation is decided: once for each.

An operation is decided for a set at its first position that names a half of the set that is there,
whatever the verdict. Its other positions that name the set are absorbed, also those whose half
lands in a later epoch. So a naming that waits for its half carries the sets for which its operation
is decided; of several such namings of an operation the first one carries them for all.

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
    """Returns the sets for which the operations are decided, one row each. Input: NAMINGS.

    Output: DECIDED.
    """
    if namings["decided_sets"].null_count == namings.num_rows:
        return DECIDED.empty_table()

    carriers = filter_rows(namings, to_mask(namings["decided_sets"].is_valid())).combine_chunks()
    lists = carriers["decided_sets"].combine_chunks()
    rows = carriers.take(pc.list_parent_indices(lists))
    columns = [rows["queue_id"], rows["op_queue_offset"], pc.list_flatten(lists)]
    return pa.table(columns, schema=DECIDED)


def is_absorbed(namings: pa.Table, halves: pa.Table, new_halves: pa.Table) -> Mask:
    """Returns for each naming whether its operation is decided for its set at another position.

    Input: NAMINGS; for each the set that it names (`set_name`, null: none that is there) and its
    `unit_offset`; NEW_HALVES: only a half that lands now can be named by a position that waited
    for it.
    """
    is_decided = np.zeros(namings.num_rows, bool)
    at = np.flatnonzero(to_mask(halves["set_name"].is_valid()))
    if len(at) == 0:
        return is_decided

    in_sets = namings.take(pa.array(at))
    set_names = halves["set_name"].take(pa.array(at))

    decided = decided_sets(namings)
    if decided.num_rows:
        is_new = index_of(row_keys(in_sets, "half_queue_offset"), row_keys(new_halves)) >= 0
        is_decided[at] = is_new & _is_decided_earlier(in_sets, set_names, decided)

    # Of the other positions that name one set the first counts.
    rest = at[~is_decided[at]]
    operations = row_keys(namings, "op_queue_offset")[rest]
    positions = to_int64(namings["position"])[rest]
    units = to_int64(halves["unit_offset"])[rest]

    order = np.lexsort((positions, units, operations))
    is_later = (np.diff(operations[order]) == 0) & (np.diff(units[order]) == 0)
    is_decided[rest[order[1:]]] = is_later

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
    """Returns `decided_sets` of the namings after this epoch.

    Input: NAMINGS; the set that each names (null: none that is there); `is_ahead`: those that go on
    waiting for their half.
    """
    operations = row_keys(namings, "op_queue_offset")
    in_set = to_mask(set_names.is_valid())
    has_list = to_mask(namings["decided_sets"].is_valid())
    is_concerned = is_ahead & (index_of(operations, operations[in_set | has_list]) >= 0)

    if not is_concerned.any():
        return pa.chunked_array([pa.nulls(namings.num_rows, pa.list_(pa.string()))])

    sets = defaultdict(set)
    for row in decided_sets(namings).to_pylist():
        sets[row["queue_id"], row["op_queue_offset"]].add(row["set_name"])

    named = filter_rows(namings, in_set).select(["queue_id", "op_queue_offset"])
    for row, name in zip(named.to_pylist(), set_names.drop_null().to_pylist(), strict=True):
        sets[row["queue_id"], row["op_queue_offset"]].add(name)

    lists: list[list[str] | None] = [None] * namings.num_rows
    for at in _first_of_each(operations, to_int64(namings["position"]), is_concerned):
        key = namings["queue_id"][at].as_py(), namings["op_queue_offset"][at].as_py()
        lists[at] = sorted(sets[key])

    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def _first_of_each(operations: Numbers, positions: Numbers, is_wanted: Mask) -> Numbers:
    """Returns the row of the first wanted position of each operation."""
    at = np.flatnonzero(is_wanted)
    order = at[np.lexsort((positions[at], operations[at]))]
    is_first = np.diff(operations[order], prepend=-1) != 0

    return order[is_first]

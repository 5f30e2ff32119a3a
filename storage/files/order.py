"""The order of rows in a table's files: rows that are read together stand together.

Readers skip the files and row groups that cannot hold the rows they look for. They read files of
any order right: other versions and other programs can write them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.schemas import row_keys

_ROW_KEY = ("queue_id", "queue_offset")
_BY_EPOCH = ("epoch",)
# `schedule` is in the order in which messages are due. Those of one delay level have no
# `deliver_at`; they are due in the order of their offsets.
_ORDERS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("half", "op", "admin", "outcomes", "checks", "topics"), _ROW_KEY),
    "schedule": ("deliver_at", *_ROW_KEY),
    "conflicts": ("queue_id", "op_queue_offset"),
    "delayed": ("epoch", "source", *_ROW_KEY),
    "deliveries": ("source", *_ROW_KEY),
    "pending": ("epoch", *_ROW_KEY),
    "waiting": ("epoch", "queue_id", "op_queue_offset"),
    "epochs": _BY_EPOCH,
    "catalog": _BY_EPOCH,
}
# Of `schedule`: the few of a file that are due together are in one or two groups, and each group
# is decoded whole (DECISIONS.md 13).
DUE_GROUP_ROWS: Final = 1_024


def in_file_order(table: str, rows: pa.Table) -> pa.Table:
    """Sorts rows as a table's files have them; equal ones stay in the order they came in.

    Rows in order are returned without a copy.
    """
    names = _ORDERS[table_kind(table)]

    if names == _ROW_KEY:  # numbers are compared faster than columns
        keys = row_keys(rows)
        if (keys[1:] >= keys[:-1]).all():
            return rows
        return rows.take(pa.array(np.argsort(keys, kind="stable")))

    sort_keys = [(name, "ascending") for name in names]
    order = pc.sort_indices(rows.select(names), sort_keys=sort_keys)
    if pc.all(pc.equal(order, pa.array(np.arange(rows.num_rows, dtype=np.uint64)))).as_py():
        return rows
    return rows.take(order)


def table_kind(table: str) -> str:
    """Returns the kind of a table: `topics` for that of any real topic."""
    return table.split("/")[0]

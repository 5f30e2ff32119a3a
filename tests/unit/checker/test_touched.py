"""What of the state an epoch can touch is taken out of it without a copy."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import DELAYED
from checker.match import touched


def test_what_is_due_is_taken_out_of_the_state_without_a_copy() -> None:
    chance = random.Random(8)
    rows = [
        {"source": "schedule", "queue_id": 1, "queue_offset": n, "deliver_at": chance.randrange(99)}
        for n in range(touched.FEW_ROWS)
    ]
    full = [{name: row.get(name) for name in DELAYED.names} for row in rows]
    state = touched.join(
        DELAYED.empty_table(), pa.Table.from_pylist(full, schema=DELAYED), "deliver_at"
    )
    for at in (-1, 0, 50, 98):
        is_due = pc.less_equal(state["deliver_at"], at).to_numpy()
        due, left = touched.split(state, is_due)
        assert due.num_rows == sum(row["deliver_at"] <= at for row in rows)
        assert due.num_rows + left.num_rows == len(rows)
        assert not pc.any(pc.greater(due["deliver_at"], at)).as_py()
        buffers = {
            chunk.buffers()[1].address
            for table in (state, due, left)
            for chunk in table["queue_offset"].chunks
            if len(chunk)
        }
        assert len(buffers) == 1

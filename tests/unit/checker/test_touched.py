"""What of the state an epoch can touch is taken out of it without a copy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from checker.frames import DELAYED, HALVES, NEW_HALVES, OPERATIONS, Inputs, State
from checker.match import touched
from checker.rules import sets


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


HALF_0 = {"queue_id": 0, "producer_group": "g", "tran_size": 3, "stored_at": 0, "arm": 0}
# Two sets of two landed halves each, of three, and a half alone.
PENDING = pa.Table.from_pylist(
    [
        {**HALF_0, "queue_offset": 0, "unit_offset": 0, "transaction_id": "a", "tran_seq": 0},
        {**HALF_0, "queue_offset": 1, "unit_offset": 1, "transaction_id": "b", "tran_seq": 0},
        {**HALF_0, "queue_offset": 2, "unit_offset": 0, "transaction_id": "a", "tran_seq": 1},
        {**HALF_0, "queue_offset": 3, "unit_offset": 1, "transaction_id": "b", "tran_seq": 1},
        {**HALF_0, "queue_offset": 4, "unit_offset": 4, "transaction_id": "c", "tran_size": None},
    ],
    schema=HALVES,
)
OF_B = {"queue_id": 0, "producer_group": "g", "transaction_id": "b", "tran_size": 3}


def named(offset: int) -> Inputs:
    row = {"queue_id": 0, "op_queue_offset": 0, "producer_group": "g", "decision": "COMMIT",
           "half_offsets": [offset]}  # fmt: skip
    return Inputs(operations=pa.Table.from_pylist([row], schema=OPERATIONS))


def landed(**columns: Any) -> Inputs:
    row = {**OF_B, "queue_offset": 9, "tran_seq": 2, **columns}
    return Inputs(halves=pa.Table.from_pylist([row], schema=NEW_HALVES))


@pytest.mark.parametrize(
    ("inputs", "near"),
    [
        pytest.param(Inputs(), [], id="nothing is touched"),
        pytest.param(named(2), [0, 2], id="an operation names one member: all of its set"),
        pytest.param(named(4), [4], id="an operation names a half alone"),
        pytest.param(landed(), [1, 3], id="a member lands: all of its set"),
        pytest.param(landed(tran_size=None), [], id="a half alone with a set's id is in no set"),
        pytest.param(landed(transaction_id="d"), [], id="a member of a new set lands"),
    ],
)
def test_sets_that_wait_are_looked_at_when_they_are_touched(
    inputs: Inputs, near: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched, "FEW_ROWS", 0)
    found, left = touched.split_state(
        State(halves=PENDING), inputs, sets.members_with_id(PENDING, inputs.halves),
        sets.is_member(PENDING), np.zeros(0, bool),
    )  # fmt: skip
    assert sorted(found.halves["queue_offset"].to_pylist()) == near
    assert found.halves.num_rows + left.halves.num_rows == PENDING.num_rows

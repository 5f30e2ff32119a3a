"""What of the state an epoch can touch is taken out of it without a copy."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from checker.frames import (
    DELAYED,
    HALVES,
    NAMINGS,
    NEW_HALVES,
    OPERATIONS,
    QUEUES,
    STATE_KEYS,
    Inputs,
    State,
)
from checker.frames_ops import active
from checker.rules import naming, sets
from tests.support.in_memory_job import InMemoryJob
from txlake.protocol import COMMIT


def test_what_is_due_is_taken_out_of_the_state_without_a_copy() -> None:
    chance = random.Random(8)
    rows = [
        {"source": "schedule", "queue_id": 1, "queue_offset": n, "deliver_at": chance.randrange(99)}
        for n in range(active.FEW_ROWS)
    ]
    full = [{name: row.get(name) for name in DELAYED.names} for row in rows]
    state = active.join(
        DELAYED.empty_table(), pa.Table.from_pylist(full, schema=DELAYED), "deliver_at"
    )
    for at in (-1, 0, 50, 98):
        is_due = pc.less_equal(state["deliver_at"], at).to_numpy()
        due, left = active.split(state, is_due)
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
    row = {
        "queue_id": 0,
        "op_queue_offset": 0,
        "producer_group": "g",
        "decision": "COMMIT",
        "half_offsets": [offset],
    }
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
    monkeypatch.setattr(active, "FEW_ROWS", 0)
    found, left = active.partition_state(
        State(halves=PENDING),
        inputs,
        sets.members_with_id(PENDING, inputs.halves),
        sets.is_member(PENDING),
        np.zeros(0, bool),
        np.zeros(0, bool),
    )
    assert sorted(found.halves["queue_offset"].to_pylist()) == near
    assert found.halves.num_rows + left.halves.num_rows == PENDING.num_rows


TTL_MS = 10_000
QUEUE = pa.Table.from_pylist([{"queue_id": 0, "halves_known_at": 20_000, "half_end": 5}], QUEUES)


def waiting(op_offset: int, half_offset: int, **columns: Any) -> dict[str, Any]:
    """Return a naming that waits; `landed_at` is too young to be an orphan's."""
    return {
        "queue_id": 0,
        "op_queue_offset": op_offset,
        "position": half_offset,
        "half_queue_offset": half_offset,
        "producer_group": "g",
        "decision": "COMMIT",
        "landed_at": 15_000,
        **columns,
    }


@pytest.mark.parametrize(
    ("namings", "operations", "near"),
    [
        pytest.param([waiting(1, 5)], [], [], id="its half is still to come"),
        pytest.param([waiting(1, 4)], [], [1], id="its half has landed, it waits for its set"),
        pytest.param([waiting(1, 5, landed_at=9_999)], [], [1], id="it has waited too long"),
        pytest.param([waiting(1, 5, landed_at=10_000)], [], [], id="just not too long"),
        pytest.param([waiting(1, 4), waiting(1, 6), waiting(2, 6)], [], [1, 1],
                     id="all namings of an operation, where one can act"),
        pytest.param([waiting(1, 5), waiting(2, 5, producer_group="h")], [("g", "ROLLBACK")], [1],
                     id="it can hold up a ROLLBACK of its group"),
        pytest.param([waiting(1, 4, decision="ROLLBACK"), waiting(2, 6)], [], [1, 2],
                     id="it can hold up a ROLLBACK that waits"),
        pytest.param([waiting(1, 5)], [("g", "COMMIT")], [], id="a COMMIT is held up by nothing"),
    ],
)  # fmt: skip
def test_namings_that_wait_are_looked_at_when_they_can_act(
    namings: list[dict[str, Any]],
    operations: list[tuple[str, str]],
    near: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(active, "FEW_ROWS", 0)
    state = State(waiting=pa.Table.from_pylist(namings, schema=NAMINGS))
    rows = [
        {
            "queue_id": 0,
            "op_queue_offset": 9,
            "producer_group": group,
            "decision": decision,
            "half_offsets": [7],
        }
        for group, decision in operations
    ]
    inputs = Inputs(operations=pa.Table.from_pylist(rows, schema=OPERATIONS))
    is_awaited = naming.can_take_effect(state.waiting, inputs.operations, QUEUE, TTL_MS)
    none = np.zeros(0, bool)
    found, left = active.partition_state(state, inputs, none, none, none, is_awaited)
    assert sorted(found.waiting["op_queue_offset"].to_pylist()) == near
    assert found.waiting.num_rows + left.waiting.num_rows == len(namings)


def test_the_state_stays_in_one_chunk_however_many_epochs_have_passed(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.end(COMMIT, 99)  # waits for its half
    for number in range(6):
        job.end(COMMIT, job.half("held", delay_level=18))
        if number % 2:
            job.end(COMMIT, job.half("at once", real_topic=f"topic {number}"))
        job.half("silent")
        job.run()
        frames = [*STATE_KEYS, "topics", "next_offsets"]
        chunks = {name: getattr(job.state, name).column(0).num_chunks for name in frames}
        if number:
            assert chunks == dict.fromkeys(frames, 1)

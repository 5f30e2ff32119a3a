"""Places as numbers: what an operation names by mistake matches nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from checker.decide import decide
from checker.frames import NEW_HALVES, OPERATIONS, QUEUES, Inputs, Instants, Parameters, State
from checker.frames_ops.columns import case_when, equal_or_null, index_of, take
from storage.schemas import row_keys


def table(**columns: list[object]) -> pa.Table:
    """Make a frame of queue_id and queue_offset."""
    kinds = {"queue_id": pa.int32(), "queue_offset": pa.int64()}
    return pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})


def test_a_place_is_found_by_queue_and_offset() -> None:
    wanted = table(queue_id=[0, 1, 1, 2], queue_offset=[5, 5, 6, 0])
    among = table(queue_id=[1, 0, 2], queue_offset=[6, 5, 1])
    assert index_of(row_keys(wanted), row_keys(among)).tolist() == [1, -1, 0, -1]


@pytest.mark.parametrize("offset", [(1 << 44) + 5, 10**18 - 1, None])
def test_an_offset_that_no_partition_has_is_no_place(offset: int | None) -> None:
    wanted = table(queue_id=[0], queue_offset=[offset])
    among = table(queue_id=[1, 0], queue_offset=[5, 5])
    assert index_of(row_keys(wanted), row_keys(among)).tolist() == [-1]


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


ORDER = np.arange(0, 6_000, 2, dtype=np.int64)  # the odd ones are not there
CHANCE = np.random.default_rng(1)


@pytest.mark.parametrize(
    "among",
    [
        ORDER,
        np.concatenate([ORDER[2_000:], ORDER[:2_000]]),  # two runs
        np.concatenate([ORDER, ORDER[::-1][:50], ORDER]),  # the first of equals is meant
        CHANCE.permutation(ORDER),
        ORDER[::-1].copy(),
        CHANCE.choice(ORDER, 500),
        numbers(7),
        numbers(),
    ],
)
@pytest.mark.parametrize(
    "wanted",
    [np.arange(-3, 6_005), CHANCE.permutation(6_000), numbers(5_998, 0, 1, 0), numbers()],
)
def test_the_first_of_equal_numbers_is_found_in_any_order(among: Any, wanted: Any) -> None:
    first: dict[int, int] = {}
    for index, number in enumerate(among.tolist()):
        first.setdefault(number, index)
    found = index_of(wanted.astype(np.int64), among)
    assert found.tolist() == [first.get(number, -1) for number in wanted.tolist()]
    assert found.dtype == np.int64


def test_rows_of_nothing_are_null() -> None:
    rows = take(table(queue_id=[7], queue_offset=[8]), index_of(numbers(0, 1), numbers(1)))
    assert rows.to_pylist() == [
        {"queue_id": None, "queue_offset": None},
        {"queue_id": 7, "queue_offset": 8},
    ]


def test_the_first_case_that_holds_is_chosen() -> None:
    first, second = (pa.array(mask).to_numpy(False) for mask in ([True, False], [True, True]))
    assert case_when([(first, "a"), (second, None)], "b").to_pylist() == ["a", None]
    assert case_when([(first, "a")], "b").to_pylist() == ["a", "b"]


def test_an_unknown_value_differs_from_nothing() -> None:
    left, right = pa.chunked_array([["a", "a", None]]), pa.chunked_array([["a", "b", "b"]])
    assert equal_or_null(left, right).tolist() == [True, False, True]


def test_an_operation_that_names_a_huge_offset_ends_no_half_of_another_queue() -> None:
    """2^44 + 5 in queue 0 is written like 5 in queue 1 where places are one number."""
    half = {
        "queue_id": 1,
        "queue_offset": 5,
        "producer_group": "g",
        "transaction_id": "t",
        "stored_at": 1,
        "real_topic": "orders",
    }
    operation = {
        "queue_id": 0,
        "op_queue_offset": 0,
        "stored_at": 2,
        "producer_group": "g",
        "decision": "COMMIT",
        "half_offsets": [(1 << 44) + 5],
        "transaction_ids": None,
        "cause": "operation",
    }
    queues = [
        {"queue_id": queue, "known_at": 3, "halves_known_at": 3, "half_end": 6} for queue in (0, 1)
    ]
    decision = decide(
        State(),
        Inputs(
            halves=pa.Table.from_pylist([half], schema=NEW_HALVES),
            operations=pa.Table.from_pylist([operation], schema=OPERATIONS),
        ),
        Instants(3, pa.Table.from_pylist(queues, schema=QUEUES)),
        Parameters(),
    )
    assert decision.outcomes.num_rows == 0
    assert decision.state.halves.num_rows == 1
    assert decision.state.waiting["half_queue_offset"].to_pylist() == [(1 << 44) + 5]

"""Crossings: each row with each column. `make test` runs a part of them, `make soak` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

Pair = tuple[Any, Any]


def crossing(
    rows: Sequence[Any],
    columns: Sequence[Any],
    *,
    whole: Iterable[Any] = (),
    without: Callable[[Pair], bool] = lambda _: False,
) -> list[Any]:
    """Returns the pairs as parameters; those beyond a part have the mark `soak`.

    Input: `whole`: rows that are run with every column; `without`: pairs that are no case.
    Output: without the mark, each other row has a column, and each column has a row: one after the
    other, beginning again at the end of the shorter of both.
    Errors: AssertionError where a row or a column that has pairs would be left to the long run.
    """
    whole_rows = set(whole)
    others = [row for row in rows if row not in whole_rows]
    turns = min(len(others), len(columns))
    parameters = []

    for row, (number, column) in product(rows, enumerate(columns)):
        if without((row, column)):
            continue
        is_turn = row in whole_rows or (others.index(row) - number) % turns == 0
        marks = () if is_turn else (pytest.mark.soak,)
        parameters.append(pytest.param(row, column, id=f"{row}-{column}", marks=marks))

    for place in (0, 1):
        run = {one.values[place] for one in parameters if not one.marks}
        assert run == {one.values[place] for one in parameters}, "every one has to be in a case"

    return parameters

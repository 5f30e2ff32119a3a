"""Of a crossing `make test` runs each row and each column, `make soak` what is left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.crossing import crossing

TABLES = ("half", "op", "checks", "outcomes", "epochs")


def run_by_default(parameters: list[Any]) -> set[tuple[str, str]]:
    return {one.values for one in parameters if not one.marks}


@pytest.mark.parametrize("columns", [("cut", "emptied"), ("a", "b", "c", "d", "e", "f", "g")])
def test_every_row_and_every_column_is_in_a_case(columns: tuple[str, ...]) -> None:
    parameters = crossing(TABLES, columns)
    part = run_by_default(parameters)

    assert len(parameters) == len(TABLES) * len(columns)
    assert {row for row, _ in part} == set(TABLES)
    assert {column for _, column in part} == set(columns)
    assert len(part) < len(parameters)


def test_a_whole_row_has_every_column() -> None:
    part = run_by_default(crossing(TABLES, ("cut", "emptied", "gone"), whole=["epochs"]))

    assert {column for row, column in part if row == "epochs"} == {"cut", "emptied", "gone"}
    assert len(part) == 3 + 4


def test_what_is_no_case_of_a_whole_row_is_run_with_another() -> None:
    columns = ("cut", "emptied", "zeroed", "gone", "moved", "linked", "closed")

    for left_out in columns:
        pair = ("epochs", left_out)
        part = run_by_default(
            crossing(TABLES, columns, whole=["epochs"], without=lambda one, pair=pair: one == pair)
        )
        assert {column for row, column in part if row != "epochs"} == set(columns)


def test_a_row_whose_turn_is_no_case_is_not_left_to_the_long_run() -> None:
    with pytest.raises(AssertionError, match="every one has to be in a case"):
        crossing(TABLES, ("cut", "emptied"), without=lambda pair: pair == ("half", "cut"))


def test_what_is_no_case_is_left_out() -> None:
    parameters = crossing(TABLES, ("cut",), without=lambda pair: pair == ("op", "cut"))

    assert [one.values[0] for one in parameters] == ["half", "checks", "outcomes", "epochs"]

"""A count and its noun agree, and no sentence writes a count before a bare plural."""

from __future__ import annotations

from pathlib import Path

import pytest

from txlake._counted import counted

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("count", "noun", "plural", "expected"),
    [
        (0, "row", "", "0 rows"),
        (1, "row", "", "1 row"),
        (2, "row", "", "2 rows"),
        (1, "half", "halves", "1 half"),
        (2, "half", "halves", "2 halves"),
    ],
)
def test_a_count_and_its_noun_agree(count: int, noun: str, plural: str, expected: str) -> None:
    assert counted(count, noun, plural) == expected

"""The product's names are nouns of the field and verbs with their object (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("pipelines", "storage", "checker", "client/txlake")
# They say neither what a value holds nor what a function does. `told` was the name of eight
# functions, a class, an alias and two modules.
OLD_WORDS = {
    "again",
    "asked",
    "found",
    "given",
    "heard",
    "least",
    "most",
    "one",
    "said",
    "saw",
    "so",
    "take_up",
    "there",
    "those",
    "told",
    "took_up",
    "trouble",
    "truth",
    "what",
    "who",
}
# A field of the JSON that `txlake replay --verify -o json` prints.
INTERFACES = {("pipelines/replay/compare.py", "there")}


def names_in(source: str) -> Iterator[str]:
    """Returns the names of functions, classes, parameters and variables of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def is_old(name: str) -> bool:
    """Returns whether a name is an old word; constants are values of columns."""
    return not name.isupper() and name.strip("_").lower() in OLD_WORDS


@pytest.mark.parametrize("room", ROOMS)
def test_no_name_is_one_of_the_old_words(room: str) -> None:
    old = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in sorted((ROOT / room).rglob("*.py"))
        for name in (path.stem, *names_in(path.read_text("utf-8")))
        if is_old(name)
    }
    assert old - INTERFACES == set()


def test_an_old_word_is_found() -> None:
    source = "def _heard(asked):\n    rows = found = asked\n    return Told"
    assert [name for name in names_in(source) if is_old(name)] == ["_heard", "asked", "found"]

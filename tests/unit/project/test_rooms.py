"""The rooms around the product: which know of one another; and that ruff gives all their form."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("pipelines", "storage", "checker", "client", "examples", "bench", "release", "tests")
SOURCES = {
    path.relative_to(ROOT): path.read_text("utf-8")
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def imported(source: str) -> Iterator[str]:
    """Return the modules that a file imports, in whatever block."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


@pytest.mark.parametrize(
    ("room", "other", "shared"),
    [("bench", "tests", "tests.support"), ("tests", "bench", "nothing"),
     ("examples", "tests", "nothing"), ("examples", "bench", "nothing"),
     ("release", "tests", "nothing"), ("release", "bench", "nothing")],
)  # fmt: skip
def test_rooms_share_no_more_than_this(room: str, other: str, shared: str) -> None:
    found = [
        f"{path} imports {module}"
        for path, source in SOURCES.items()
        if path.parts[0] == room
        for module in imported(source)
        if module.split(".")[0] == other and not f"{module}.".startswith(f"{shared}.")
    ]
    assert found == []


# What these keep in their own form is to go when they are next changed.
OWN_FORM = {
    "client/txlake/_dead_letters.py",
    "client/txlake/_members.py",
    "client/txlake/_push.py",
    "client/txlake/_retries.py",
    "client/txlake/consumer.py",
    "pipelines/console/actions.py",
}


def test_only_tables_of_examples_keep_their_own_form() -> None:
    mark = "# fmt" + ": skip"
    kept = {path.as_posix() for path, source in SOURCES.items() if mark in source}
    tests = {name for name in kept if "/test_" in name} | {"tests/support/vector_cases.py"}
    assert kept - tests - OWN_FORM == set()

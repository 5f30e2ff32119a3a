"""Sentences of the product: counts agree with their nouns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
NOUNS = (
    "checks|commits|differences|epochs|files|groups|halves|jars|keys|logs|messages|offsets"
    "|operations|partitions|problems|publishers|queues|records|rows|tables|times|transactions"
)
PLURAL = re.compile(rf" (?:(?!(?:has|have|holds|of) )\w+ )?(?:{NOUNS})\b")
# Never one where the sentence is said, or no counts at all.
NEVER_ONE = {
    "kind",
    "str(folder)",
    "len(at)",
    "len(numbers)",
    "count[ADMIN]",
    "group['unanswered']",
    "len(keys)",
    "len(publishers)",
    "len(statements)",
    "len(taken)",
    "row['tran_size']",
}


def bare_counts(path: Path) -> Iterator[str]:
    """Yields each number in a sentence of a module that a plural follows, whatever it is."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.JoinedStr):
            continue

        for value, after in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            count = ast.unparse(value.value)
            is_constant = count.lstrip("_").isupper()
            if is_constant or count in NEVER_ONE or count.startswith("counted("):
                continue
            if PLURAL.match(str(after.value)):
                yield f"{path.relative_to(ROOT)}:{value.lineno}: {count}{after.value}"


def test_counts_agree_with_their_nouns() -> None:
    folders = ("pipelines", "storage", "checker", "client/txlake")
    found = [
        text
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in bare_counts(path)
    ]
    assert found == []

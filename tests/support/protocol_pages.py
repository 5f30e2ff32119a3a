"""The pages of the protocol, their sections, and the rows of their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    path: (ROOT / path).read_text("utf-8")
    for path in (
        "PROTOCOL.md",
        "docs/protocol/wire.md",
        "docs/protocol/rules.md",
        "docs/protocol/tables.md",
    )
}
PROTOCOL: Final = "\n".join(PAGES.values())


def section(title: str, text: str = PROTOCOL) -> str:
    """Returns the text under a heading, up to the next heading of its rank or above."""
    found = re.search(rf"^(#+) {re.escape(title)}\n", text, re.MULTILINE)
    assert found, f"the protocol has no section {title!r}"

    rest = text[found.end() :]
    after = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: after.start()] if after else rest


def table_rows(text: str) -> Iterator[list[str]]:
    """Yields the cells of each row of the tables in a text, without their headings."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        is_heading = number + 1 < len(lines) and lines[number + 1].startswith("|---")
        if line.startswith("| ") and not is_heading:
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]

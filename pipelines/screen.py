"""Rows printed for people: a table on a terminal, plain aligned text everywhere else.

What producers send stands in them. A line break could forge a line, an escape sequence change the
terminal, a mark for the direction of writing turn a text around: each is shown as its code.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

# Control characters, line and paragraph separators, marks that change the direction of writing.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Returns a text as one line of what can be seen; the rest as \\u and four digits."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def print_line(text: str = "") -> None:
    """Prints a line that has texts of producers in it."""
    click.echo(printable(text))


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints rows under their headings; None as an empty cell."""
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*headings, box=box.SIMPLE)
        for row in texts:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    lines = [list(headings), *texts]
    widths = [max(len(line[place]) for line in lines) for place in range(len(headings))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """Prints plain values as JSON."""
    for line in json.dumps(value, indent=2, ensure_ascii=False).split("\n"):
        print_line(line)  # JSON's own line breaks; it writes those in texts as \\n

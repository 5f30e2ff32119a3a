"""Rows printed for people: a table on a terminal, plain aligned text everywhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints rows under their headings; None as an empty cell."""
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
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
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))

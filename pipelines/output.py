"""Rows printed for people and for programs: a table, JSON, a JSON object a line, CSV.

Producers' texts stand in them. A line break could forge a line, an escape sequence change the
terminal, a mark for the direction of writing turn a text around: each is shown as its code.

A column's name tells the kind of its numbers: an instant (`_at`, `since`), a span (`_ms`) or a size
(`_bytes`). Tables show them for people, the other formats as the protocol writes them.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import click

FORMATS: Final = ("table", "json", "jsonl", "csv")
TABLE, JSON, JSONL, CSV = FORMATS
# Control characters, line and paragraph separators, marks that change the direction of writing, and
# characters without width: two texts that look alike could differ in them.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
# A spreadsheet begins a formula with these; a quote before them makes it a text (OWASP).
_FORMULA = ("=", "+", "-", "@")
LAST_MS: Final = 253_402_300_799_999  # the last that a datetime has
_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
_SIZES: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

Row = Mapping[str, Any]


def printable(text: str) -> str:
    """Returns a text as one line of visible characters; others as \\u and four digits.

    A character of more digits is written as Python does, \\U and eight.
    """
    return _UNSEEN.sub(lambda match: _escape(ord(match.group())), text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _printable_json(text: str) -> str:
    """Returns JSON with unseen characters as JSON escapes them: by a surrogate pair if need be."""
    return _UNSEEN.sub(lambda match: json.dumps(match.group())[1:-1], text)


def print_line(text: str = "") -> None:
    """Prints a line with texts of producers in it."""
    click.echo(printable(text))


def now_ms() -> int:
    """Returns the instant from which tables and pages are seen."""
    return time.time_ns() // 1_000_000


def instant(ms: int) -> str:
    """Returns an instant as text, UTC, to the ms; the last of year 9999 for a later one."""
    ms = min(ms, LAST_MS)  # what is due in 10^15 ms, say
    at = dt.datetime.fromtimestamp(ms // 1000, dt.timezone.utc)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def number_text(value: float) -> str:
    """Returns a number of three digits, or a whole one with separators where it has more."""
    has_more_digits = abs(value) >= 999.5
    return f"{value:,.0f}" if has_more_digits else f"{value:.3g}"


def span(ms: int) -> str:
    """Returns a span as text, in the largest unit that it fills, to a tenth."""
    return _in_units(ms, _SPANS, "ms")


def size(count: int) -> str:
    """Returns a number of bytes as text, in the largest unit that it fills, to a tenth."""
    return _in_units(count, _SIZES, "B")


def _in_units(value: int, units: Sequence[tuple[str, int]], smallest: str) -> str:
    for unit, amount in units:
        if value >= amount:
            return f"{value / amount:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value} {smallest}"


def ago(ms: int, now_ms: int) -> str:
    """Returns an instant as seen from now: `3 min ago`, `in 2 h`."""
    return f"{span(now_ms - ms)} ago" if ms <= now_ms else f"in {span(ms - now_ms)}"


def print_records(
    columns: Sequence[str],
    rows: Sequence[Row],
    output: str,
    now_ms: int,
    numbers: Collection[str] = (),
) -> None:
    """Prints rows in one of FORMATS, the instants of a table as seen from now. Units: ms.

    Input: `numbers`: columns that hold no instants, whatever their names are.
    """
    kinds = [(name, "" if name in numbers else name) for name in columns]
    if output == TABLE:
        print_rows(
            [heading(name) for name in columns],
            [[humanize(kind, row[name], now_ms) for name, kind in kinds] for row in rows],
        )
        return

    records = [{name: to_machine(kind, row[name]) for name, kind in kinds} for row in rows]

    if output == JSON:
        print_json(records)
    elif output == JSONL:
        for record in records:
            click.echo(_printable_json(json.dumps(record, ensure_ascii=False)))
    else:
        click.echo(csv_text(columns, records), nl=False)


def to_machine(name: str, value: Any) -> Any:
    """Returns a column's value for JSON and CSV: an instant as text."""
    return instant(value) if is_instant(name) and isinstance(value, int) else value


def is_instant(name: str) -> bool:
    """Returns whether a column holds instants."""
    return name.endswith("_at") or name == "since"


def humanize(name: str, value: Any, now_ms: int) -> Any:
    """Returns a column's value for a table: instants as seen from now, spans, sizes."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, int):
        return value
    if is_instant(name):
        return ago(value, now_ms)
    if not name.endswith(("_ms", "_bytes")):
        return value
    from txlake.protocol import FOREVER  # its package, the SDK, takes half a second to import

    if value == FOREVER:
        return "for ever"
    return span(value) if name.endswith("_ms") else size(value)


# A table shows spans and sizes for people: their unit is in the cells, not in the heading.
_UNITS: Final = {"_ms": "_time", "_bytes": "_size"}


def heading(name: str) -> str:
    """Returns the heading of a column for people: `keeps_time` above `7 d`, not `keeps_ms`."""
    for unit, kind in _UNITS.items():
        if name.endswith(unit):
            return name.removesuffix(unit) + kind
    return name


def csv_text(columns: Sequence[str], records: Sequence[Row]) -> str:
    """Returns records as CSV, its first line the columns' names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[_cell(record[name]) for name in columns] for record in records])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Returns a cell of CSV: no text is a formula, or longer than a line."""
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints rows under their headings; None as an empty cell."""
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]

    if sys.stdout is not None and sys.stdout.isatty():  # None: the caller has closed it
        from rich import box
        from rich.console import Console
        from rich.table import Column, Table
        from rich.text import Text

        columns = [Column(heading, overflow="fold") for heading in headings]
        table = Table(*columns, box=box.SIMPLE)
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
        click.echo(_printable_json(line))  # JSON's own line breaks; those in texts are \\n

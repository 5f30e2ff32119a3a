"""A message's body as text for a page: JSON as it was written, with line breaks; text; hex."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

JSON, TEXT, HEX = "json", "text", "hex"
FORMS: Final = (JSON, TEXT, HEX)
# A page with all its assets weighs less than 150 KB.
CHARACTERS_MAX: Final = 20_000
# A larger body is no JSON that somebody reads here, and parsing it would hold up the page.
_JSON_BYTES_MAX: Final = 1 << 20
_HEX_BYTES: Final = 16
_TAB: Final = "    "
# A string, a bracket or a comma, or a number or word; white space between them is left out.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


@dataclass(frozen=True)
class BodyText:
    """A body as lines of text: in which of FORMS, and whether its end is left out."""

    form: str
    lines: tuple[str, ...]
    is_cut: bool


def body_text(body: bytes, form: str | None = None) -> BodyText:
    """Returns a body in a form; without one as JSON if it is an object or a list, else as text.

    A body that is no JSON, or no text, is shown in the next form that it has.
    """
    looks_like_json = body.lstrip()[:1] in (b"{", b"[")
    if form == JSON or (form is None and looks_like_json):
        text = _json_text(body)
        if text is not None:
            return _cut(JSON, _json_lines(text))

    if form != HEX:
        text = _plain_text(body)
        if text is not None or form == TEXT:
            shown = body.decode("utf-8", "backslashreplace") if text is None else text
            return _cut(TEXT, iter(shown.replace("\t", _TAB).splitlines()))

    return _cut(HEX, _hex_lines(body))


def preview(body: bytes | None, maximum: int = 60) -> str:
    """Returns the begin of a body in one line."""
    if body is None:
        return ""
    text = body[: 4 * maximum].decode("utf-8", "backslashreplace")
    line = " ".join(text.split())
    return line if len(line) <= maximum else f"{line[: maximum - 1]}…"


def _json_text(body: bytes) -> str | None:
    """Returns a body's text if it is JSON."""
    if len(body) > _JSON_BYTES_MAX:
        return None
    try:
        text = body.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text


def _plain_text(body: bytes) -> str | None:
    """Returns a body's text if it is UTF-8 without control characters."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if re.search("[\x00-\x08\x0e-\x1f]", text) else text


def _json_lines(text: str) -> Iterator[str]:
    """Returns JSON with a line for each value: numbers and strings as they were written."""
    depth = 0
    line = ""

    for part in _TOKEN.findall(text):
        if part in "]}":
            depth -= 1
            if line.strip() in ("[", "{") or line.endswith(("[", "{")):
                line += part
                continue
            yield line
            line = "  " * min(depth, 40) + part
        elif part == ",":
            yield line + part
            line = "  " * min(depth, 40)
        elif part == ":":
            line += ": "
        else:
            if line.endswith(("[", "{")):
                yield line
                line = "  " * min(depth, 40)
            line += part
            depth += part in "[{"
    yield line


def _hex_lines(body: bytes) -> Iterator[str]:
    for start in range(0, len(body), _HEX_BYTES):
        part = body[start : start + _HEX_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{start:08x}  {part.hex(' '):<{3 * _HEX_BYTES}} {text}"


def _cut(form: str, lines: Iterator[str]) -> BodyText:
    """Returns as many characters as a page shows."""
    kept: list[str] = []
    remaining = CHARACTERS_MAX

    for line in lines:
        if len(line) >= remaining:
            kept.append(line[:remaining])
            return BodyText(form, tuple(kept), True)
        kept.append(line)
        remaining -= len(line) + 1
    return BodyText(form, tuple(kept), False)

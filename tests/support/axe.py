"""axe-core in a page of a real browser: what it finds, in a line each."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

from playwright.sync_api import Page

FOLDER = Path(__file__).parent / "axe_core"
SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
# Levels A and AA, and what axe-core calls good practice.
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# What a theme can change: the other rules look at the same elements, names and order.
_RULES_OF_COLOURS = ["color-contrast", "link-in-text-block"]
_RUN = """async only => {
  const told = await axe.run(document, { runOnly: only });
  return told.violations.flatMap(rule => rule.nodes.map(
    node => `${rule.id}: ${node.target.join(' ')}: ${node.failureSummary}`));
}"""


@cache
def axe_script() -> str:
    """Returns axe-core's text; a changed one is an error."""
    content = gzip.decompress((FOLDER / "axe.min.js.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest() == SHA256
    return content.decode()


def violations(page: Page, *, colours_alone: bool = False) -> list[str]:
    """Returns what axe-core finds wrong on a page, or in its colours alone."""
    only = {"type": "tag", "values": _RULES}
    if colours_alone:
        only = {"type": "rule", "values": _RULES_OF_COLOURS}

    page.evaluate(axe_script())
    found: list[str] = page.evaluate(_RUN, only)
    return found

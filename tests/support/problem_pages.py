"""What is made from the table of problems: alert rules and the tables of two pages.

`python -m tests.support.problem_pages` writes them; a test compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pipelines.health.problems import RULES, Rule

ROOT: Final = Path(__file__).parents[2]
_ALERTS_HEAD: Final = """\
# Prometheus alert rules for txlake's metrics (docs/metrics.md). Each names the problem as
# `txlake status` does, and the section of docs/operator.md that says what to do. Made from
# pipelines/health/problems.py.

groups:
  - name: txlake
    rules:
"""


def alert_name(rule: Rule) -> str:
    """Return the name of a problem's alert."""
    return "Txlake" + "".join(map(str.title, rule.name.split("_")))


def alerts(_: str = "") -> str:
    """Return conf/alerts.yml."""
    return _ALERTS_HEAD + "\n".join(map(_alert, RULES))


def _alert(rule: Rule) -> str:
    alert = rule.alert
    lines = [f"      - alert: {alert_name(rule)}", f"        expr: {alert.expression}"]
    if alert.lasts:
        lines.append(f"        for: {alert.lasts}")
    lines += [
        "        labels:",
        f"          problem: {rule.name}",
        f"          severity: {alert.severity}",
        "        annotations:",
        f"          summary: {json.dumps(alert.summary)}",
        f"          runbook: docs/operator.md#{rule.name}",
    ]
    return "\n".join(lines) + "\n"


def operator_page(page: str) -> str:
    """Return docs/operator.md with its table of problems. Input: the page as it is."""
    rows = [(f"[`{r.name}`](#{r.name})", r.condition, r.limit, r.command) for r in RULES]
    return _with_table(page, ("problem", "what is wrong", "limit", "what helps"), rows)


def metrics_page(page: str) -> str:
    """Return docs/metrics.md with its table of problems. Input: the page as it is."""
    rows = [
        (f"`{r.name}`", f"`{r.alert.expression}`", r.alert.lasts or "at once",
         f"`{alert_name(r)}`")
        for r in RULES
    ]  # fmt: skip
    return _with_table(page, ("problem", "when", "for", "alert"), rows)


def _with_table(page: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |\n" for row in (names, *cells)]
    table = lines[0] + "|---" * len(names) + "|\n" + "".join(lines[1:])

    found = re.findall(r"^\| problem \|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    assert len(found) == 1, f"{len(found)} tables of problems"
    return page.replace(found[0], table)


MADE: Final[dict[str, Callable[[str], str]]] = {
    "conf/alerts.yml": alerts,
    "docs/operator.md": operator_page,
    "docs/metrics.md": metrics_page,
}


if __name__ == "__main__":
    for name, make in MADE.items():
        path = ROOT / name
        path.write_text(make(path.read_text("utf-8")), "utf-8")

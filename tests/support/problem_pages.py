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
    page = _with_table(page, ("problem", "what is wrong", "limit", "what helps"), rows)
    tests = [(f"`{rule.name}`", f"`{CAUSED_BY[rule.name]}`") for rule in RULES]
    return _with_table(page, ("name", "caused by"), tests)


def metrics_page(page: str) -> str:
    """Return docs/metrics.md with its table of problems. Input: the page as it is."""
    rows = [
        (f"`{r.name}`", f"`{r.alert.expression}`", r.alert.lasts or "at once", f"`{alert_name(r)}`")
        for r in RULES
    ]
    return _with_table(page, ("problem", "when", "for", "alert"), rows)


# By problem: the test that brings a lake, a broker or a driver into that state, and reads in
# `txlake status` what it says then.
CAUSED_BY: Final = {
    "not_running": "test_status_tells_the_driver_the_lag_and_that_no_epoch_comes",
    "kafka_away": "test_status_of_a_young_lake_and_top_and_every_format",
    "no_epoch": "test_status_tells_the_driver_the_lag_and_that_no_epoch_comes",
    "lag": "test_status_tells_the_driver_the_lag_and_that_no_epoch_comes",
    "group_silent": "test_metrics_agree_with_the_tables_of_the_lake_and_are_true_from_the_start",
    "no_check_topic": "test_status_tells_the_driver_the_lag_and_that_no_epoch_comes",
    "given_up": "test_metrics_agree_with_the_tables_of_the_lake_and_are_true_from_the_start",
    "undeliverable": "test_metrics_agree_with_the_tables_of_the_lake_and_are_true_from_the_start",
    "pending_old": "test_status_tells_the_driver_the_lag_and_that_no_epoch_comes",
    "consumer_gone": "test_status_names_consumers_that_lag_or_are_gone",
    "consumer_lag": "test_status_names_consumers_that_lag_or_are_gone",
    "consumer_dead": "test_dead_messages_of_a_group_are_a_problem_until_they_are_resumed",
    "publisher_stopped": "test_status_names_each_problem_of_a_publisher",
    "publisher_gone": "test_status_names_each_problem_of_a_publisher",
    "publisher_lag": "test_status_names_each_problem_of_a_publisher",
    "publisher_unknown": "test_status_names_each_problem_of_a_publisher",
    "floor_near": "test_a_half_that_is_given_up_is_named_before_the_floor_passes_it",
    "lake_ahead": "test_a_lake_that_is_ahead_of_the_clock_is_named",
}


def _with_table(page: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |\n" for row in (names, *cells)]
    table = lines[0] + "|---" * len(names) + "|\n" + "".join(lines[1:])

    head = re.escape(f"| {names[0]} | {names[1]} |")
    found = re.findall(rf"^{head}.*\n(?:\|.*\n)+", page, re.MULTILINE)
    assert len(found) == 1, f"{len(found)} tables of {names}"
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

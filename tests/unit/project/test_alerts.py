"""Alert rules and the dashboard: they fire, name what exists, and say what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

from pipelines.console.urls import PAGES
from pipelines.health import problems
from pipelines.health.problems import page_of
from pipelines.metrics.catalog import METRICS
from pipelines.publish.progress import Stop
from pipelines.publish.status import PublisherStatus
from tests.support.history import SILENT, History
from tests.support.metrics_client import ReportedHistory, reporter_of
from tests.support.optional import require
from tests.support.problem_pages import CAUSED_BY, MADE, alert_name
from txlake.protocol import COMMIT, ROLLBACK, UNKNOWN

ROOT = Path(__file__).parents[3]
RULES = (ROOT / "conf" / "alerts.yml").read_text("utf-8")
TESTS = Path(__file__).parent / "alerts_test.yml"
OPERATOR = (ROOT / "docs" / "operator.md").read_text("utf-8")
DASHBOARD: dict[str, Any] = json.loads((ROOT / "conf" / "grafana.json").read_text("utf-8"))
PROBLEMS = [rule.name for rule in problems.RULES]  # as `txlake status` calls them
_NAME = r"\b(?:txlake|rocketmq|process)_\w+"


def scraped_names() -> set[str]:
    """Return the names of all samples of a job that has seen everything."""
    short = {"transaction_timeout_ms": 1, "check_interval_ms": 1}
    history = History(**short, check_max=2)
    history.epoch(0)
    for group in ("g", SILENT):
        history.half(group=group)
    history.half(real_queue_id=9)
    history.half()
    history.end(COMMIT, 0)
    history.end(COMMIT, 2)
    history.end(ROLLBACK, 3)
    history.end(COMMIT, 3)  # a conflict
    for _ in range(4):
        history.epoch(1)
        history.half()
        history.end(UNKNOWN, 4, cause="check_answer")
    told = ReportedHistory(reporter_of(transaction=short))
    told.reporter._probe.is_up, told.reporter._probe.topics = True, frozenset()
    told.reporter._consumers.unread = [
        {"consumer_group": "points", "is_gone": is_gone, "oldest_at": 0, "gone_at": 0}
        for is_gone in (False, True)
    ]
    told.reporter._consumers.refused = [
        {"consumer_group": "points", "dead": 1, "dead_oldest_at": 0, "retrying": 1, "due_at": 0}
    ]
    stop = Stop("why", "orders", 0, 0, 0)
    told.reporter._publishers.statuses = [PublisherStatus("main", "lake", stop=stop)]
    told.tell(history)
    return {name.partition("{")[0] for name in told.samples()}


def promtool(*arguments: object) -> None:
    """Run promtool, or skip; in CI it has to be there."""
    found = shutil.which("promtool")
    require(found is not None, "no promtool (Debian: prometheus): alert rules are not tried")
    command = [str(found), *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_fires_and_is_silent_again() -> None:
    promtool("check", "rules", ROOT / "conf" / "alerts.yml")
    promtool("test", "rules", TESTS)


def test_one_table_makes_all_that_names_a_problem() -> None:
    """Compares alert rules, pages and metrics with the table that status and console show."""
    for name, make in MADE.items():
        text = (ROOT / name).read_text("utf-8")
        assert text == make(text), f"{name}: python -m tests.support.problem_pages writes it"

    assert len(set(PROBLEMS)) == len(PROBLEMS)
    assert re.findall(r"^#### (\w+)$", OPERATOR, re.MULTILINE) == PROBLEMS
    pages, metrics = {where for where, _ in PAGES}, {metric.name for metric in METRICS}
    for rule in problems.RULES:
        assert page_of(rule.name) in pages, rule.name
        assert set(re.findall(_NAME, rule.alert.expression)) <= metrics, rule.name


def test_every_problem_is_caused_in_a_test_that_reads_its_sentence() -> None:
    files = [file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py")]
    bodies = {
        name: body
        for text in files
        for name, body in re.findall(r"^def (test_\w+)\((.*?)(?=^\S*def |\Z)", text, re.M | re.S)
    }
    assert list(CAUSED_BY) == PROBLEMS
    for problem, name in CAUSED_BY.items():
        assert '"status"' in bodies[name] and problem in bodies[name], (problem, name)


def test_every_alert_has_a_test_with_both_ends() -> None:
    tests = TESTS.read_text("utf-8")
    for alert in map(alert_name, problems.RULES):
        fires = re.findall(rf"alertname: {alert}$", tests, re.MULTILINE)
        silent = re.findall(rf"\{{eval_time: \w+, alertname: {alert}\}}", tests)
        assert (len(fires), len(silent)) == (1, 2), alert  # silent before and after


def test_alerts_and_dashboard_name_metrics_that_a_scrape_has() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    expressions += re.findall(r"expr: (.*)", RULES)
    expressions.append(DASHBOARD["templating"]["list"][1]["query"])
    named = {name for text in expressions for name in re.findall(_NAME, text)}
    scraped = scraped_names()
    assert sorted(named - scraped) == []
    unseen = {name for name in scraped if re.match("(txlake|rocketmq)", name)} - named
    # One of both is enough of a histogram; the number of an epoch is not a quantity.
    assert {re.sub("_(bucket|count|sum|created)$", "", name) for name in unseen} <= {
        "txlake_epoch_seconds",
        "rocketmq_transaction_finish_latency",
        "txlake_last_epoch",
    }


def test_the_dashboards_expressions_are_promql(tmp_path: Path) -> None:
    texts = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    rules = [
        {
            "record": f"dashboard_{number}",
            "expr": text.replace("$__rate_interval", "5m").replace("$instance", ".*"),
        }
        for number, text in enumerate(texts)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)


def test_the_dashboards_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({p["title"] for p in panels})
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_above

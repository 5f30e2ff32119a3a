"""`tx explain` in tests: the report of a target, and what it says."""

from __future__ import annotations

from pipelines.explain.fetch import find
from pipelines.explain.report import Report, reports
from pipelines.explain.show import to_json
from pipelines.explain.target import parse_target
from tests.support.in_memory_job import InMemoryJob


def report_of(job: InMemoryJob, target: str = "tx", now_ms: int | None = None) -> Report:
    """Explain a target of which there is one."""
    found = find(job.lake, parse_target(target))
    ((report,), _) = reports(found, job.at if now_ms is None else now_ms)
    assert to_json(report)["status"] == report.status
    return report


def codes(report: Report) -> list[str]:
    """Returns what a unit waits for."""
    return [wait.code for wait in report.waits]


def texts(report: Report, kind: str) -> list[str]:
    """Returns the lines of a kind in the timeline."""
    return [event.text for event in report.events if event.kind == kind]


def kinds(report: Report) -> list[str]:
    """Returns the kinds of all lines in the timeline."""
    return [event.kind for event in report.events]

"""`tx explain` of halves that are not ended: why not, and what time does next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.explain_reports import codes, report_of
from tests.support.in_memory_job import START_AT, InMemoryJob
from txlake.protocol import COMMIT, UNKNOWN


def waits(
    why: str,
    *given: Callable[[InMemoryJob], object],
    codes: str,
    says: str,
    until: int | None = None,
    **parameters: Any,
) -> Any:
    """One row of the table: steps of a job, the codes, a part of one of the sentences."""
    return pytest.param(parameters, given, codes.split(), says, until, id=why)


CASES = [
    waits(
        "a young half is immune",
        lambda job: job.half(immunity_ms=60_000),
        lambda job: job.run(),
        codes="no_end immune",
        says="immune until 2026-01-01T00:01:00.000Z; then check 1 of 2 is due",
        until=START_AT + 60_001,
    ),
    waits(
        "a check says which it is and when it is due",
        lambda job: job.half(),
        lambda job: job.run(),
        lambda job: job.run(7_000),
        codes="no_end check_due",
        says="check 2 of 2 due at 2026-01-01T00:00:38.000Z",
        until=START_AT + 38_000,
    ),
    waits(
        "the last check's interval runs before the discard",
        lambda job: job.half(),
        lambda job: [job.run(after_ms) for after_ms in (1_000, 7_000, 30_000)],
        codes="no_end last_check",
        says="asked 2 of 2 times; it is discarded (check_max) when known_at of queue 0 reaches",
        until=START_AT + 68_000,
    ),
    waits(
        "a half near its retention expires next",
        lambda job: job.half(),
        lambda job: job.run(7_000),
        half_retention_ms=20_000,
        codes="no_end expires",
        says="it is discarded (expired) when known_at of queue 0 reaches",
        until=START_AT + 20_001,
    ),
    waits(
        "a queue whose known_at is not known holds everything back",
        lambda job: job.half(),
        lambda job: job.run(60_000, known=False),
        codes="no_end not_known",
        says="known_at of queue 0 is not known yet",
    ),
    waits(
        "operations that are not landed yet are counted",
        lambda job: job.half(),
        lambda job: job.end(COMMIT, 77),
        lambda job: job.run(ops_ahead=5),
        codes="no_end ops_not_landed immune",
        says="landed up to offset 1 and Kafka had 6",
        until=START_AT + 6_001,
    ),
    waits(
        "a check that Kafka did not take does not count",
        lambda job: job.half(),
        lambda job: job.run(7_000, acknowledged=False),
        codes="no_end not_acknowledged check_due",
        says="check 1 of 2 due",
        until=START_AT + 37_000,
    ),
    waits(
        "the producer answered that it does not know",
        lambda job: job.end(UNKNOWN, job.half()),
        lambda job: job.run(),
        codes="answered_unknown immune",
        says="the producer's last answer was UNKNOWN",
        until=START_AT + 6_001,
    ),
    waits(
        "every operation is without effect",
        lambda job: job.end(COMMIT, job.half(), group="other"),
        lambda job: job.run(),
        codes="only_conflicts immune",
        says="without effect: wrong_producer_group",
        until=START_AT + 6_001,
    ),
    waits(
        "a check beyond the rate stays due",
        lambda job: job.half("first"),
        lambda job: job.half(),
        lambda job: job.run(7_000),
        check_rate_max=1,
        codes="no_end immune",
        says="has passed that: the job does it in its next epoch, at most check_rate_max = 1 check",
        until=START_AT + 6_001,
    ),
    waits(
        "an instant that no date says",
        lambda job: job.half(),
        lambda job: job.run(7_000),
        transaction_timeout_ms=10**15,
        half_retention_ms=10**15,
        codes="no_end expires",
        says="it is discarded (expired) when known_at of queue 0 reaches 9999-12-31T23:59:59.999Z",
        until=START_AT + 10**15 + 1,
    ),
]


@pytest.mark.parametrize(("parameters", "given", "expected", "says", "until"), CASES)
def test_a_half_that_waits_says_why(
    tmp_path: Path,
    parameters: dict[str, Any],
    given: tuple[Callable[[InMemoryJob], object], ...],
    expected: list[str],
    says: str,
    until: int | None,
) -> None:
    job = InMemoryJob(tmp_path / "lake", **{"check_max": 2, **parameters})
    for step in given:
        step(job)
    report = report_of(job)
    assert codes(report) == expected
    assert any(says in str(wait) for wait in report.waits)
    assert report.waits[-1].until == until


def test_a_job_that_is_silent_is_named(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake", check_max=2)
    job.half()
    job.run()
    assert "is `txlake run` running?" not in str(report_of(job).waits[-1])
    report = report_of(job, now_ms=job.at + 3_600_000)
    assert "the newest epoch, 1, was 1 h ago: is `txlake run` running?" in str(report.waits[-1])

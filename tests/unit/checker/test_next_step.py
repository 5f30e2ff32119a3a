"""`next_step` says when a rule of time will hold, to the ms."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checker.frames import HALVES, QUEUES, Parameters
from checker.rules.timing import NextStep, apply_time, next_step

STORED_AT = 1_000_000
NO_WINS = pa.schema([("queue_id", pa.int32()), ("unit_offset", pa.int64())]).empty_table()


def rule_at(known_at: int, half: dict[str, Any], parameters: Parameters) -> str | None:
    """Ask the job's own rules what happens when C has reached an instant."""
    row = {"queue_id": 0, "queue_offset": 0, "unit_offset": 0, "arm": 0, **half}
    halves = pa.Table.from_pylist([{n: row.get(n) for n in HALVES.names}], schema=HALVES)
    queue = {"queue_id": 0, "known_at": known_at, "halves_known_at": known_at, "half_end": 1}
    queues = pa.Table.from_pylist([queue], schema=QUEUES)
    rules: list[str] = apply_time(halves, NO_WINS, queues, parameters)["rule"].to_pylist()
    return rules[0] if rules else None


def step_of(half: dict[str, Any], parameters: Parameters) -> NextStep:
    absent: dict[str, Any] = dict.fromkeys(HALVES.names) | {"unacknowledged": 0}
    return next_step(absent | half, parameters)


# A slow machine says nothing of the rules.
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    immunity_ms=st.one_of(st.none(), st.integers(0, 20)),
    check_times=st.integers(0, 3),
    checked_after_ms=st.one_of(st.none(), st.integers(0, 20)),
    check_max=st.integers(0, 3),
    half_retention_ms=st.integers(1, 30),
    check_interval_ms=st.integers(1, 10),
    unacknowledged=st.integers(0, 4),
)
def test_the_next_step_is_the_first_that_the_rules_take(
    immunity_ms: int | None,
    check_times: int,
    checked_after_ms: int | None,
    check_max: int,
    half_retention_ms: int,
    check_interval_ms: int,
    unacknowledged: int,
) -> None:
    parameters = Parameters(
        transaction_timeout_ms=6,
        check_max=check_max,
        half_retention_ms=half_retention_ms,
        check_interval_ms=check_interval_ms,
    )
    half = {
        "age_from_at": STORED_AT,
        "immunity_ms": immunity_ms,
        "check_times": check_times,
        "unacknowledged": unacknowledged,
        "checked_at": None if checked_after_ms is None else STORED_AT + checked_after_ms,
    }
    step = step_of(half, parameters)
    assert rule_at(step.reached_at, half, parameters) == step.rule
    assert rule_at(step.reached_at - 1, half, parameters) is None


@pytest.mark.parametrize(
    ("half", "parameters", "expected"),
    [
        pytest.param(
            {"check_times": 0}, {}, NextStep(5, "due", STORED_AT + 6_001),
            id="line 5: asked when the timeout is exceeded",
        ),
        pytest.param(
            {"check_times": 0, "immunity_ms": 0}, {}, NextStep(5, "due", STORED_AT + 1),
            id="line 5: asked when its own immunity is exceeded",
        ),
        pytest.param(
            {"check_times": 1, "checked_at": STORED_AT + 7_000}, {},
            NextStep(6, "due", STORED_AT + 37_000),
            id="line 6: asked again when the interval is reached",
        ),
        pytest.param(
            {"checked_at": STORED_AT, "unacknowledged": 1}, {},
            NextStep(6, "due", STORED_AT + 30_000),
            id="line 6: one attempt that was not acknowledged leaves the interval",
        ),
        pytest.param(
            {"checked_at": STORED_AT, "unacknowledged": 2}, {},
            NextStep(6, "due", STORED_AT + 60_000),
            id="line 6: the second in a row doubles it",
        ),
        pytest.param(
            {"checked_at": STORED_AT, "unacknowledged": 7}, {},
            NextStep(6, "due", STORED_AT + 1_920_000),
            id="line 6: the seventh in a row makes it 64 times as long",
        ),
        pytest.param(
            {"checked_at": STORED_AT, "unacknowledged": 8}, {},
            NextStep(6, "due", STORED_AT + 3_600_000),
            id="line 6: it is never longer than an hour",
        ),
        pytest.param(
            {"checked_at": STORED_AT, "unacknowledged": 2_000_000_000}, {"check_interval_ms": 1},
            NextStep(6, "due", STORED_AT + 3_600_000),
            id="line 6: as many attempts as a number holds",
        ),
        pytest.param(
            {"checked_at": STORED_AT, "unacknowledged": 8}, {"check_interval_ms": 86_400_000},
            NextStep(6, "due", STORED_AT + 86_400_000),
            id="line 6: an interval longer than an hour stays as it is",
        ),
        pytest.param(
            {"check_times": 0}, {"check_max": 0}, NextStep(4, "check_max", STORED_AT + 6_001),
            id="line 4: given up without a check, when the timeout is exceeded",
        ),
        pytest.param(
            {"check_times": 15, "checked_at": STORED_AT + 7_000}, {},
            NextStep(4, "check_max", STORED_AT + 37_000),
            id="line 4: given up when the interval of the last check is reached",
        ),
        pytest.param(
            {"check_times": 0}, {"half_retention_ms": 6_000},
            NextStep(3, "expired", STORED_AT + 6_001),
            id="line 3: expired at the instant at which it would be asked",
        ),
    ],
)  # fmt: skip
def test_each_line_is_named(
    half: dict[str, Any], parameters: dict[str, Any], expected: NextStep
) -> None:
    values = {"age_from_at": STORED_AT, "check_times": 0, **half}
    assert step_of(values, Parameters(**parameters)) == expected

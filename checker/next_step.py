"""What time will do next to a half that nobody ends, and when.

The rules are those of `checker.timing`; this says when the first of them will hold, for people.
Source: PROTOCOL.md "What happens to a half at an epoch", lines 3 to 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from checker.frames import Parameters

EXPIRED: Final = "expired"
CHECK_MAX: Final = "check_max"
DUE: Final = "due"


@dataclass(frozen=True)
class NextStep:
    """The rule that holds first: `line` of PROTOCOL.md's table, its `rule` as in `timing`.

    `reached_at`: the first C(q), in ms, at which it holds.
    """

    line: int
    rule: str
    reached_at: int


def next_step(
    stored_at: int,
    immunity_ms: int | None,
    check_times: int,
    checked_at: int | None,
    parameters: Parameters,
) -> NextStep:
    """Say what happens next to a pending half if no operation ends it.

    Input: s, immunity, n and c of its unit's first half. Units: ms.
    """
    expired_at = stored_at + parameters.half_retention_ms + 1
    if checked_at is None:
        immunity = parameters.transaction_timeout_ms if immunity_ms is None else immunity_ms
        time_at = stored_at + immunity + 1
    else:
        time_at = checked_at + parameters.check_interval_ms
    if expired_at <= time_at:
        return NextStep(3, EXPIRED, expired_at)
    if check_times >= parameters.check_max:
        return NextStep(4, CHECK_MAX, time_at)
    return NextStep(5 if checked_at is None else 6, DUE, time_at)

"""What happens to a half at an epoch: the protocol's table, line by line, equality on both sides.

The transaction timeout is 6 s, the check interval 30 s and retention 72 h, where a case does not
say otherwise. Cases named D.. run with real Kafka, too (tests/kafka/test_scenarios_real.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.cases import Result, case, table
from tests.support.steps import (
    Step,
    commit,
    half,
    known,
    later,
    member,
    parameters,
    resume,
    rollback,
    unknown,
)

INTERVAL_MS = 30_000
RETENTION_MS = 259_200_000
DUE_MS = 6_001  # the least age at which a half is asked about
LINES_1_AND_2 = [
    case(
        given=[half(age_ms=10_000)] * 4 + [commit(0), rollback(1), commit(2)],
        expected={0: "COMMITTED", 1: "ROLLED_BACK", 2: "COMMITTED", 3: "CHECK 1"},
        why="D01: committed, rolled back and unanswered side by side",
    ),
    case(
        given=[half(age_ms=2_000), half(age_ms=20_000), commit(1)],
        expected={0: "WAITS", 1: "COMMITTED"},
        why="D02: a young half in front holds nobody up",
    ),
    case(
        given=[parameters(check_max=1), half(age_ms=DUE_MS), later(INTERVAL_MS), commit(0)],
        expected={0: "COMMITTED"},
        why="D09: an answer to the last check counts, even when its interval is over",
    ),
    case(
        given=[half(delay_level=3), commit(0)],
        expected={0: "COMMITTED, delayed"},
        why="D27: a committed half that carries a delay is not delivered yet",
    ),
    case(
        given=[half(age_ms=10_000)] * 41 + [commit(n) for n in range(1, 41)] + [commit(0)],
        expected=dict.fromkeys(range(41), "COMMITTED"),
        why="D19: all landed operations count: more than 32, the needed one last",
    ),
    case(
        given=[
            parameters(check_max=1), half(age_ms=DUE_MS), later(60_000), *[half()] * 40,
            *[commit(n) for n in range(1, 41)], rollback(0),
        ],
        expected={0: "ROLLED_BACK", **dict.fromkeys(range(1, 41), "COMMITTED")},
        why="D20: an ended half is not discarded because its operation is far on",
    ),
]  # fmt: skip
LINE_3 = [
    case(
        given=[half(age_ms=RETENTION_MS), half(age_ms=RETENTION_MS + 1),
               half(age_ms=RETENTION_MS + 1), commit(2)],
        expected={0: "CHECK 1", 1: "DISCARDED expired", 2: "COMMITTED"},
        why="D11: expired when retention is exceeded, not when it is reached, unless it was ended",
    ),
    case(
        given=[parameters(check_max=1, half_retention_ms=36_001), half(age_ms=DUE_MS),
               later(INTERVAL_MS)],
        expected={0: "DISCARDED check_max"},
        why="retention is reached but not exceeded: the count of checks decides",
    ),
    case(
        given=[parameters(check_max=1, half_retention_ms=36_000), half(age_ms=DUE_MS),
               later(INTERVAL_MS)],
        expected={0: "DISCARDED expired"},
        why="line 3 comes before line 4: a half that is both is expired",
    ),
    case(
        given=[parameters(half_retention_ms=20_000), half(age_ms=DUE_MS), later(14_000)],
        expected={0: "DISCARDED expired"},
        why="a half expires while the interval of its last check still runs",
    ),
    case(
        given=[parameters(half_retention_ms=20_000), half(age_ms=20_001, immunity_ms=900_000)],
        expected={0: "DISCARDED expired"},
        why="a half expires though its immunity is not over",
    ),
]  # fmt: skip
LINE_4 = [
    case(
        given=[parameters(check_max=1), half(age_ms=DUE_MS), later(INTERVAL_MS - 1)],
        expected={0: "WAITS"},
        why="D08: the last check keeps its whole interval before the discard",
    ),
    case(
        given=[parameters(check_max=1), half(age_ms=DUE_MS), later(INTERVAL_MS)],
        expected={0: "DISCARDED check_max"},
        why="D08: given up when the interval of the last check is reached",
    ),
    case(
        given=[parameters(check_max=2), half(age_ms=DUE_MS), later(INTERVAL_MS)],
        expected={0: "CHECK 2"},
        why="D08: one check below check_max: it is asked again",
    ),
    case(
        given=[parameters(check_max=0), half(age_ms=6_000), half(age_ms=6_001)],
        expected={0: "WAITS", 1: "DISCARDED check_max"},
        why="D10: check_max 0: never asked, discarded once immunity is over",
    ),
    case(
        given=[parameters(check_max=2), half(age_ms=DUE_MS), later(INTERVAL_MS), later(INTERVAL_MS),
               later(INTERVAL_MS)],
        expected={0: "DISCARDED check_max"},
        why="asked check_max times and discarded once: later epochs add nothing",
    ),
    case(
        given=[half(age_ms=DUE_MS), later(INTERVAL_MS, check_max=1)],
        expected={0: "DISCARDED check_max"},
        why="a restart with a smaller check_max counts the checks made before",
    ),
]  # fmt: skip
LINE_5 = [
    case(
        given=[half(age_ms=6_000), half(age_ms=6_001)],
        expected={0: "WAITS", 1: "CHECK 1"},
        why="D03: immunity is over when it is exceeded: exactly 6 s is still immune",
    ),
    case(
        given=[half(age_ms=60_000, immunity_ms=60_000), half(age_ms=60_001, immunity_ms=60_000)],
        expected={0: "WAITS", 1: "CHECK 1"},
        why="D04: a half's own immunity, both sides",
    ),
    case(
        given=[half(age_ms=1_001, immunity_ms=1_000), half(age_ms=1_000, immunity_ms=1_000)],
        expected={0: "CHECK 1", 1: "WAITS"},
        why="D05: immunity below the timeout: there is no lower bound",
    ),
    case(
        given=[half(age_ms=0, immunity_ms=0), half(age_ms=1, immunity_ms=0)],
        expected={0: "WAITS", 1: "CHECK 1"},
        why="immunity 0 is over after 1 ms",
    ),
    case(
        given=[*[half(age_ms=6_001, immunity=text) for text in ("abc", "-1", "100.5", "")],
               half(age_ms=6_000, immunity="abc")],
        expected={**dict.fromkeys(range(4), "CHECK 1"), 4: "WAITS"},
        why="D06: unreadable immunity means the timeout",
    ),
    case(
        given=[half(age_ms=-5_000), half(age_ms=-5_000, immunity_ms=60_000)],
        expected={0: "WAITS", 1: "WAITS"},
        why="D22: stored in the future, the broker's clock ahead of epoch_at: waits",
    ),
]  # fmt: skip
LINE_6 = [
    case(
        given=[parameters(check_max=2), half(age_ms=DUE_MS), later(INTERVAL_MS - 1)],
        expected={0: "WAITS"},
        why="D07: 1 ms before the interval is over: waits",
    ),
    case(
        given=[parameters(check_max=2), half(age_ms=DUE_MS), later(INTERVAL_MS)],
        expected={0: "CHECK 2"},
        why="D07: the interval is reached: due",
    ),
    case(
        given=[parameters(check_max=2), half(group="nobody", age_ms=DUE_MS),
               later(INTERVAL_MS - 1)],
        expected={0: "WAITS"},
        why="D30: an attempt that Kafka did not acknowledge costs time",
    ),
    case(
        given=[parameters(check_max=2), half(group="nobody", age_ms=DUE_MS), later(INTERVAL_MS)],
        expected={0: "CHECK 1"},
        why="D30: an attempt that Kafka did not acknowledge costs no check",
    ),
    case(
        given=[half(group="nobody", age_ms=DUE_MS), later(INTERVAL_MS), later(2 * INTERVAL_MS - 1)],
        expected={0: "WAITS"},
        why="two attempts in a row that Kafka did not acknowledge: the interval is doubled",
    ),
    case(
        given=[half(group="nobody", age_ms=DUE_MS), later(INTERVAL_MS), later(2 * INTERVAL_MS)],
        expected={0: "CHECK 1"},
        why="the doubled interval is reached",
    ),
    case(
        given=[parameters(half_retention_ms=20 * INTERVAL_MS),
               half(group="nobody", age_ms=DUE_MS), later(INTERVAL_MS), later(2 * INTERVAL_MS),
               later(20 * INTERVAL_MS), later(), resume("half:0-0"), later(DUE_MS),
               later(INTERVAL_MS)],
        expected={0: "CHECK 1"},
        why="a half that is pending again is asked as if it were new",
    ),
    case(
        given=[half(group="late", age_ms=DUE_MS), later(0)],
        expected={0: "CHECK 1"},
        why="what could not be handed to Kafka is no attempt and stays due",
    ),
    case(
        given=[half(age_ms=DUE_MS), unknown(0), later(INTERVAL_MS)],
        expected={0: "CHECK 2"},
        why="UNKNOWN ends nothing: the half is asked about again",
    ),
]  # fmt: skip
LINE_7 = [
    case(
        given=[parameters(check_max=3), half(age_ms=599_000, immunity_ms=600_000),
               half(age_ms=600_001, immunity_ms=600_000)],
        expected={0: "WAITS", 1: "CHECK 1"},
        why="D21: long immunity costs no checks",
    ),
]  # fmt: skip
TIME_IS_C = [
    case(
        given=[known(8_000), half(age_ms=10_000), half(age_ms=15_000)],
        expected={0: "WAITS", 1: "CHECK 1"},
        why="D28: known_at is 8 s behind epoch_at: a queue's time waits for its operations",
    ),
    case(
        given=[known(None), half(age_ms=RETENTION_MS + 1), half(age_ms=10_000)],
        expected={0: "WAITS", 1: "WAITS"},
        why="while known_at is null nothing is asked and nothing is given up",
    ),
    case(
        given=[half(age_ms=DUE_MS), later(INTERVAL_MS + 5_000), known(5_001)],
        expected={0: "WAITS"},
        why="the interval is over by epoch_at and not by known_at: waits",
    ),
    case(
        given=[half(age_ms=DUE_MS), later(INTERVAL_MS + 5_000), known(5_000)],
        expected={0: "CHECK 2"},
        why="the interval is over by known_at, too: due",
    ),
    case(
        given=[known(1), half(age_ms=RETENTION_MS + 1)],
        expected={0: "CHECK 1"},
        why="retention is exceeded by epoch_at and not by known_at: not expired",
    ),
]
AFTER_A_DISCARD = [
    case(
        given=[parameters(check_max=0), half(age_ms=DUE_MS), later(), resume("half:0-0"),
               later(6_000)],
        expected={0: "WAITS"},
        why="a re-armed half is as if stored at epoch_at: still immune after 6 s",
    ),
    case(
        given=[parameters(check_max=0), half(age_ms=DUE_MS), later(), resume("half:0-0"),
               later(6_001)],
        expected={0: "DISCARDED check_max"},
        why="a re-armed half is given up again when its new immunity is over",
    ),
    case(
        given=[parameters(check_max=1), half(age_ms=DUE_MS), later(INTERVAL_MS), later(),
               resume("half:0-0"), later(6_001)],
        expected={0: "CHECK 1"},
        why="a re-armed half has no attempts: its first check again is number 1",
    ),
]  # fmt: skip
# The broker stored the half long before `epoch_at`: the lake is ahead, after a step of the clocks.
AGES = [
    case(
        given=[later(), half(age_ms=RETENTION_MS + 1), later(5_000)],
        expected={0: "WAITS"},
        why="the age counts from known_at of the epoch before: exactly 6 s is still immune",
    ),
    case(
        given=[later(), half(age_ms=RETENTION_MS + 1), later(5_001)],
        expected={0: "CHECK 1"},
        why="the age counts from known_at of the epoch before: asked when immunity is exceeded",
    ),
    case(
        given=[parameters(half_retention_ms=20_000, transaction_timeout_ms=20_000), later(),
               half(age_ms=RETENTION_MS), later(19_000)],
        expected={0: "WAITS"},
        why="retention counts from known_at of the epoch before: reached, not exceeded",
    ),
    case(
        given=[parameters(half_retention_ms=20_000, transaction_timeout_ms=20_000), later(),
               half(age_ms=RETENTION_MS), later(19_001)],
        expected={0: "DISCARDED expired"},
        why="retention counts from known_at of the epoch before: exceeded",
    ),
    case(
        given=[parameters(check_max=1), later(), half(age_ms=RETENTION_MS + 1), later(5_001),
               later(INTERVAL_MS - 1)],
        expected={0: "WAITS"},
        why="a half that seemed old when it landed has its checks and their intervals",
    ),
    case(
        given=[known(500), later(), half(age_ms=7_501), half(age_ms=1_400)],
        expected={0: "WAITS", 1: "WAITS"},
        why="of stored_at and known_at before the later one counts: known_at, and then stored_at",
    ),
    case(
        given=[known(10_000), later(), half(age_ms=6_001), half(age_ms=6_000)],
        expected={0: "CHECK 1", 1: "WAITS"},
        why="known_at of the epoch before is before stored_at: stored_at counts",
    ),
    case(
        given=[known(None), later(), half(age_ms=RETENTION_MS + 1)],
        expected={0: "DISCARDED expired"},
        why="known_at was not known in the epoch before: stored_at counts",
    ),
    case(
        given=[parameters(ages_from_known_at=False), later(), half(age_ms=RETENTION_MS + 1)],
        expected={0: "DISCARDED expired"},
        why="a plan before rule version 5 lacks the parameter: stored_at counts",
    ),
    case(
        given=[member(0, 2, age_ms=6_000), later(), member(1, 2, age_ms=RETENTION_MS + 1)],
        expected={0: "CHECK 1", 1: "WITH 0"},
        why="a set has the age of its first landed half",
    ),
    case(
        given=[parameters(check_max=0), half(age_ms=DUE_MS), later(), resume("half:0-0"),
               later(), later(5_001)],
        expected={0: "DISCARDED check_max"},
        why="the age of a re-armed half counts from epoch_at of the re-arm",
    ),
]  # fmt: skip
CASES = [
    *LINES_1_AND_2,
    *LINE_3,
    *LINE_4,
    *LINE_5,
    *LINE_6,
    *LINE_7,
    *TIME_IS_C,
    *AFTER_A_DISCARD,
    *AGES,
]


@table(CASES)
def test_a_half_at_an_epoch(given: Sequence[Step], expected: dict[Any, str]) -> None:
    assert Result(given).ends() == expected


def test_checks_carry_the_arm_and_a_second_discard_makes_no_second_copy() -> None:
    told = Result(
        [
            parameters(check_max=1),
            half(age_ms=DUE_MS),
            later(INTERVAL_MS),
            later(),
            resume("half:0-0"),
            later(6_001),
            later(INTERVAL_MS),
        ]
    )
    assert [(row["arm"], row["check_times"]) for row in told.rows("due")] == [(0, 1), (1, 1)]
    assert [(row["arm"], row["cause"]) for row in told.rows("outcomes")] == [
        (0, "check_max"),
        (1, "check_max"),
    ]
    assert told.queues() == {"TRANS_CHECK_MAX_TIME_TOPIC 0": ["half 0-0: check_max"]}

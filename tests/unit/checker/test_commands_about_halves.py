"""RESUME and RESEND of halves: which are armed again, and as what they wait then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checker.frames_ops import sql
from tests.support.cases import Result, case, table
from tests.support.steps import (
    T_MS,
    Step,
    commit,
    half,
    later,
    member,
    parameters,
    resend,
    resume,
)

GIVEN_UP = [parameters(check_max=0), half(age_ms=6_001), later()]

RESUME_HALF = [
    case(
        given=[*GIVEN_UP, resume("half:0-0")],
        expected=["rearmed"],
        why="the half is pending again",
    ),
    case(
        given=[half(), later(), resume("half:0-0")],
        expected=["not_discarded"],
        why="a half that waits is not discarded",
    ),
    case(
        given=[half(), commit(0), later(), resume("half:0-0")],
        expected=["not_discarded"],
        why="a half that was committed is not discarded",
    ),
    case(
        given=[*GIVEN_UP, commit(0), later(), resume("half:0-0")],
        expected=["not_discarded"],
        why="a discarded half that was ended late is discarded no more",
    ),
    case(
        given=[*GIVEN_UP, resume("half:0-1"), resume("half:1-0")],
        expected=["not_discarded", "not_discarded"],
        why="no half stands there, nor in the other queue",
    ),
    case(
        given=[parameters(check_max=0), half(age_ms=6_001), resume("half:0-0")],
        expected=["not_discarded"],
        why="commands come before time: the half is discarded in this epoch, after the command",
    ),
]

RESENDS = [
    case(
        given=[half(), later(), resend("half:0-0")],
        expected=["resent"],
        why="a half that waits is asked about anew",
    ),
    case(
        given=[half(), later(), resend("half:0-0"), resend("half:0-0")],
        expected=["resent", "resent"],
        why="it waits after the first one, too",
    ),
    case(
        given=[*GIVEN_UP, resend("half:0-0")],
        expected=["not_pending"],
        why="a discarded half is not asked about: RESUME makes it pending",
    ),
    case(
        given=[*GIVEN_UP, resume("half:0-0"), resend("half:0-0")],
        expected=["rearmed", "resent"],
        why="the command before it in the epoch made it pending",
    ),
    case(
        given=[half(), commit(0), later(), resend("half:0-0")],
        expected=["not_pending"],
        why="a half that was committed waits for nothing",
    ),
    case(
        given=[half(), resend("half:0-0"), resend("half:1-0")],
        expected=["not_pending", "not_pending"],
        why="commands come before what lands with them; no half stands in the other queue",
    ),
    case(
        given=[half(), later(), resend("schedule:0-0"), resend("undeliverable:0")],
        expected=["bad_target", "bad_target"],
        why="only halves are asked about",
    ),
]  # fmt: skip


@table([*RESUME_HALF, *RESENDS])
def test_a_command_about_a_half_and_its_result(given: Sequence[Step], expected: list[str]) -> None:
    assert Result(given).results() == expected


def test_a_pending_half_is_asked_about_anew_with_its_whole_set() -> None:
    told = Result(
        [
            member(0, 2, age_ms=6_001),
            later(),
            member(1, 2),
            later(0),
            resend("half:0-1"),
            later(0),
        ]
    )
    assert told.halves() == {0: "WAITS", 1: "WAITS"}
    (unit,) = told.state["units"]
    assert unit[4:7] == (0, 0, None), "without attempts"
    assert {member[3] for member in told.state["members"]} == {1}, "arm + 1"


def test_a_half_is_rearmed_with_its_whole_set() -> None:
    told = Result(
        [
            parameters(check_max=0),
            member(0, 3, age_ms=6_001),
            member(1, 3),
            later(),
            resume("half:0-1"),
            later(0),
        ]
    )
    assert told.halves() == {0: "WAITS", 1: "WAITS"}
    (unit,) = told.state["units"]
    assert unit[2:4] == (T_MS + 1_000, T_MS + 1_000), "as if stored at epoch_at"
    assert unit[4:7] == (0, 0, None), "without attempts"
    assert {member[3] for member in told.state["members"]} == {1}, "arm + 1"


def test_many_commands_search_and_write_the_halves_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bulk command has one record a half; each alone would read and write all halves."""
    written: list[int] = []

    def selecting(schema: Any, text: str, *values: Any, **frames: Any) -> Any:
        written.append(frames["halves"].num_rows)
        return sql.select(schema, text, *values, **frames)

    monkeypatch.setattr("checker.rules.commands.select", selecting)
    told = Result(
        [
            *(half() for _ in range(20)),
            later(),
            *(resend(f"half:0-{at}") for at in range(10)),
            *2 * [resend("half:0-3")],
        ]
    )
    assert told.results() == ["resent"] * 12
    arms = {offset: arm for _, offset, _, arm, _ in told.state["members"]}
    assert arms == dict.fromkeys(range(10, 20), 0) | dict.fromkeys(range(10), 1) | {3: 3}
    assert written == [20]


def test_an_answer_to_a_check_of_an_earlier_arm_ends_a_half_that_is_asked_about_anew() -> None:
    told = Result(
        [
            half(age_ms=6_001),
            later(),
            resend("half:0-0"),
            later(0),
            commit(0, from_check=True, check_id="0-0-0-1"),
            later(),
        ]
    )
    assert told.ends() == {0: "COMMITTED"}
    assert [row["arm"] for row in told.rows("outcomes")] == [1]

"""An operation is decided once: nothing that comes later makes a conflict count again."""

from __future__ import annotations

from typing import Any

from tests.comparison import first_difference
from tests.lake_rows import LakeRows, decided_rows
from tests.sound_lake import History
from txlake.protocol import COMMIT, RESUME, ROLLBACK

Row = dict[str, Any]
REJECT = {"late_end_policy": "reject"}


def _refused() -> History:
    """A set of three that was discarded with two members, and a COMMIT of all three refused."""
    history = History()
    history.epoch(0, **REJECT)
    history.half("set", tran_size=3, tran_seq=0)
    history.half("set", tran_size=3, tran_seq=1)
    for _ in range(3):  # two checks, then given up
        history.epoch(2, **REJECT)
    history.epoch(1, **REJECT)
    history.end(COMMIT, 0, 1, 2)
    return history


def _told(history: History) -> LakeRows:
    world = history.world()
    assert first_difference({**world, "seed": 0}) is None
    return decided_rows(world)


def _ends(rows: LakeRows) -> list[tuple[int, str, int | None]]:
    return [
        (row["queue_offset"], row["outcome"], row["op_queue_offset"])
        for row in rows.tables["outcomes"]
        if row["outcome"] != "DISCARDED"
    ]


def test_a_refused_commit_stays_refused_when_its_last_member_lands_after_a_resume() -> None:
    history = _refused()
    history.epoch(1, **REJECT)
    history.command(RESUME, "half:0-0")
    history.half("set", tran_size=3, tran_seq=2)
    history.epoch(1, **REJECT)
    rows = _told(history)
    assert _ends(rows) == []
    assert [row["half_queue_offset"] for row in rows.tables["conflicts"]] == [0]
    assert rows.states[7].waiting.num_rows == 0  # the last position is absorbed


def test_what_waits_of_a_refused_operation_says_for_which_set_it_is_refused() -> None:
    (naming,) = _told(_refused()).states[5].waiting.to_pylist()
    assert (naming["position"], naming["half_queue_offset"]) == (2, 2)
    assert naming["refused_units"] == [0]


def test_a_new_commit_ends_what_an_older_one_was_refused_for() -> None:
    history = _refused()
    history.epoch(1, **REJECT)
    history.command(RESUME, "half:0-0")
    history.half("set", tran_size=3, tran_seq=2)
    history.end(COMMIT, 2)
    assert _ends(_told(history)) == [(n, "COMMITTED", 1) for n in range(3)]


def test_a_rollback_does_not_wait_behind_an_operation_that_is_refused() -> None:
    history = _refused()
    history.epoch(1, **REJECT)
    history.command(RESUME, "half:0-0")
    history.end(ROLLBACK, 1)
    assert _ends(_told(history)) == [(n, "ROLLED_BACK", 1) for n in range(2)]


def test_a_refused_operation_still_ends_a_half_of_its_own() -> None:
    history = _refused()
    history.epoch(1, **REJECT)
    history.half("alone")
    assert _ends(_told(history)) == [(2, "COMMITTED", 0)]

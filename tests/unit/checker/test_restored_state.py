"""A restart knows what the job knew: the recorded changes give the state in memory, bit for bit.

TXLAKE_RESTORED_WORLDS says how many worlds of random histories are compared, TXLAKE_HISTORIES_SEED
moves the seeds.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from checker.frames import STATE_KEYS, State
from checker.frames_ops import active
from pipelines.epoch.recorded_state import FRAMES, restore
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.schemas import LEFT, PUT, SNAPSHOT, STATE_TABLES, TABLES
from storage.verify import run
from storage.verify.run import verify
from tests.support.decided_rows import decided_rows
from tests.support.histories import random_world
from tests.support.lake_rows import LakeRows

FIRST_SEED = int(os.environ.get("TXLAKE_HISTORIES_SEED", "0"))
WORLDS = int(os.environ.get("TXLAKE_RESTORED_WORLDS", "6"))
QUEUES = 60  # each half queue of a world has a history of its own
NO_SNAPSHOT = 10_000
INTERVALS = (1, 2, 7, NO_SNAPSHOT)
# Of each table of the state those by which it is judged.
STATE_INVARIANTS = {
    "pending": {"halves_are_pending_or_ended", "pending_is_state"},
    "waiting": {"waiting_is_state"},
    "delayed": {"delayed_is_state"},
}
Key = tuple[str, ...]


def plain(state: State) -> dict[str, pa.Table]:
    """Return each frame of a state in one order and one chunk, so that equal ones are equal."""
    keys: dict[str, Key] = {
        **STATE_KEYS,
        "topics": ("table_id",),
        "next_offsets": ("topic", "queue_id"),
    }
    return {
        name: getattr(state, name).sort_by([(c, "ascending") for c in key]).combine_chunks()
        for name, key in keys.items()
    }


def differences(lake: Lake, states: dict[int, State]) -> Iterator[str]:
    """Restore the state after every epoch from every kind of snapshot, and compare."""
    for epoch, state in states.items():
        wanted = plain(state)
        progress = read_progress(lake, until=epoch)
        assert progress.last is not None
        for snapshot in {epoch // interval * interval for interval in INTERVALS}:
            named = {**progress.last.parameters, SNAPSHOT: {"epoch": snapshot}}
            last = replace(progress.last, parameters=named)
            found = plain(restore(lake, replace(progress, last=last)))
            for name, frame in wanted.items():
                if not frame.equals(found[name]):
                    yield f"{name} after epoch {epoch}, from snapshot {snapshot}"


@pytest.mark.parametrize(
    "world_number",
    [0, 1, *(pytest.param(number, marks=pytest.mark.soak) for number in range(2, WORLDS))],
)
def test_the_state_after_every_epoch_is_restored_from_any_snapshot(
    world_number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world_number % 2:  # the decision sees only what it may touch
        monkeypatch.setattr(active, "FEW_ROWS", 0)
        monkeypatch.setattr(active, "_CHUNK_ROWS", 8)
    seed = FIRST_SEED + 300_000 + world_number
    world = random_world(seed, QUEUES)
    rows = decided_rows(world, snapshot_epochs=1)
    lake = rows.write(tmp_path / "lake")
    assert list(differences(lake, rows.states)) == [], f"seed {seed}"
    report = verify(lake)
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}, f"seed {seed}"


@pytest.fixture
def state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `verify` check what it says of the state, without its forty other invariants."""
    names = set[str]().union(*STATE_INVARIANTS.values())
    for name in ("INVARIANTS", "RECORDED"):
        about_state = [one for one in getattr(run, name) if one.name in names]
        monkeypatch.setattr(run, name, tuple(about_state))


@pytest.fixture(scope="module")
def recorded() -> LakeRows:
    """Return the rows of a world in which every column of the state tables is filled."""
    rows = decided_rows(random_world(310_000, 40), snapshot_epochs=NO_SNAPSHOT)
    for table in STATE_TABLES:
        for column in TABLES[table].names:
            assert any(row.get(column) is not None for row in rows.tables[table]), (table, column)
    return rows


@pytest.fixture(scope="module")
def base(recorded: LakeRows) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="txlake-recorded-") as folder:
        yield Path(recorded.copy().write(Path(folder) / "lake").path)


def _without_column(column: str) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [{**row, column: None} for row in rows]


def _lost(rows: list[Any], change: str) -> list[Any]:
    """Lose the newest change of that kind."""
    place = max(place for place, row in enumerate(rows) if row["change"] == change)
    return rows[:place] + rows[place + 1 :]


PLANTED = {
    table: [
        *(
            (f"{column} dropped", _without_column(column))
            for column in TABLES[table].names
            if column not in ("epoch", "change")
        ),
        *(
            (f"one {change} lost", lambda rows, change=change: _lost(rows, change))
            for change in (PUT, LEFT)
        ),
    ]
    for table in STATE_TABLES
}
# One of each table at a time: each is seen in its own frame, and by its own invariants.
ROUNDS = [
    {table: one for table, one in zip(PLANTED, together, strict=True) if one}
    for together in zip_longest(*PLANTED.values())
]


def require_seen(lake: Lake, states: dict[int, State], tables: Collection[str]) -> None:
    """Checks that the state restored differs in each table's frame, and that verify says so."""
    unseen = {FRAMES[table] for table in tables}
    for difference in differences(lake, states):
        unseen.discard(difference.split()[0])
        if not unseen:
            break
    assert not unseen
    require_named(lake, tables)


def require_named(lake: Lake, tables: Collection[str]) -> None:
    """Checks that verify finds something wrong in each of the tables."""
    names = {f.invariant.name for f in verify(lake).findings if f.violations}
    assert [table for table in tables if not names & STATE_INVARIANTS[table]] == [], names


@pytest.mark.usefixtures("state_alone")
@pytest.mark.parametrize(
    "planted", ROUNDS, ids=[", ".join(f"{t} {one[0]}" for t, one in r.items()) for r in ROUNDS]
)
def test_what_is_lost_of_the_recorded_state_is_seen(
    recorded: LakeRows,
    base: Path,
    tmp_path: Path,
    planted: dict[str, tuple[str, Callable[[Any], Any]]],
) -> None:
    rows = recorded.copy()
    for table, (_, change) in planted.items():
        rows.tables[table] = change(rows.tables[table])
    rows.keep_books()
    require_seen(rows.write_changed(tmp_path / "lake", base, recorded), recorded.states, planted)


@pytest.mark.usefixtures("state_alone")
@pytest.mark.parametrize("change", [PUT, LEFT])
def test_a_change_that_is_recorded_twice_is_seen(
    recorded: LakeRows, base: Path, tmp_path: Path, change: str
) -> None:
    """Twice in its epoch, or once more in a later one: there is no second way to read the first."""
    again = {
        table: next(row for row in recorded.tables[table] if row["change"] == change)
        for table in STATE_TABLES
    }
    for number, later in enumerate(({}, {"epoch": max(recorded.states)})):
        planted = recorded.copy()
        for table, row in again.items():
            planted.tables[table].append({**row, **later})
        planted.keep_books()
        lake = planted.write_changed(tmp_path / str(number), base, recorded)
        require_named(lake, STATE_TABLES)


def test_each_frame_of_the_state_has_its_table() -> None:
    assert set(FRAMES.values()) == set(STATE_KEYS)
    assert set(FRAMES) == set(STATE_TABLES)


def test_a_later_change_of_a_merged_file_counts(tmp_path: Path) -> None:
    """Rows of several epochs in one file, in any order: the epoch decides, not the place."""
    rows = decided_rows(random_world(FIRST_SEED + 300_000, 10), snapshot_epochs=1)
    lake = rows.write(tmp_path / "lake")
    for table in STATE_TABLES:
        whole = lake.read(table).sort_by([("epoch", "descending")])
        write_deltalake(lake.table_path(table), whole, mode="overwrite")
    assert list(differences(Lake(lake.path), rows.states)) == []

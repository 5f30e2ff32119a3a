"""Lakes that somebody damaged: one sound lake, and what can happen to one table of it."""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from checker.frames import Parameters
from pipelines.cli.main import main
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.runner import EpochRunner
from pipelines.epoch.task_sizing import TaskSizing
from pipelines.replay.epochs import RecordedAsker
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.schemas import TABLES
from storage.verify import commands, delays, delivery, operations, run, state, time_rules
from storage.wire.record_kinds import WireLimits
from tests.support.decided_rows import EpochRows
from tests.support.in_memory_job import TOPICS, InMemoryJob
from tests.support.local_landing import LocalLander
from txlake import Consumer
from txlake.protocol import COMMIT, RESUME

SNAPSHOT_EPOCH = 3
LAST_EPOCH = 5
TRANSACTION = "paid"  # COMMITTED, in ORDERS
GIVEN_UP = "silent"  # DISCARDED once, and pending again
ORDERS = "topics/1"

_Job = TypeVar("_Job", bound="WholeJob")


class WholeJob(InMemoryJob):
    """A paper job that writes down all that the job does: counts, next offsets, a snapshot."""

    def copy(self: _Job, path: Path) -> _Job:
        """Return a job with the same past, on a copy of the lake."""
        shutil.copytree(self.lake.path, path)
        lake = Lake(str(path), is_driver=True)
        other = deepcopy(self, {id(self.lake): lake})
        other.go_on_in(lake)
        return other

    def go_on_in(self, lake: Lake) -> None:
        """Write the next epochs into another lake, which has the same ones."""
        self.lake = lake
        self._progress = read_progress(lake)

    def _plan(self, known: bool, ops_ahead: int) -> Plan:
        plan = super()._plan(known, ops_ahead)
        parameters = {**plan.parameters, "wire": asdict(limits())}
        return replace(plan, parameters=parameters)

    def _counts(self, rows: EpochRows) -> dict[str, int]:
        tables, topics = rows.tables, rows.messages
        counted = {
            table: len(tables.get(table, ()))
            for table in TABLES
            if table not in ("lake", "epochs", "catalog")
        }

        counts = Counter(row["outcome"].lower() for row in tables["outcomes"])
        counts["due"] = counted["checks"]  # each was sent
        counts["unreadable_half"] = sum(row["error"] is not None for row in tables["half"])
        counts["placed"] = sum(map(len, topics.values()))

        counts.update({f"landed_{kind}": counted[kind] for kind in TOPICS})
        counts.update(
            {table: n for table, n in counted.items() if table not in ("half", "schedule")}
        )
        return {**counts, **({"snapshot": 1} if self._is_snapshot() else {})}

    def _is_snapshot(self) -> bool:
        return self.epoch == SNAPSHOT_EPOCH


class _Nothing:
    """What a start has in place of Spark and Kafka, before it asks them for anything."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"a start asks neither Spark nor Kafka yet, but wanted {name}")


NOTHING = cast(Any, _Nothing())


def run_job(path: Path) -> WholeJob:
    """Return a job with the history of `make_lake`, on a copy: each has the same lake's id.

    A test calls it before it patches anything: the first call of a process lives the history.
    """
    return _job_of_this_process().copy(path)


@cache
def _job_of_this_process() -> WholeJob:
    folder = Path(tempfile.mkdtemp(prefix="txlake-job-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _live(folder / "lake")


def make_lake(path: Path) -> Lake:
    """Make a lake in which every table has rows, before the snapshot and after it."""
    return _live(path).lake


def _live(path: Path) -> WholeJob:
    job = WholeJob(path, check_max=1)

    for number in range(2):  # all of it before the snapshot, and once more behind it
        paid = job.half(TRANSACTION if not number else "paid later")
        silent = job.half(GIVEN_UP if not number else "silent later")
        job.half(f"delayed {number}", delay_level=5)
        job.schedule(delay_level=3)

        job.end(COMMIT, paid, silent + 1)
        job.end(COMMIT, paid)
        job.end(COMMIT, 50 + number)  # waits for its half

        job.command(RESUME, "half:0-1")
        job.run(60_000)
        job.run(60_000)

        if not number:
            job.run(60_000)

    return job


def limits() -> WireLimits:
    """Return decoding's limits as the paper job has them."""
    return WireLimits(dict(TOPICS), "TRANS_CHECK_", 1 << 20, 1_000)


def start(path: Path) -> EpochRunner:
    """Do what a job's start does before it asks Kafka for anything."""
    lake = Lake(str(path), is_driver=True)
    lake.check()
    settings = EpochSettings(
        Parameters(), limits(), 100, 1, NOTHING, "start", TaskSizing(1), NOTHING
    )
    epochs = EpochRunner(LocalLander(), lake, NOTHING, RecordedAsker(), settings, lambda: 0)
    try:
        epochs.resume()
    finally:
        epochs.close()
    return epochs


def prints(path: Path) -> dict[str, str]:
    """Return a digest of every file of a lake."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def log_entries(table: Path) -> list[Path]:
    """Return the entries of a table's log, the oldest first."""
    return sorted((table / "_delta_log").glob("*.json"))


def live_file(table: Path) -> Path:
    """Return the data file that was added last."""
    lines = [line for entry in log_entries(table) for line in entry.read_text().splitlines()]
    added = [json.loads(line)["add"]["path"] for line in lines if '"add"' in line[:6]]
    return table / str(added[-1])


def _removed(table: Path, _: Path) -> None:
    shutil.rmtree(table)


def _emptied(table: Path, _: Path) -> None:
    DeltaTable(str(table)).delete()


def _folder_emptied(table: Path, _: Path) -> None:
    shutil.rmtree(table)
    table.mkdir()


def _one_version_back(table: Path, _: Path) -> None:
    log_entries(table)[-1].unlink()


def _without_a_file(table: Path, _: Path) -> None:
    live_file(table).unlink()


def _of_another_lake(table: Path, other: Path) -> None:
    shutil.rmtree(table)
    shutil.copytree(other, table)


# Each is given a table's folder, and the same table's in another lake with the same history.
KINDS: Mapping[str, Callable[[Path, Path], None]] = {
    "removed": _removed,
    "emptied": _emptied,
    "folder emptied": _folder_emptied,
    "one version back": _one_version_back,
    "without a file": _without_a_file,
    "of another lake": _of_another_lake,
}


# The columns that a table got, by the format that brought them; format 2's are below.
_SINCE: dict[int, dict[str, tuple[str, ...]]] = {
    3: {
        "op": ("signature", "is_signed"),
        "waiting": ("is_signed",),
        "pending": ("unacknowledged",),
    },
    4: {"delayed": ("producer_group",), "catalog": ("producer_group",)},
    5: {
        "half": ("delay_ms",),
        "schedule": ("delay_ms",),
        "waiting": ("decided_sets",),
        "pending": ("age_from_at", "delay_ms", "deadline_at"),
    },
}


def as_format_1(path: Path) -> None:
    """Make of a lake what a version of txlake before format 2 would have left."""
    lake = Lake(str(path))
    keep = {"pending": "snapshot", "waiting": "snapshot", "delayed": "put"}
    kept: Counter[tuple[int, str]] = Counter()
    since = ("tables", "digest", "change", "unit_offset")

    for table in (*keep, "op", "catalog", "lake", "epochs"):
        rows = lake.read(table)
        if table in keep:
            rows = rows.filter(pc.equal(rows["change"], keep[table]))
            kept.update((epoch, table) for epoch in rows["epoch"].to_pylist())

        if table == "epochs":
            place = rows.schema.get_field_index("rule_version")
            old = pa.array([1] * len(rows))
            rows = _recounted(rows, kept).set_column(place, "rule_version", old.cast(pa.int32()))

        shutil.rmtree(path / table)
        write_deltalake(str(path / table), _as_of(1, table, rows, since))


def as_format(path: Path, version: int) -> None:
    """Make of a lake what the last txlake of format 2, 3 or 4 would have left."""
    later = {table for since, tables in _SINCE.items() if since > version for table in tables}
    for table in sorted({*later, "lake"}):
        rows = _as_of(version, table, Lake(str(path)).read(table))
        write_deltalake(str(path / table), rows, mode="overwrite", schema_mode="overwrite")


def _as_of(version: int, table: str, rows: pa.Table, later: Sequence[str] = ()) -> pa.Table:
    """Return rows without the columns that came later."""
    if table == "lake":
        rows = rows.set_column(1, "format_version", pa.array([version], pa.int32()))

    names = {
        *later,
        *(
            name
            for since, tables in _SINCE.items()
            if since > version
            for name in tables.get(table, ())
        ),
    }

    return rows.drop_columns([name for name in rows.column_names if name in names])


def _recounted(epochs: pa.Table, kept: Mapping[tuple[int, str], int]) -> pa.Table:
    """Let the epochs count what is kept of the tables of the state."""

    def counts(row: dict[str, Any]) -> list[tuple[str, int]] | None:
        if row["counts"] is None:
            return None
        is_state = {"pending", "waiting", "delayed"}
        return [(t, kept[row["epoch"], t] if t in is_state else n) for t, n in row["counts"]]

    place = epochs.schema.get_field_index("counts")
    field = epochs.schema.field(place)
    values = pa.array([counts(row) for row in epochs.to_pylist()], field.type)
    return epochs.set_column(place, field, values)


def txlake(*words: str) -> tuple[int, str]:
    """Run a command. Output: its exit code and what it printed."""
    done = CliRunner().invoke(main, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def refusal(*words: str) -> str:
    """Run a command that refuses, and give what it says."""
    code, said = txlake(*words)
    assert code == 1, said
    return said


def consume(path: Path, group: str = "points", session_timeout_ms: int = 30_000) -> int:
    """Return how many messages a group reads and commits."""
    with Consumer(str(path), group, ["orders"], session_timeout_ms=session_timeout_ms) as consumer:
        count = len(consumer.poll(0.0))
        consumer.commit()
        return count


def look_at_the_tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let verify check `lake_is_whole` and none of the other invariants: half a second less."""
    monkeypatch.setattr(run, "INVARIANTS", run.INVARIANTS[:1])
    monkeypatch.setattr(run, "RECORDED", ())
    for module in (operations, time_rules, delays, delivery, commands, state):
        monkeypatch.setattr(module, "FRAMES", "")


def is_named(table: str, said: str) -> bool:
    """Return whether one sentence names a table."""
    return f"the table {table} " in said and "\n" not in said.strip()

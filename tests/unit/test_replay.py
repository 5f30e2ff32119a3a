"""History run again: equal bit for bit, and every planted difference is found and named."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipelines import apply
from pipelines.cli import main
from pipelines.epoch import plan_limits, plan_parameters
from pipelines.errors import StartError
from pipelines.replay import Verified, archive, rebuild, source, verify, what_if
from pipelines.replay.archive import Archive
from pipelines.replay.new_lake import Identity, fill
from pipelines.settings import SettingsError
from storage.epochs import read_progress
from storage.errors import UnfinishedLakeError
from storage.lake import Lake
from storage.staged import StagedLake
from storage.verify.run import verify as verify_invariants
from tests.lake_rows import LakeRows
from tests.mutation import LAST
from tests.rig import rows_of
from tests.sound_lake import sound_rows
from txlake.protocol import CHECK_MAX_TOPIC

Row = dict[str, Any]
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
TABLES = ("outcomes", "conflicts", "checks", "delayed", "deliveries", "pending", "waiting",
          "catalog", "admin")  # fmt: skip
TOPICS = ("orders", "parts", CHECK_MAX_TOPIC)


@pytest.fixture(scope="module")
def rows() -> LakeRows:
    return sound_rows()


@pytest.fixture(scope="module")
def base(rows: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "lake"
    rows.write(path)
    return path


@pytest.fixture
def changed(rows: LakeRows, base: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the sound lake with changes."""

    def write(change: Callable[[LakeRows], None]) -> Path:
        other = rows.copy()
        change(other)
        other.write_changed(tmp_path / "changed", base, rows)
        return tmp_path / "changed"

    return write


def found(verified: Verified) -> set[tuple[str, str, str | None]]:
    return {(row["table"], row["kind"], row["column"]) for row in verified.differences.to_pylist()}


def decided(path: Path) -> dict[str, list[str]]:
    """Give all rows but those of the run itself and of consumers."""
    kept = rows_of(path)
    return {t: r for t, r in kept.items() if t not in ("epochs", "lake", "consumer_offsets")}


def test_a_lake_with_every_kind_of_outcome_is_replayed_bit_for_bit(base: Path) -> None:
    verified = verify(str(base))
    assert verified.differences.to_pylist() == []
    assert verified.is_equal
    assert (verified.first_epoch, verified.last_epoch) == (1, LAST)
    counts = {row["table"].split()[0]: row["rows"] for row in verified.compared.to_pylist()}
    assert {*TABLES, "half", "op", "schedule", "epochs", "topics/1", "topics/4"} <= set(counts)
    assert min(counts.values()) > 0


@pytest.mark.parametrize(("first", "last"), [(5, LAST), (7, 8), (2, 2)])
def test_a_stretch_of_history_is_replayed_from_the_state_before_it(
    base: Path, first: int, last: int
) -> None:
    verified = verify(str(base), first, last)
    assert verified.differences.to_pylist() == []
    assert (verified.first_epoch, verified.last_epoch) == (first, last)


def test_a_missing_row_is_named_in_every_table(changed: Callable[..., Path]) -> None:
    tables = [table for table in TABLES if table not in ("checks", "admin", "catalog")]

    def take_the_last(rows: LakeRows) -> None:
        rows.take("catalog", topic="orders", queue_count=6)
        for table in tables:
            rows.tables[table].pop()
        for topic in TOPICS:
            rows.messages[topic].pop()

    seen = found(verify(str(changed(take_the_last))))
    expected = {*tables, "catalog", "topics/2", "topics/3", "topics/4"}
    assert seen == {(table, "missing", None) for table in expected}


@pytest.mark.parametrize(("table", "counted"), [
    ("checks", "checks"), ("admin", "landed_admin"), ("half", "landed_half"), ("op", "landed_op"),
])  # fmt: skip
def test_a_record_that_is_missing_is_missing_in_the_counts_too(
    rows: LakeRows, changed: Callable[..., Path], table: str, counted: str
) -> None:
    """What was landed, and what was asked, is input: the replay knows of it only by the counts."""
    epoch = rows.tables[table][-1]["epoch"]
    verified = verify(str(changed(lambda rows: rows.tables[table].pop())), epoch, epoch)
    assert ("epochs", "changed", f"counts: {counted}") in found(verified)


def test_a_row_that_is_there_twice_is_named_in_every_table(changed: Callable[..., Path]) -> None:
    def repeat_the_first(rows: LakeRows) -> None:
        for table in (*TABLES, "half", "op", "schedule"):
            rows.tables[table].append(dict(rows.tables[table][0]))
        for topic in TOPICS:
            rows.messages[topic].append(dict(rows.messages[topic][0]))

    verified = verify(str(changed(repeat_the_first)))
    tables = {*TABLES, "half", "op", "schedule", "topics/2", "topics/3", "topics/4"}
    assert found(verified) == {(table, "twice", None) for table in tables}


def test_a_changed_value_is_named_with_both_values(changed: Callable[..., Path]) -> None:
    values: dict[str, tuple[str, Any]] = {
        "outcomes": ("cause", "operator"), "conflicts": ("reason", "orphan_expired"),
        "delayed": ("deliver_at", 7), "deliveries": ("action", "CANCELLED"),
        "pending": ("check_times", 9), "waiting": ("position", 5), "catalog": ("queue_count", 99),
        "admin": ("result", "bad_target"),
    }  # fmt: skip

    def change_the_last(rows: LakeRows) -> None:
        for table, (column, value) in values.items():
            assert rows.tables[table][-1][column] != value
            rows.tables[table][-1][column] = value
        rows.messages["orders"][-1]["queue_offset"] += 70
        commit = rows.commit(LAST)
        commit["next_offsets"][0]["next_offset"] += 1

    verified = verify(str(changed(change_the_last)))
    seen = found(verified)
    assert {(table, "changed", column) for table, (column, _) in values.items()} - seen == {
        ("waiting", "changed", "position")
    }
    assert {("waiting", "missing", None), ("waiting", "extra", None)} <= seen  # it is its name
    assert {("topics/2", "missing", None), ("topics/2", "extra", None)} <= seen
    assert any(table == "epochs" and "next_offsets" in str(column) for table, _, column in seen)
    (cause,) = [r for r in verified.differences.to_pylist() if r["table"] == "outcomes"]
    assert cause["there"] == "operator"
    assert cause["replayed"] != "operator"
    assert "queue_offset=" in cause["row"]
    assert cause["epoch"] is not None


@pytest.mark.parametrize("where", ["message", "half"])
def test_one_body_byte_is_found_wherever_it_changed(
    changed: Callable[..., Path], where: str
) -> None:
    def change(rows: LakeRows) -> None:
        message = rows.messages["orders"][0]
        body = message["body"][:5] + b"!" + message["body"][6:]
        if where == "message":
            message["body"] = body
            return
        place = {"queue_id": message["half_queue_id"], "queue_offset": message["half_queue_offset"]}
        rows.find(message["source"], **place)["body"] = body

    (row,) = verify(str(changed(change)), 1, 1).differences.to_pylist()
    assert (row["table"], row["topic"], row["column"]) == ("topics/2", "orders", "body")
    assert row["row"] == "queue_id=0 queue_offset=0"
    assert "differs at 5" in row["there"]
    assert row["there"] != row["replayed"]


def test_messages_that_do_not_fit_into_memory_are_streamed_and_compared(
    base: Path, changed: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "CHUNK_BYTES", 1)
    monkeypatch.setattr(apply, "DRIVER_BYTES_MAX", 0)
    assert verify(str(base)).is_equal
    rebuild(str(base), str(tmp_path / "new"))
    assert decided(tmp_path / "new") == decided(base)

    def change(rows: LakeRows) -> None:
        rows.messages["orders"][2]["body"] += b"!"
        rows.messages["orders"].append({**rows.messages["orders"][3], "queue_offset": 99})
        rows.messages["parts"].pop()

    seen = found(verify(str(changed(change))))
    assert seen == {("topics/2", "changed", "body"), ("topics/2", "extra", None),
                    ("topics/3", "missing", None)}  # fmt: skip


def test_recorded_epochs_are_rebuilt_row_for_row(base: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    first = rebuild(str(base), str(new), last_epoch=7)
    assert (first.first_epoch, first.last_epoch) == (1, 7)
    then = rebuild(str(base), str(new))
    assert (then.first_epoch, then.last_epoch) == (8, LAST)
    again = rebuild(str(base), str(new))
    assert (again.epochs, again.transactions) == (0, 0)
    assert decided(new) == decided(base)
    assert verify(str(new)).is_equal
    report = verify_invariants(Lake(str(new)))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}


class Killed(BaseException):
    """What a test raises in place of a crash."""


@pytest.mark.parametrize("one_batch", [False, True])
def test_a_rebuild_killed_at_every_write_goes_on_to_the_same_rows(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_batch: bool
) -> None:
    """Each run is killed after one more of its tables was written; the next one goes on."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    monkeypatch.setattr(source, "CHUNK_RECORDS", 40)
    monkeypatch.setattr(archive, "EPOCH_RECORDS", 60)
    monkeypatch.setattr("storage.staged._WRITERS", 1)
    rebuild(str(base), str(whole), one_batch, 4)
    write = StagedLake._write
    kills = 0
    while True:
        left = 4

        def counted(lake: StagedLake, table: str, rows: pa.Table) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            write(lake, table, rows)

        with monkeypatch.context() as patch:
            patch.setattr(StagedLake, "_write", counted)
            try:
                rebuild(str(base), str(killed), one_batch, 4)
                break
            except Killed:
                kills += 1
        if not one_batch:  # nobody uses what is half written
            with pytest.raises(UnfinishedLakeError, match="run that `txlake replay --into` again"):
                Lake(str(killed)).create(NOW)
    assert kills > 1
    assert decided(killed) == decided(whole)


def test_a_lake_is_rebuilt_from_nothing_but_half_and_op(
    rows: LakeRows, base: Path, tmp_path: Path
) -> None:
    newest = read_progress(Lake(str(base))).last
    assert newest is not None
    parameters = plan_parameters(newest)
    identity = Identity("test", newest.topic_ids, parameters, plan_limits(newest))
    for table in ("half", "op"):
        shutil.copytree(base / table, tmp_path / "rest" / table)
    with pytest.raises(StartError, match="no epochs"):
        rebuild(str(tmp_path / "rest"), str(tmp_path / "new"), one_batch=True)
    new = tmp_path / "new"
    rebuilt = rebuild(str(tmp_path / "rest"), str(new), one_batch=True, identity=identity)
    assert (rebuilt.epochs, rebuilt.transactions) == (1, len(rows.tables["half"]))

    def ended(path: Path) -> dict[tuple[int, int], str]:
        outcomes = Lake(str(path)).read("outcomes").to_pylist()
        return {(r["queue_id"], r["queue_offset"]): r["outcome"] for r in outcomes
                if r["outcome"] != "DISCARDED"}  # fmt: skip

    # Without the discards of history nobody was late, and no rejected end was too late.
    assert {k: v for k, v in ended(new).items() if k in ended(base)} == ended(base)
    report = verify_invariants(Lake(str(new)))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}
    assert verify(str(new)).is_equal
    assert rebuild(str(tmp_path / "rest"), str(new), True, identity=identity).epochs == 0


def test_a_new_lake_of_another_history_is_refused(base: Path, tmp_path: Path) -> None:
    rebuild(str(base), str(tmp_path / "new"), one_batch=True)
    with pytest.raises(StartError, match="not that of"):
        rebuild(str(base), str(tmp_path / "new"))
    with pytest.raises(StartError, match="into itself"):
        rebuild(str(base), str(base))


class TestFiles:
    """Archived records, as Parquet or Delta."""

    @pytest.fixture
    def identity(self, base: Path) -> Identity:
        newest = read_progress(Lake(str(base))).last
        assert newest is not None
        limits = plan_limits(newest)
        return Identity("test", newest.topic_ids, plan_parameters(newest), limits)

    def _archive(self, base: Path, folder: Path, *parts: tuple[int, int]) -> Archive:
        """Write the halves of some epochs as Parquet files; operations are the Delta table."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        halves = Lake(str(base)).read("half").drop_columns("epoch")
        epochs = Lake(str(base)).read("half", ["epoch"])["epoch"]
        for number, (first, last) in enumerate(parts):
            kept = pa.compute.and_(
                pa.compute.greater_equal(epochs, first), pa.compute.less_equal(epochs, last)
            )
            pq.write_table(halves.filter(kept), folder / f"{number}.parquet")
        return Archive.of_files({"half": str(folder), "op": str(base / "op")})

    def test_overlapping_files_land_each_record_once_and_a_second_run_adds_nothing(
        self, base: Path, tmp_path: Path, identity: Identity
    ) -> None:
        new, files = tmp_path / "new", tmp_path / "files"
        done = fill(str(new), self._archive(base, files, (1, 2), (2, LAST)), identity)
        landed = Lake(str(new)).read("half", ["queue_id", "queue_offset", "body"])
        there = Lake(str(base)).read("half", ["queue_id", "queue_offset", "body"])
        order = [("queue_id", "ascending"), ("queue_offset", "ascending")]
        assert landed.sort_by(order).equals(there.sort_by(order))
        assert done.transactions == there.num_rows
        again = fill(str(new), self._archive(base, files, (1, LAST)), identity)
        assert again.epochs == 0

    def test_a_lake_goes_on_with_later_files_and_refuses_a_gap(
        self, base: Path, tmp_path: Path, identity: Identity
    ) -> None:
        new, files = tmp_path / "new", tmp_path / "files"
        fill(str(new), self._archive(base, files, (1, 1)), identity)
        with pytest.raises(StartError, match="what is between is missing"):
            fill(str(new), self._archive(base, files, (10, LAST)), identity)
        fill(str(new), self._archive(base, files, (1, LAST)), identity)
        assert Lake(str(new)).read("half").num_rows == Lake(str(base)).read("half").num_rows
        assert verify(str(new)).is_equal

    def test_records_that_contradict_each_other_are_refused(
        self, base: Path, tmp_path: Path, identity: Identity
    ) -> None:
        files = tmp_path / "files"
        self._archive(base, files, (1, LAST))
        halves = pq.read_table(files / "0.parquet")
        other = halves.slice(0, 1).set_column(
            halves.schema.get_field_index("body"), "body", pa.array([b"other"])
        )
        pq.write_table(other, files / "1.parquet")
        paths = {"half": str(files), "op": str(base / "op")}
        with pytest.raises(StartError, match="twice, and they differ"):
            fill(str(tmp_path / "new"), Archive.of_files(paths), identity)

    def test_files_that_are_no_records_are_named(self, base: Path, tmp_path: Path) -> None:
        (tmp_path / "x.parquet").write_text("no")
        with pytest.raises(StartError, match="no Delta table and no Parquet"):
            Archive.of_files({"half": str(tmp_path / "x.parquet"), "op": str(base / "op")})
        with pytest.raises(StartError, match="have no column stored_at"):
            Archive.of_files({"half": str(base / "checks"), "op": str(base / "catalog")})


def numbers(**parameters: Any) -> Callable[[Path], dict[str, tuple[int, int]]]:
    def ask(path: Path) -> dict[str, tuple[int, int]]:
        answer = what_if(str(path), **parameters)
        rows = answer.numbers.to_pylist()
        return {row["measure"]: (row["history"], row["what_if"]) for row in rows}

    return ask


def test_the_same_parameters_give_the_same_history(base: Path) -> None:
    answer = what_if(str(base), tick_ms=0)
    assert answer.outcomes.num_rows == 0
    for row in answer.numbers.to_pylist():
        assert row["history"] == row["what_if"], row["measure"]
    for row in answer.groups.to_pylist():
        assert row["checks"] == row["what_if_checks"]


def test_without_checks_all_that_is_silent_is_given_up(base: Path) -> None:
    answer = what_if(str(base), check_max=0)
    (checks,) = [r for r in answer.numbers.to_pylist() if r["measure"] == "checks"]
    assert (checks["history"] > 0, checks["what_if"]) == (True, 0)
    ends = {row["transaction_id"]: row for row in answer.outcomes.to_pylist()}
    assert ends["young"]["outcome"] is None
    assert (ends["young"]["what_if_outcome"], ends["young"]["what_if_cause"]) == (
        "DISCARDED", "check_max",
    )  # fmt: skip
    assert ends["nobody"]["what_if_decided_at"] < ends["nobody"]["decided_at"]


def test_a_shorter_interval_asks_in_the_idle_time_too(base: Path) -> None:
    in_recorded = numbers(check_interval_ms=1_000, tick_ms=0)(base)["checks"]
    also_idle = numbers(check_interval_ms=1_000, tick_ms=10_000)(base)["checks"]
    assert in_recorded[0] < in_recorded[1] < also_idle[1]
    with pytest.raises(SettingsError, match="check_interval_ms"):
        what_if(str(base), check_interval_ms=0)
    with pytest.raises(SettingsError, match="ask_timeout_ms decides nothing"):
        what_if(str(base), ask_timeout_ms=10)


class TestCommand:
    """`txlake replay`."""

    def _run(self, *arguments: str) -> Any:
        return CliRunner().invoke(main, ["replay", *arguments])

    def test_an_equal_lake_exits_with_0_and_a_difference_with_3_and_its_row(
        self, base: Path, changed: Callable[..., Path]
    ) -> None:
        done = self._run("--lake", str(base), "--verify", "--epochs", "3-4")
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "all rows are equal")
        assert done.stdout.startswith("epochs 3 to 4:")

        def change(rows: LakeRows) -> None:
            rows.messages["orders"][0]["body"] = b"another"

        path = str(changed(change))
        done = self._run("--lake", path, "--verify", "--epochs", "1-1")
        assert done.exit_code == 3
        assert "topics/2 (orders) queue_id=0 queue_offset=0, epoch 1: body is" in done.stdout
        done = self._run("--lake", path, "--verify", "--epochs", "1-1", "-o", "json")
        told = json.loads(done.stdout)
        assert (done.exit_code, told["is_equal"]) == (3, False)
        assert [row["column"] for row in told["differences"]] == ["body"]

    def test_rebuilding_and_asking(self, base: Path, tmp_path: Path) -> None:
        into = str(tmp_path / "new")
        arguments = ("--lake", str(base), "--into", into, "--epochs", "1-2")
        assert "epochs 1 to 2 added" in self._run(*arguments).stdout
        assert "nothing was added" in self._run(*arguments).stdout
        done = self._run("--lake", str(base), "--what-if", "check_max=0", "--what-if",
                         "late_end_policy=reject", "-o", "json")  # fmt: skip
        told = json.loads(done.stdout)
        assert told["parameters"] == {"check_max": 0, "late_end_policy": "reject"}
        assert {row["measure"] for row in told["numbers"]} >= {"checks", "discards", "pending"}

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            ((), 2, "name one: --verify"),
            (("--verify", "--into", "x"), 2, "name one: --verify"),
            (("--into", "x", "--epochs", "2-3"), 2, "only --verify can begin later"),
            (("--what-if", "check_max"), 2, "KEY=VALUE"),
            (("--what-if", "progress=1"), 1, "progress is unknown"),
        ],
    )
    def test_wrong_usage_is_said(
        self, base: Path, arguments: tuple[str, ...], code: int, said: str
    ) -> None:
        done = self._run("--lake", str(base), *arguments)
        assert done.exit_code == code
        assert said in done.stderr

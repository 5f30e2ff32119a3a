"""Lakes made anew: from recorded epochs, from half and op alone, from files."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipelines.cli.main import main
from pipelines.epoch.parameters import plan_limits, plan_parameters
from pipelines.errors import StartError
from pipelines.replay import archive, epochs, rebuild, source, verify
from pipelines.replay.archive import Archive
from pipelines.replay.rebuild import fill
from pipelines.replay.refill import Identity
from storage.errors import UnfinishedLakeError
from storage.lake.buffered import BufferedLake
from storage.lake.epochs import Range
from storage.lake.integrity import require_intact
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.rows import to_rows
from storage.schemas import HALF, STATE_TABLES
from storage.verify.run import verify as verify_invariants
from tests.support.epoch_harness import decided_rows_of
from tests.support.in_memory_job import InMemoryJob
from tests.support.killed_rebuilds import Killed, kill_before_the_row_of_the_lake
from tests.support.lake_rows import LakeRows
from tests.support.mutation import LAST
from tests.support.vectors import LIMITS
from txlake import Consumer
from txlake.protocol import COMMIT

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def test_recorded_epochs_are_rebuilt_row_for_row(sound_lake: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    first = rebuild(str(sound_lake), str(new), last_epoch=7)
    assert (first.first_epoch, first.last_epoch) == (1, 7)
    then = rebuild(str(sound_lake), str(new))
    assert (then.first_epoch, then.last_epoch) == (8, LAST)
    again = rebuild(str(sound_lake), str(new))
    assert (again.epochs, again.transactions) == (0, 0)
    assert decided_rows_of(new) == decided_rows_of(sound_lake)
    assert verify(str(new)).is_equal
    report = verify_invariants(Lake(str(new)))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}


@pytest.mark.parametrize("one_batch", [False, True])
def test_a_rebuild_killed_at_every_write_goes_on_to_the_same_rows(
    sound_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_batch: bool
) -> None:
    """Each run is killed after one more of its tables was written; the next one goes on."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    monkeypatch.setattr(source, "CHUNK_RECORDS", 40)
    monkeypatch.setattr(archive, "EPOCH_RECORDS", 60)
    monkeypatch.setattr("storage.lake.buffered._WRITERS", 1)
    rebuild(str(sound_lake), str(whole), one_batch, 4)
    write = BufferedLake._write
    kills = 0
    while True:
        left = 4

        def counted(lake: BufferedLake, table: str, rows: pa.Table) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            write(lake, table, rows)

        with monkeypatch.context() as patch:
            patch.setattr(BufferedLake, "_write", counted)
            try:
                rebuild(str(sound_lake), str(killed), one_batch, 4)
                break
            except Killed:
                kills += 1
        # Nobody uses what is half written.
        with pytest.raises(UnfinishedLakeError, match="run that `txlake replay --into` again"):
            Lake(str(killed)).create(NOW)
    assert kills > 1
    assert decided_rows_of(killed) == decided_rows_of(whole)


@pytest.mark.parametrize("one_batch", [False, True])
def test_a_rebuild_killed_before_it_writes_the_row_of_the_lake_makes_a_lake_when_run_again(
    sound_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_batch: bool
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    rebuild(str(sound_lake), str(whole), one_batch)
    kill_before_the_row_of_the_lake(sound_lake, killed, monkeypatch, one_batch)
    words = ["replay", "--lake", str(sound_lake), "--into", str(killed)]
    done = CliRunner().invoke(main, [*words, "--one-batch"] if one_batch else words)
    assert done.stdout.splitlines()[0] == f"{killed} had all of it already: nothing was added"
    lake = Lake(str(killed))
    require_intact(lake, read_progress(lake), is_exclusive=True)
    assert lake.create(NOW) == lake.majority_lake_id()
    assert decided_rows_of(killed) == decided_rows_of(whole)


def test_an_unfinished_lake_with_rows_of_later_epochs_is_not_ended_before_them(
    sound_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables are written before its epochs: they would have rows that no epoch planned."""
    new = tmp_path / "new"
    rebuild(str(sound_lake), str(new), last_epoch=3)
    write = BufferedLake._write

    def killed(lake: BufferedLake, table: str, rows: pa.Table) -> None:
        if table == "epochs":
            raise Killed
        write(lake, table, rows)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(BufferedLake, "_write", killed)
        rebuild(str(sound_lake), str(new), last_epoch=5)
    for last in (3, 4):
        with pytest.raises(StartError, match="new has rows of epoch 5 of a rebuild that was inter"):
            rebuild(str(sound_lake), str(new), last_epoch=last)
    rebuild(str(sound_lake), str(new), last_epoch=5)
    require_intact(Lake(str(new)), read_progress(Lake(str(new))), is_exclusive=True)


def test_an_unfinished_lake_is_not_ended_before_the_epochs_that_it_has(
    sound_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new"
    kill_before_the_row_of_the_lake(sound_lake, new, monkeypatch)
    with pytest.raises(StartError, match=rf"new has rows of epoch {LAST} of a rebuild that was in"):
        rebuild(str(sound_lake), str(new), last_epoch=3)
    with pytest.raises(UnfinishedLakeError):
        Lake(str(new)).lake_id()


def test_an_unfinished_lake_with_messages_of_a_later_epoch_is_not_ended_before_it(
    sound_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that are too large to wait are written at once, and before all else."""
    new = tmp_path / "new"
    rebuild(str(sound_lake), str(new), last_epoch=3)
    append_stream = BufferedLake.append_stream

    def killed(lake: BufferedLake, table: str, pieces: Any, epoch: int) -> None:
        append_stream(lake, table, pieces, epoch)
        if table.startswith("topics/"):
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(source, "CHUNK_BYTES", 1)
        patch.setattr(epochs, "BYTES_MAX", 0)
        patch.setattr(BufferedLake, "append_stream", killed)
        rebuild(str(sound_lake), str(new))
    with pytest.raises(StartError, match=r"new has rows of epoch \d+ of a rebuild that was inter"):
        rebuild(str(sound_lake), str(new), last_epoch=3)


def test_a_lake_is_rebuilt_from_nothing_but_half_and_op(
    sound: LakeRows, sound_lake: Path, tmp_path: Path
) -> None:
    newest = read_progress(Lake(str(sound_lake))).last
    assert newest is not None
    # Its last epochs refuse what earlier ones took: ends without an id, and ends after immunity.
    parameters = replace(
        plan_parameters(newest), require_transaction_id=False, reject_after_immunity=False
    )
    identity = Identity("test", newest.topic_ids, parameters, plan_limits(newest))

    for table in ("half", "op"):
        shutil.copytree(sound_lake / table, tmp_path / "rest" / table)
    with pytest.raises(StartError, match="no epochs"):
        rebuild(str(tmp_path / "rest"), str(tmp_path / "new"), one_batch=True)
    new = tmp_path / "new"
    rebuilt = rebuild(str(tmp_path / "rest"), str(new), one_batch=True, identity=identity)
    assert (rebuilt.epochs, rebuilt.transactions) == (1, len(sound.tables["half"]))

    def ended(path: Path) -> dict[tuple[int, int], str]:
        outcomes = Lake(str(path)).read("outcomes").to_pylist()
        return {
            (r["queue_id"], r["queue_offset"]): r["outcome"]
            for r in outcomes
            if r["outcome"] != "DISCARDED"
        }

    # Without the discards of history nobody was late, and no rejected end was too late.
    assert {k: v for k, v in ended(new).items() if k in ended(sound_lake)} == ended(sound_lake)
    report = verify_invariants(Lake(str(new)))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}
    assert verify(str(new)).is_equal
    assert rebuild(str(tmp_path / "rest"), str(new), True, identity=identity).epochs == 0


def test_a_new_lake_of_another_history_is_refused(sound_lake: Path, tmp_path: Path) -> None:
    rebuild(str(sound_lake), str(tmp_path / "new"), one_batch=True)
    with pytest.raises(StartError, match="not that of"):
        rebuild(str(sound_lake), str(tmp_path / "new"))
    with pytest.raises(StartError, match="into itself"):
        rebuild(str(sound_lake), str(sound_lake))


class TestFiles:
    """Archived records, as Parquet or Delta."""

    @pytest.fixture
    def identity(self, sound_lake: Path) -> Identity:
        newest = read_progress(Lake(str(sound_lake))).last
        assert newest is not None
        limits = plan_limits(newest)
        return Identity("test", newest.topic_ids, plan_parameters(newest), limits)

    def _archive(self, sound_lake: Path, folder: Path, *parts: tuple[int, int]) -> Archive:
        """Write the halves of some epochs as Parquet files; operations are the Delta table."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        halves = Lake(str(sound_lake)).read("half").drop_columns("epoch")
        epochs = Lake(str(sound_lake)).read("half", ["epoch"])["epoch"]
        for number, (first, last) in enumerate(parts):
            kept = pc.and_(pc.greater_equal(epochs, first), pc.less_equal(epochs, last))
            pq.write_table(halves.filter(kept), folder / f"{number}.parquet")
        return Archive.of_files({"half": str(folder), "op": str(sound_lake / "op")})

    @pytest.mark.parametrize("is_streamed", [False, True])
    def test_overlapping_files_land_each_record_once_and_a_second_run_adds_nothing(
        self,
        sound_lake: Path,
        tmp_path: Path,
        identity: Identity,
        monkeypatch: pytest.MonkeyPatch,
        is_streamed: bool,
    ) -> None:
        if is_streamed:
            monkeypatch.setattr(archive, "CHUNK_BYTES", 1)
            monkeypatch.setattr(epochs, "BYTES_MAX", 0)
        new, files = tmp_path / "new", tmp_path / "files"
        done = fill(str(new), self._archive(sound_lake, files, (1, 2), (2, LAST)), identity)
        landed = Lake(str(new)).read("half", ["queue_id", "queue_offset", "body"])
        there = Lake(str(sound_lake)).read("half", ["queue_id", "queue_offset", "body"])
        order = [("queue_id", "ascending"), ("queue_offset", "ascending")]
        assert landed.sort_by(order).equals(there.sort_by(order))
        assert done.transactions == there.num_rows
        again = fill(str(new), self._archive(sound_lake, files, (1, LAST)), identity)
        assert again.epochs == 0

    def test_a_lake_goes_on_with_later_files_and_refuses_a_gap(
        self, sound_lake: Path, tmp_path: Path, identity: Identity
    ) -> None:
        new, files = tmp_path / "new", tmp_path / "files"
        fill(str(new), self._archive(sound_lake, files, (1, 1)), identity)
        with pytest.raises(StartError, match="what is between is missing"):
            fill(str(new), self._archive(sound_lake, files, (10, LAST)), identity)
        fill(str(new), self._archive(sound_lake, files, (1, LAST)), identity)
        lake = Lake(str(new))
        assert lake.read("half").num_rows == Lake(str(sound_lake)).read("half").num_rows
        assert verify(str(new)).is_equal
        last = read_progress(lake).last
        assert last is not None
        before = pc.field("epoch") < last.epoch
        changes = sum(lake.read(table, where=before).num_rows for table in STATE_TABLES)
        assert last.snapshot.changes == changes > 0

    def test_records_that_contradict_each_other_are_refused(
        self, sound_lake: Path, tmp_path: Path, identity: Identity
    ) -> None:
        files = tmp_path / "files"
        self._archive(sound_lake, files, (1, LAST))
        halves = pq.read_table(files / "0.parquet")
        other = halves.slice(0, 1).set_column(
            halves.schema.get_field_index("body"), "body", pa.array([b"other"])
        )
        pq.write_table(other, files / "1.parquet")
        paths = {"half": str(files), "op": str(sound_lake / "op")}
        with pytest.raises(StartError, match="twice, and they differ"):
            fill(str(tmp_path / "new"), Archive.of_files(paths), identity)

    def test_records_of_thousands_of_queues_are_read(self, tmp_path: Path) -> None:
        """A filter with a term for each queue would overflow Arrow's stack."""
        queues = 20_000
        rows = pa.table({"queue_id": [*range(queues), 0], "queue_offset": [*[5] * queues, 6]})
        pq.write_table(to_rows(rows, HALF, stored_at=NOW), tmp_path / "half.parquet")
        records = Archive.of_files({"half": str(tmp_path / "half.parquet")})

        read, _ = records.read("half", [Range("half", queue, 5, 6, 6) for queue in range(queues)])
        assert read["queue_id"].to_pylist() == list(range(queues))

    def test_a_table_is_found_from_the_folder_that_it_is_in(
        self, sound_lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(sound_lake)
        archive = Archive.of_files({"half": "half", "op": "op"})
        assert archive.dataset("half").count_rows() == Lake(str(sound_lake)).read("half").num_rows

    def test_a_table_that_delta_rs_does_not_see_is_not_taken_for_loose_files(
        self, sound_lake: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(sound_lake / "half", tmp_path / "a%20b")
        with pytest.raises(StartError, match=r"half records: '.*a%20b': it has '%20'"):
            Archive.of_files({"half": str(tmp_path / "a%20b"), "op": str(sound_lake / "op")})

    def test_files_that_are_no_records_are_named(self, sound_lake: Path, tmp_path: Path) -> None:
        (tmp_path / "x.parquet").write_text("no")
        with pytest.raises(StartError, match="no Delta table and no Parquet"):
            Archive.of_files({"half": str(tmp_path / "x.parquet"), "op": str(sound_lake / "op")})
        with pytest.raises(StartError, match="have no column stored_at"):
            Archive.of_files(
                {"half": str(sound_lake / "checks"), "op": str(sound_lake / "catalog")}
            )


def test_the_id_of_a_message_is_the_same_in_a_lake_that_is_made_anew(tmp_path: Path) -> None:
    """The half of `a` was delayed; in one batch its time has come when it is committed."""
    job = InMemoryJob(tmp_path / "old", default_queue_count=1)
    for name, more in (("a", {"deliver_at": job.at + 5_000}), ("b", {})):
        job.end(COMMIT, job.half(name, body=name.encode(), **more))
    job.schedule(body=b"c")
    job.run()
    job.run(10_000)
    job.end(COMMIT, job.half("d", body=b"d"))
    job.run()
    identity = Identity("cluster", {}, job.parameters, LIMITS)
    rebuild(str(tmp_path / "old"), str(tmp_path / "new"), one_batch=True, identity=identity)

    def bodies(lake: str, *key: str) -> dict[tuple[Any, ...], bytes | None]:
        with Consumer(tmp_path / lake, "points", ["orders"]) as consumer:
            messages = consumer.poll(5.0)
        assert len(messages) == 4
        return {tuple(getattr(one, name) for name in key): one.body for one in messages}

    place = ("topic", "queue_id", "queue_offset")
    assert bodies("old", *place) != bodies("new", *place)
    by_id = bodies("new", "topic", "id")
    assert bodies("old", "topic", "id") == by_id
    assert set(by_id) == {
        ("orders", one) for one in ("half:0-0", "half:0-1", "half:0-2", "schedule:0-0")
    }

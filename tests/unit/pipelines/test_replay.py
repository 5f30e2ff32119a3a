"""History run again: equal bit for bit, and every planted difference is found and named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import StartError
from pipelines.replay import Verified, epochs, rebuild, source, verify
from pipelines.replay.epochs import ReplayedEpochs
from pipelines.replay.scratch import ScratchLake
from pipelines.replay.source import Source
from storage.errors import LakeError
from storage.files import messages
from storage.lake.buffered import BufferedLake
from storage.lake.lake import Lake
from storage.lake.table import deleted_epoch
from storage.maintenance.limits import Retention
from tests.support.aging_job import AgingJob
from tests.support.epoch_harness import decided_rows_of
from tests.support.lake_rows import LakeRows
from tests.support.mutation import LAST
from txlake.protocol import CHECK_MAX_TOPIC, COMMIT

TABLES = (
    "outcomes",
    "conflicts",
    "checks",
    "delayed",
    "deliveries",
    "pending",
    "waiting",
    "catalog",
    "admin",
)
TOPICS = ("orders", "parts", CHECK_MAX_TOPIC)


def found(verified: Verified) -> set[tuple[str, str, str | None]]:
    return {(row["table"], row["kind"], row["column"]) for row in verified.differences.to_pylist()}


def test_a_lake_with_every_kind_of_outcome_is_replayed_bit_for_bit(sound_lake: Path) -> None:
    verified = verify(str(sound_lake))
    assert verified.differences.to_pylist() == []
    assert verified.is_equal
    assert (verified.first_epoch, verified.last_epoch) == (1, LAST)
    counts = {row["table"].split()[0]: row["rows"] for row in verified.compared.to_pylist()}
    assert {*TABLES, "half", "op", "schedule", "epochs", "topics/1", "topics/4"} <= set(counts)
    assert min(counts.values()) > 0


@pytest.mark.parametrize(("first", "last"), [(5, LAST), (7, 8), (2, 2)])
def test_a_stretch_of_history_is_replayed_from_the_state_before_it(
    sound_lake: Path, first: int, last: int
) -> None:
    verified = verify(str(sound_lake), first, last)
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
    sound: LakeRows, changed: Callable[..., Path], table: str, counted: str
) -> None:
    """What was landed, and what was asked, is input: the replay knows of it only by the counts."""
    epoch = sound.tables[table][-1]["epoch"]
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
        "outcomes": ("cause", "operator"),
        "conflicts": ("reason", "orphan_expired"),
        "delayed": ("deliver_at", 7),
        "deliveries": ("action", "CANCELLED"),
        "pending": ("check_times", 9),
        "waiting": ("position", 5),
        "catalog": ("queue_count", 99),
        "admin": ("result", "bad_target"),
    }

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
    sound_lake: Path, changed: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "CHUNK_BYTES", 1)
    monkeypatch.setattr(epochs, "BYTES_MAX", 0)
    assert verify(str(sound_lake)).is_equal
    rebuild(str(sound_lake), str(tmp_path / "new"))
    assert decided_rows_of(tmp_path / "new") == decided_rows_of(sound_lake)

    def change(rows: LakeRows) -> None:
        rows.messages["orders"][2]["body"] += b"!"
        rows.messages["orders"].append({**rows.messages["orders"][3], "queue_offset": 99})
        rows.messages["parts"].pop()

    seen = found(verify(str(changed(change))))
    assert seen == {
        ("topics/2", "changed", "body"),
        ("topics/2", "extra", None),
        ("topics/3", "missing", None),
    }


def test_a_streamed_message_that_was_not_landed_is_named(
    sound_lake: Path, changed: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(rows: LakeRows) -> None:
        rows.find("half", queue_id=1, queue_offset=3)["queue_offset"] += 300
        rows.is_sealed = True

    new = str(tmp_path / "new")
    rebuild(str(sound_lake), new, last_epoch=2)
    monkeypatch.setattr(source, "CHUNK_BYTES", 1)
    monkeypatch.setattr(epochs, "BYTES_MAX", 0)
    path = str(changed(move))

    said = "epoch 3 delivers 3 messages of `half`, but 1 could not be found there"
    with pytest.raises(LakeError, match=f"^{said}"):
        verify(path, 3, 3)
    with pytest.raises(LakeError, match=f"^{said}"):
        rebuild(path, new, last_epoch=3)


def test_of_a_large_epoch_few_messages_are_in_memory_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever order its transactions were committed in."""
    size, count, at_once = 10_000, 40, 4
    job = AgingJob(tmp_path / "lake")
    offsets = [job.half(f"tx{number}", body=bytes([number]) * size) for number in range(count)]
    for number in range(count):
        job.end(COMMIT, offsets[number * 7 % count])
    job.run(1)

    monkeypatch.setattr(source, "CHUNK_BYTES", 1)
    monkeypatch.setattr(epochs, "BYTES_MAX", 0)
    monkeypatch.setattr(messages, "_ROWS_AT_ONCE", at_once)
    retrying = Source.retrying
    sizes: list[int] = []

    def measured(self: Source, table: str, read: Callable[[], Any]) -> Any:
        rows = retrying(self, table, read)
        if table.startswith("topics/"):
            batches = rows if isinstance(rows, list) else rows.to_batches()
            sizes.append(sum(batch.nbytes for batch in batches))
        return rows

    monkeypatch.setattr(Source, "retrying", measured)
    assert verify(job.lake.path).is_equal
    assert at_once * size <= max(sizes) < 2 * at_once * size


def test_of_many_epochs_few_messages_that_landed_before_wait_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a chunk of epochs delivers can be far larger than what it has landed."""
    size, count, at_once = 10_000, 24, 4
    job = AgingJob(tmp_path / "lake")
    offsets = [job.half(f"tx{number}", body=bytes([number]) * size) for number in range(count)]
    job.run(1)
    for offset in offsets:
        job.end(COMMIT, offset)
        job.run(1)

    monkeypatch.setattr(epochs, "WAITING_BYTES_MAX", (at_once - 1) * size)
    drop_staged, begin_flush = ScratchLake.drop_staged, BufferedLake.begin_flush
    waiting: list[int] = []

    def dropped(self: ScratchLake) -> None:
        waiting.append(sum(rows.nbytes for rows in self.staged().values()))
        drop_staged(self)

    def flushed(self: BufferedLake) -> None:
        waiting.append(sum(rows.nbytes for rows in self.staged().values()))
        begin_flush(self)

    monkeypatch.setattr(ScratchLake, "drop_staged", dropped)
    monkeypatch.setattr(BufferedLake, "begin_flush", flushed)
    assert verify(job.lake.path).is_equal
    assert len(waiting) >= count // at_once
    assert 0 < max(waiting) < (at_once + 1) * size

    landed_bytes = count * size
    waiting.clear()
    rebuild(job.lake.path, str(tmp_path / "new"))
    assert max(waiting) < landed_bytes + (at_once + 1) * size
    assert max(waiting[1:]) < (at_once + 1) * size
    assert decided_rows_of(tmp_path / "new") == decided_rows_of(Path(job.lake.path))


@pytest.fixture(scope="module")
def epochs_of_a_message(tmp_path_factory: pytest.TempPathFactory) -> AgingJob:
    """Return a job with twelve epochs of a message each."""
    job = AgingJob(tmp_path_factory.mktemp("epochs") / "lake")
    for number in range(12):
        job.end(COMMIT, job.half(f"tx{number}"))
        job.run(1)
    return job


@pytest.mark.parametrize("is_streamed", [False, True])
def test_messages_that_a_topic_deletes_meanwhile_are_not_missed(
    epochs_of_a_message: AgingJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_streamed: bool,
) -> None:
    job = epochs_of_a_message.copy(tmp_path / "lake")
    if is_streamed:
        monkeypatch.setattr(source, "CHUNK_BYTES", 1)
        monkeypatch.setattr(epochs, "BYTES_MAX", 0)
    retrying = Source.retrying

    def after_a_deletion(self: Source, table: str, read: Callable[[], Any]) -> Any:
        if table == "topics/1" and job.topics == Retention():
            job.topics = Retention(ms=1)
            job.maintain()
        return retrying(self, table, read)

    monkeypatch.setattr(Source, "retrying", after_a_deletion)
    verified = verify(job.lake.path)
    assert 0 < deleted_epoch(Lake(job.lake.path).handle("topics/1")) < job.epoch
    assert verified.is_equal, verified.differences.to_pylist()[:3]


@pytest.mark.parametrize(
    "used_s",
    [
        pytest.param(0.0, id="before a table is read"),
        pytest.param(300.0, id="while a table is read"),
    ],
)
def test_files_that_the_job_merges_and_deletes_meanwhile_are_not_missed(
    epochs_of_a_message: AgingJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used_s: float
) -> None:
    """As when a replay takes longer than file_retention_ms."""
    job = epochs_of_a_message.copy(tmp_path / "lake")
    epochs_run = 0
    run_epoch = ReplayedEpochs.replay

    def replay_beside_the_job(self: ReplayedEpochs, *arguments: Any, **options: Any) -> None:
        nonlocal epochs_run
        run_epoch(self, *arguments, **options)
        epochs_run += 1
        if epochs_run == 7:
            job.maintain()

    monkeypatch.setattr(source, "CHUNK_RECORDS", 200)  # two epochs: the last are read later
    monkeypatch.setattr(source, "_DATASET_S", used_s)
    monkeypatch.setattr(ReplayedEpochs, "replay", replay_beside_the_job)
    found = verify(job.lake.path)
    assert found.is_equal
    assert found.transactions == job.epoch
    assert job.maintained.merges > 0


@pytest.mark.parametrize("into", ["lake", "lake/half", "link/new", "."])
def test_no_lake_is_rebuilt_into_itself(tmp_path: Path, sound_lake: Path, into: str) -> None:
    shutil.copytree(sound_lake, tmp_path / "lake")
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    before = sorted(map(str, tmp_path.rglob("*")))
    with pytest.raises(StartError, match="lie in each other"):
        rebuild(str(tmp_path / "lake"), str(tmp_path / into))
    assert sorted(map(str, tmp_path.rglob("*"))) == before

"""What is no lake, and files that are damaged inside: one sentence, never a traceback."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipelines.job.driver import Driver
from pipelines.settings import parse
from storage.errors import BrokenLakeError, LakeError
from storage.lake.lake import Lake
from tests.support import damage
from tests.support.crossing import crossing
from tests.support.damage import (
    ORDERS,
    TRANSACTION,
    consume,
    look_at_the_tables_alone,
    refusal,
    start,
    txlake,
)
from txlake import LakeError as ConsumersLakeError

pytestmark = pytest.mark.usefixtures("one_look")

NO_PLACES = {
    "below /proc": ("/proc/none/lake", "is not a lake", "cannot be made"),
    "a file": ("{file}", "is a file, not a folder", "is a file, not a folder"),
    "below a file": ("{file}/lake", "is a file, not a folder", "is a file, not a folder"),
    "with NUL": ("a\0b", "no folder can have this name", ""),
    "a long name": ("/tmp/" + "x" * 300, "File name too long", "File name too long"),  # noqa: S108
    "another scheme": ("ftp://a/lake", "ftp:// is not a store", "ftp:// is not a store"),
    "nothing there": ("{folder}/none", "is not a lake", ""),
}


@pytest.mark.parametrize(("place", "read", "made"), NO_PLACES.values(), ids=NO_PLACES)
def test_a_place_where_no_lake_can_be_is_said_in_one_sentence(
    place: str, read: str, made: str, tmp_path: Path, lake_copy: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    path = place.format(file=file, folder=tmp_path)
    for words in (
        ("verify",),
        ("tx", "explain", "0-0"),
        ("dead", "list"),
        ("schedule", "list"),
        ("replay", "--verify"),
        ("replay", "--what-if", "check_max=1"),
        ("replay", "--into", str(tmp_path / "new")),
    ):
        said = refusal(*words, "--lake", path)
        assert (read in said, len(said.splitlines())) == (True, 1), (words, said)
    with pytest.raises(ConsumersLakeError) as refused:
        consume(Path(path)) if "://" not in path else _consume(path)
    assert "\n" not in str(refused.value)
    if made:
        said = refusal("replay", "--lake", str(lake_copy), "--into", path)
        assert (made in said, len(said.splitlines())) == (True, 1), said


def _consume(path: str) -> None:
    from txlake import Consumer

    Consumer(path, "points", ["orders"])


@pytest.mark.parametrize(
    ("place", "made"),
    [(p, made) for p, _, made in NO_PLACES.values() if made],
    ids=[name for name, (_, _, made) in NO_PLACES.items() if made],
)
def test_a_job_refuses_such_a_place_before_it_starts_a_jvm(
    place: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.job.driver.start_session", None)
    file = tmp_path / "file"
    file.write_text("")
    path = place.format(file=file, folder=tmp_path)
    kafka = {"bootstrap_servers": "127.0.0.1:1"}
    with pytest.raises(LakeError, match=made) as refused:
        Driver(parse({"lake": {"path": path}, "kafka": kafka}, "test")).run()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["removed", "emptied", "without a file"])
def test_a_job_whose_table_lake_is_lost_starts_no_jvm(
    kind: str, damaged: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.job.driver.start_session", None)
    path = damaged("lake", kind)
    kafka = {"bootstrap_servers": "127.0.0.1:1"}
    with pytest.raises(LakeError, match="the table lake "):
        Driver(parse({"lake": {"path": str(path)}, "kafka": kafka}, "test")).run()
    assert not (path / "_driver.lock").exists()


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _emptied(_: bytes) -> bytes:
    return b""


def _zeroed(data: bytes) -> bytes:
    return bytes(len(data))


def _checkpointed(table: Path) -> Path:
    DeltaTable(str(table)).create_checkpoint()
    return next((table / "_delta_log").glob("*.checkpoint.parquet"))


# What of a table is damaged.
FILES: dict[str, Callable[[Path], Path]] = {
    "its data": damage.live_file,
    "its last log entry": lambda table: damage.log_entries(table)[-1],
    "its first log entry": lambda table: damage.log_entries(table)[0],
    "its checkpoint": _checkpointed,
}
DAMAGES = {"cut": _cut, "emptied": _emptied, "zeroed": _zeroed}
WAYS = {
    f"{of} is {how}": (of, how)
    for of in FILES
    for how in DAMAGES
    if (of, how) != ("its data", "zeroed")
}
# To delta-rs an entry without a line is one that changed nothing: the commit of the last epoch is
# lost, as in test_an_epoch_whose_commit_is_lost_is_one_that_was_not_committed_yet.
LEGAL = ("epochs", "its last log entry is emptied")
CASES = crossing(
    ("half", "epochs", "lake", ORDERS),
    tuple(WAYS),
    whole=["epochs"],
    without=lambda pair: pair == LEGAL,
)


@pytest.mark.parametrize("table", ["half", "pending", "lake", ORDERS])
def test_a_data_file_of_its_own_size_is_found_by_who_reads_it(table: str, lake_copy: Path) -> None:
    file = damage.live_file(lake_copy / table)
    file.write_bytes(_zeroed(file.read_bytes()))
    code, said = txlake("verify", "--lake", str(lake_copy))
    assert (code, f"table={table}: " in said) == (3, True), said
    if table in ("pending", "lake"):
        with pytest.raises(LakeError, match=f"the table {table} of .* cannot be read: "):
            start(lake_copy)
        assert f"the table {table} " in refusal("tx", "explain", "silent", "--lake", str(lake_copy))
    if table in (ORDERS, "lake"):
        with pytest.raises(ConsumersLakeError, match=f"the table {table} cannot be read: "):
            consume(lake_copy)


@pytest.mark.parametrize(("table", "way"), CASES)
def test_a_damaged_file_is_one_sentence_that_names_its_table(
    table: str,
    way: str,
    lake_copy: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, how = WAYS[way]
    if how != "cut":  # that verify goes on to the end is looked at once for each file
        look_at_the_tables_alone(monkeypatch)
    file = FILES[of](lake_copy / table)
    file.write_bytes(DAMAGES[how](file.read_bytes()))
    for words in (("tx", "explain", TRANSACTION), ("dead", "list")):
        if (table, words[0]) == (ORDERS, "dead"):
            continue  # it does not read it
        said = refusal(*words, "--lake", str(lake_copy))
        assert f"the table {table} " in said
        assert len(said.splitlines()) == 1
    code, said = txlake("verify", "--lake", str(lake_copy))
    assert code == 3, said
    assert f"table={table}: " in said
    with pytest.raises(LakeError, match=f"the table {table} "):
        start(lake_copy)
    if table != "half":
        with pytest.raises(ConsumersLakeError, match=f"the table ({table}|lake) "):
            consume(lake_copy)
    assert "".join(capfd.readouterr()) == ""


class TestFlippedBytes:
    """A byte here or there: what comes of it is an answer or one sentence."""

    @pytest.fixture
    def flips(self) -> Callable[[bytes, int], Iterator[bytes]]:
        def give(data: bytes, count: int) -> Iterator[bytes]:
            chance = random.Random(1)
            for _ in range(count):
                changed = bytearray(data)
                changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                yield bytes(changed)

        return give

    @pytest.mark.parametrize("table", ["half", "epochs", ORDERS])
    def test_of_a_checkpoint_nothing_is_printed_but_the_sentence(
        self,
        table: str,
        lake_copy: Path,
        flips: Callable[[bytes, int], Iterator[bytes]],
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        file = _checkpointed(lake_copy / table)
        refused = 0
        for data in flips(file.read_bytes(), 100):
            file.write_bytes(data)
            refused += 1
            with suppress(BrokenLakeError):
                Lake(str(lake_copy)).table(table).files()
                refused -= 1
        assert refused > 25
        assert "".join(capfd.readouterr()) == ""

    @pytest.mark.parametrize("of", ["its data", "its last log entry"])
    @pytest.mark.parametrize("table", ["half", "outcomes", "epochs"])
    def test_of_a_file_no_command_prints_a_traceback(
        self,
        table: str,
        of: str,
        lake_copy: Path,
        flips: Callable[[bytes, int], Iterator[bytes]],
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        file = FILES[of](lake_copy / table)
        for data in flips(file.read_bytes(), 12):
            file.write_bytes(data)
            code, said = txlake("tx", "explain", TRANSACTION, "--lake", str(lake_copy))
            assert code in (0, 1), said
            assert code == 0 or len(said.splitlines()) == 1, said
        assert "".join(capfd.readouterr()) == ""


def test_a_lake_that_is_being_made_is_finished_by_the_next_start(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    for table in ("half", "op"):
        lake.create_table(table)
    lake.check()
    shutil.rmtree(tmp_path / "lake" / "op")
    Lake(str(tmp_path / "lake")).check()

"""A snapshot that a reader keeps up to date is that of a new reader, whatever was written.

Entries in which the driver has appended are read by the SDK; all others are read by delta-rs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from storage.lake.lake import Lake
from tests.support.owned_rows import NOW, rows
from txlake._delta_files import DeltaFiles
from txlake._delta_handle import DeltaHandle
from txlake._delta_log import appended_files, driver_id, entry_name
from txlake.errors import LakeError

TABLE = "conflicts"
APP_ID = driver_id("this-lake")


class Writers:
    """A driver, and others, that write one table; each call is of an epoch of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.uri = f"{path}/{TABLE}"
        self.driver = Lake(path, is_driver=True)
        self.epoch = 0

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.epoch += 1
            self.driver.append(TABLE, rows(self.epoch), self.epoch)

    def append_as(self, *names: str) -> None:
        self.epoch += 1
        transactions = [Transaction(name, self.epoch) for name in names]
        write_deltalake(
            self.uri,
            rows(self.epoch),
            mode="append",
            commit_properties=CommitProperties(app_transactions=transactions),
        )

    def overwrite(self) -> None:
        write_deltalake(self.uri, rows(self.epoch), mode="overwrite")

    def compact(self) -> None:
        DeltaTable(self.uri).optimize.compact()

    def delete(self) -> None:
        DeltaTable(self.uri).delete(f"epoch = {self.epoch}")

    def set_property(self) -> None:
        DeltaTable(self.uri).alter.set_table_properties({"delta.checkpointInterval": "7"})

    def clean_up(self) -> None:
        """Deletes the log up to a checkpoint."""
        table = DeltaTable(self.uri)
        table.create_checkpoint()
        for version in range(table.version()):
            Path(self.uri, "_delta_log", entry_name(version)).unlink(missing_ok=True)

    def remake(self) -> None:
        shutil.rmtree(self.path)
        Lake(self.path).create(NOW)
        self.driver = Lake(self.path, is_driver=True)
        self.append()


WRITTEN: dict[str, Callable[[Writers], None]] = {
    "nothing": lambda writers: None,
    "an append": Writers.append,
    "appends": lambda writers: writers.append(3),
    "another writer's append": Writers.append_as,
    "an append under another name": lambda writers: writers.append_as("txlake-floor/1"),
    "an append under two names": lambda writers: writers.append_as(
        driver_id(writers.driver.lake_id()), "txlake-floor/1"
    ),
    "an overwrite": Writers.overwrite,
    "a merge": Writers.compact,
    "a deletion": Writers.delete,
    "a property": Writers.set_property,
    "a clean-up of the log": Writers.clean_up,
    "another table": Writers.remake,
}


@pytest.fixture
def writers(tmp_path: Path) -> Writers:
    Lake(str(tmp_path / "lake")).create(NOW)
    writers = Writers(str(tmp_path / "lake"))
    writers.append(3)
    return writers


def snapshot(writers: Writers) -> DeltaFiles:
    files = DeltaFiles(writers.uri, None, ("epoch", "queue_id"))
    files.refresh()
    return files


def content(files: DeltaFiles) -> list[dict[str, Any]]:
    return sorted(
        files.dataset(files.files).to_table(["epoch", "reason"]).to_pylist(),
        key=lambda row: row["epoch"],
    )


@pytest.mark.parametrize("after", ["nothing", "an append"])
@pytest.mark.parametrize("before", ["nothing", "an append"])
@pytest.mark.parametrize("written", WRITTEN)
def test_a_kept_snapshot_is_that_of_a_new_reader(
    writers: Writers, before: str, written: str, after: str
) -> None:
    kept = snapshot(writers)
    for step in (before, written, after):
        version, content_before = kept.version, content(kept)
        WRITTEN[step](writers)
        is_new = kept.refresh()

        new = snapshot(writers)
        assert kept.files == new.files
        assert kept.version == new.version
        assert kept.as_table().sort_by("path").equals(new.as_table().sort_by("path"))
        assert content(kept) == content(new)
        assert is_new or (version, content_before) == (new.version, content(new))
        assert not kept.refresh()
        assert kept.missing_file() is None


def test_all_that_was_written_meanwhile_is_read_at_once(writers: Writers) -> None:
    kept = snapshot(writers)
    for step in WRITTEN:
        if step != "another table":  # at a version below, it is another reader's
            WRITTEN[step](writers)

    assert kept.refresh()
    assert kept.files == snapshot(writers).files


def test_appends_of_the_driver_are_read_without_delta_rs(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = snapshot(writers)
    with monkeypatch.context() as alone:
        alone.setattr(DeltaHandle, "newest", None)
        for count in (1, 4):
            writers.append(count)
            assert kept.refresh()
            assert not kept.refresh()

    assert kept.files == snapshot(writers).files
    assert len(kept.files) == 3 + 5
    assert list(kept.files) == list(snapshot(writers).files)


def test_an_entry_of_a_reader_that_is_too_new_is_refused(writers: Writers) -> None:
    kept = snapshot(writers)
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    entry = Path(writers.uri, "_delta_log", entry_name(kept.version + 1))
    entry.write_text(json.dumps(protocol))

    with pytest.raises(LakeError, match="Delta reader version 2, this SDK reads 1"):
        kept.refresh()


def entry(**changes: Any) -> list[dict[str, Any]]:
    """Returns the actions of an append; `changes`: of the file that it adds."""
    bounds = {"epoch": 7, "queue_id": 0}
    stats = {"numRecords": 2, "minValues": bounds, "maxValues": bounds, "nullCount": {}}
    add = {
        "path": "a%20b.parquet",
        "partitionValues": {},
        "size": 100,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    return [
        {"commitInfo": {"operation": "WRITE"}},
        {"txn": {"appId": APP_ID, "version": 7}},
        {"add": {**add, **changes}},
    ]


def written_entry(folder: Path, text: str) -> str:
    log = folder / "_delta_log"
    log.mkdir()
    (log / entry_name(1)).write_text(text)
    return str(folder)


def as_text(actions: list[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, actions))


def test_an_append_gives_its_files(tmp_path: Path) -> None:
    folder = written_entry(tmp_path, as_text(entry()))

    (file,) = appended_files(folder, 1, APP_ID, ["epoch"]) or []
    assert (file.path, file.size_bytes, file.row_count) == ("a b.parquet", 100, 2)
    assert (file.min_values, file.max_values) == ({"epoch": 7}, {"epoch": 7})


NO_BOUNDS = json.dumps({"numRecords": 2})
TEXT_BOUNDS = json.dumps(
    {"numRecords": 2, "minValues": {"epoch": "a"}, "maxValues": {"epoch": "b"}}
)
NOT_PLAIN = {
    "there is no entry": None,
    "no action": "",
    "half an entry": as_text(entry())[:-20],
    "zeroed": "\0" * 200,
    "not a list of actions": "[1]\n[2]",
    "a number": "7",
    "another name": as_text(entry()).replace(APP_ID, f"{APP_ID}-2"),
    "no name": as_text([entry()[0], entry()[2]]),
    "two names": as_text([entry()[1], *entry()]),
    "a removed file": as_text([*entry(), {"remove": {"path": "c.parquet"}}]),
    "another schema": as_text([*entry(), {"metaData": {"id": "1"}}]),
    "another protocol": as_text([*entry(), {"protocol": {"minReaderVersion": 3}}]),
    "an action of a later version": as_text([*entry(), {"domainMetadata": {}}]),
    "two actions in a line": as_text([*entry()[:2], {**entry()[2], "remove": {}}]),
    "a name that is a list": as_text([entry()[0], {"txn": {"appId": [APP_ID]}}, entry()[2]]),
    "a deletion vector": as_text(entry(deletionVector={"storageType": "u"})),
    "a partition": as_text(entry(partitionValues={"day": "1"})),
    "no statistics": as_text(entry(stats=None)),
    "no bounds": as_text(entry(stats=NO_BOUNDS)),
    "bounds that are no numbers": as_text(entry(stats=TEXT_BOUNDS)),
    "a size that is no number": as_text(entry(size="100")),
    "no size": as_text(entry(size=None)),
    "brackets without an end": "[" * 100_000,
}


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_what_is_no_plain_append_is_left_to_delta_rs(kind: str, tmp_path: Path) -> None:
    text = NOT_PLAIN[kind]
    folder = str(tmp_path) if text is None else written_entry(tmp_path, text)
    assert appended_files(folder, 1, APP_ID, ["epoch"]) is None

"""The driver of a lake on a store: two requests a commit, and each epoch is in a table once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from pipelines.local_store.store import Store
from storage.errors import OwnerError
from storage.files.data_files import new_name, write_file
from storage.files.location import LakeLocation, lake_location
from storage.lake.epoch_log import write_commit, write_plan
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.schemas import HALF
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import DATA, LIST, LOG, CutBefore, Fault, LostAnswer
from tests.support.owned_rows import NOW, plan, reasons, rows
from tests.support.store import make_bucket
from txlake._delta_files import DeltaFiles


@pytest.fixture
def location(store: Store, proxy: FaultProxy, unique: Callable[[str], str]) -> LakeLocation:
    """A new lake behind the proxy."""
    bucket = replace(make_bucket(store, unique("once")), endpoint=proxy.endpoint)
    location = lake_location(f"{bucket.uri}/lake", bucket.options)
    Lake(location).create(NOW)
    return location


@pytest.fixture
def driver(location: LakeLocation) -> Lake:
    return Lake(location, is_driver=True)


def test_a_commit_is_one_file_and_one_entry(
    location: LakeLocation, driver: Lake, proxy: FaultProxy
) -> None:
    driver.append("conflicts", rows(1), 1)
    before = proxy.traffic()
    driver.append("conflicts", rows(2), 2)
    assert proxy.traffic().since(before).requests == {("PUT", DATA): 1, ("PUT", LOG): 1}
    assert reasons(location) == {1: ["first"], 2: ["first"]}
    assert Lake(location).has_epoch("conflicts", 2)


def test_files_of_tasks_are_one_entry_after_a_look_whether_they_are_there(
    location: LakeLocation, driver: Lake, proxy: FaultProxy
) -> None:
    def land(epoch: int) -> None:
        halves = [{"queue_id": 0, "queue_offset": epoch, "epoch": epoch}]
        written = pa.Table.from_pylist(halves, schema=HALF)
        files = [write_file(location, "half", new_name(epoch), written)]
        before = proxy.traffic()
        assert driver.add_files("half", files, epoch) == 1
        seen.append(proxy.traffic().since(before).requests)

    seen: list[object] = []
    land(1)
    land(2)
    assert seen[1] == {("HEAD", DATA): 1, ("PUT", LOG): 1}
    assert sorted(Lake(location).read("half")["epoch"].to_pylist()) == [1, 2]


def test_the_driver_knows_its_files_as_a_reader_of_the_log_does(
    location: LakeLocation, driver: Lake, proxy: FaultProxy
) -> None:
    for epoch in (1, 2, 3):
        driver.append("conflicts", rows(epoch), epoch)
    before = proxy.traffic()
    ours = driver.table("conflicts").files().sort_by("path").drop_columns("modification_time")
    assert not proxy.traffic().since(before).requests
    theirs = Lake(location).table("conflicts").files()
    assert ours.to_pylist() == theirs.sort_by("path").select(ours.column_names).to_pylist()
    assert driver.table("conflicts").version() == driver.handle("conflicts").version()


def test_a_small_file_is_read_once(driver: Lake, proxy: FaultProxy) -> None:
    driver.append("conflicts", rows(1), 1)
    before = proxy.traffic()
    first, second = driver.read("conflicts"), driver.read("conflicts")
    assert first == second
    assert first.num_rows == 1
    assert proxy.traffic().since(before).requests == {("GET", DATA): 1}


def test_of_two_drivers_at_one_version_one_writes_an_epoch(
    location: LakeLocation, driver: Lake
) -> None:
    other = Lake(location, is_driver=True)
    for lake in (driver, other):
        assert not lake.has_epoch("conflicts", 1)
    assert driver.append("conflicts", rows(1), 1) == 1
    assert other.append("conflicts", rows(1, "zombie"), 1) == 0
    assert other.append("conflicts", rows(2, "other"), 2) == 1
    assert reasons(location) == {1: ["first"], 2: ["other"]}


def test_an_entry_whose_answer_is_lost_is_written_once(
    location: LakeLocation, driver: Lake, proxy: FaultProxy
) -> None:
    driver.append("conflicts", rows(1), 1)
    lost = Fault(LostAnswer(), method="PUT", key=r"conflicts/_delta_log/\d+\.json$", times=1)
    with proxy.fault(lost) as happening:
        assert driver.append("conflicts", rows(2), 2) == 0
        assert happening.hits == 1
    assert driver.append("conflicts", rows(3), 3) == 1
    assert reasons(location) == {1: ["first"], 2: ["first"], 3: ["first"]}


def test_an_entry_that_was_not_written_is_written_by_delta_rs(
    location: LakeLocation, driver: Lake, proxy: FaultProxy
) -> None:
    driver.append("conflicts", rows(1), 1)
    cut = Fault(CutBefore(), method="PUT", key=r"conflicts/_delta_log/\d+\.json$", times=1)
    with proxy.fault(cut) as happening:
        driver.append("conflicts", rows(2), 2)
        assert happening.hits == 1
    assert reasons(location) == {1: ["first"], 2: ["first"]}


@pytest.mark.parametrize("state", ["planned", "committed"])
def test_a_driver_that_slept_until_the_log_was_cleaned_up_plans_and_commits_nothing(
    location: LakeLocation, driver: Lake, state: str
) -> None:
    asleep = write_plan(driver, read_progress(driver), plan(1, "asleep"))
    if state == "planned":
        asleep = write_commit(driver, asleep, plan(1, "asleep"), {}, {}, {})

    awake = Lake(location, is_driver=True)
    progress = read_progress(awake)
    if state == "committed":
        progress = write_commit(awake, progress, plan(1, "asleep"), {}, {"checks": 1}, {})
    for epoch in (2, 3):
        progress = write_plan(awake, progress, plan(epoch, "awake"))
        progress = write_commit(awake, progress, plan(epoch, "awake"), {}, {}, {})

    newest = awake.handle("epochs")
    newest.create_checkpoint()
    entries = location.filesystem("epochs/_delta_log")
    for version in range(newest.version()):
        entries.delete_file(f"{version:020}.json")
    with pytest.raises(OwnerError, match="another driver writes this lake; this one stops"):
        if state == "planned":
            write_plan(driver, asleep, plan(2, "asleep"))
        else:
            write_commit(driver, asleep, plan(1, "asleep"), {}, {}, {})
    told = Lake(location).read("epochs").to_pylist()
    assert sorted((row["epoch"], row["state"]) for row in told) == [
        (epoch, state) for epoch in (1, 2, 3) for state in ("committed", "planned")
    ]
    assert {row["owner"] for row in told if row["epoch"] > 1} == {"awake"}


def test_with_an_option_that_was_not_tried_the_log_is_left_to_delta_rs(
    location: LakeLocation, proxy: FaultProxy
) -> None:
    unknown = replace(location, options={**location.options, "AWS_CONNECT_TIMEOUT": "10s"})
    lake = Lake(unknown, is_driver=True)
    lake.append("conflicts", rows(1), 1)
    before = proxy.traffic()
    lake.append("conflicts", rows(2), 2)
    assert proxy.traffic().since(before).requests["GET", LIST] >= 1
    assert reasons(location) == {1: ["first"], 2: ["first"]}


@pytest.mark.parametrize("reader", ["the job", "the SDK"])
def test_a_log_of_many_entries_leaves_few_connections_open(
    location: LakeLocation, driver: Lake, reader: str
) -> None:
    for epoch in range(1, 61):
        driver.append("conflicts", rows(epoch), epoch)
    before = open_files()
    if reader == "the job":
        kept: object = Lake(location).handle("conflicts")
    else:
        kept = DeltaFiles(location.table_path("conflicts"), location.options)
        assert kept.refresh()
    assert open_files() - before < 20, kept


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))

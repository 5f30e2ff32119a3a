"""An epoch's rows come into a table once, whoever writes them, however often and however late."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from storage.errors import OwnerError
from storage.lake import lake as lakes
from storage.lake.epoch_log import write_commit, write_plan
from storage.lake.lake import Lake
from storage.lake.progress import NO_PROGRESS, read_progress
from tests.support.owned_rows import NOW, plan, reasons, rows


@pytest.fixture
def path(tmp_path: Path) -> str:
    Lake(str(tmp_path / "lake")).create(NOW)
    return str(tmp_path / "lake")


@pytest.fixture(params=["by delta-rs", "by entries of its own"])
def is_driver(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "by entries of its own")


def test_second_append_of_an_epoch_adds_nothing_and_says_so(path: str, is_driver: bool) -> None:
    lake = Lake(path, is_driver=is_driver)
    added = [lake.append("conflicts", rows(1, reason), 1) for reason in ("first", "again")]
    assert added == [1, 0]
    assert reasons(path) == {1: ["first"]}


def test_another_handle_at_the_same_version_is_refused_by_delta_itself(path: str) -> None:
    one, two = Lake(path), Lake(path)
    stale = two.handle("conflicts")
    two.table("conflicts").handle = lambda: stale  # type: ignore[method-assign]  # nothing new
    assert one.append("conflicts", rows(1), 1) == 1
    with pytest.raises(CommitFailedError, match="Concurrent transaction failed"):
        two.append("conflicts", rows(1, "zombie"), 1)
    assert reasons(path) == {1: ["first"]}


@pytest.mark.parametrize("meanwhile", ["nothing", "other epochs", "a checkpoint", "both"])
@pytest.mark.parametrize("epoch", [5, 7])
def test_driver_that_wakes_up_late_writes_nothing(
    path: str, meanwhile: str, epoch: int, is_driver: bool
) -> None:
    awake, asleep = (Lake(path, is_driver=is_driver) for _ in range(2))
    for past in range(1, epoch):
        assert asleep.append("conflicts", rows(past), past) == 1
    assert awake.append("conflicts", rows(epoch), epoch) == 1
    if meanwhile in ("other epochs", "both"):
        for later in range(epoch + 1, epoch + 4):
            awake.append("conflicts", rows(later), later)
    if meanwhile in ("a checkpoint", "both"):
        DeltaTable(awake.table_path("conflicts")).create_checkpoint()
    assert not asleep.append("conflicts", rows(epoch, "zombie"), epoch)
    assert asleep.has_epoch("conflicts", epoch)
    assert {tuple(found) for found in reasons(path).values()} == {("first",)}


def test_of_many_writers_of_every_epoch_one_succeeds(path: str, is_driver: bool) -> None:
    epochs, writers = 12, 4
    gate = threading.Barrier(writers)
    added: list[int] = []

    def write(name: str) -> None:
        lake = Lake(path, is_driver=is_driver)
        for epoch in range(1, epochs + 1):
            gate.wait()
            if lake.append("conflicts", rows(epoch, name), epoch):
                added.append(epoch)

    threads = [threading.Thread(target=write, args=(f"writer {n}",)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(added) == list(range(1, epochs + 1))
    assert {epoch: len(found) for epoch, found in reasons(path).items()} == dict.fromkeys(added, 1)


def test_commit_that_another_change_of_the_table_refused_is_made_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(path)
    tries = 0

    def write(handle: DeltaTable, *args: Any, **values: Any) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:  # as maintenance does
            wanted = {"delta.logRetentionDuration": f"interval {tries} days"}
            DeltaTable(handle.table_uri).alter.set_table_properties(wanted)
        write_deltalake(handle, *args, **values)

    monkeypatch.setattr(lakes, "write_deltalake", write)
    assert lake.append("conflicts", rows(1), 1) == 1
    assert (tries, reasons(path)) == (3, {1: ["first"]})


def test_commit_whose_answer_was_lost_is_not_made_twice(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*args: Any, **values: Any) -> None:
        write_deltalake(*args, **values)
        monkeypatch.setattr(lakes, "write_deltalake", write_deltalake)
        raise CommitFailedError("the store said 412 to its own file")

    monkeypatch.setattr(lakes, "write_deltalake", write)
    assert Lake(path).append("conflicts", rows(1), 1) == 0
    assert reasons(path) == {1: ["first"]}


def test_of_two_drivers_that_plan_an_epoch_the_second_stops(path: str, is_driver: bool) -> None:
    first, second = (Lake(path, is_driver=is_driver) for _ in range(2))
    write_plan(first, NO_PROGRESS, plan(1, "one"))

    with pytest.raises(OwnerError, match=r"^epoch 1 was planned by one: another driver writes"):
        write_plan(second, NO_PROGRESS, plan(1, "two"))
    assert Lake(path).read("epochs")["owner"].to_pylist() == ["one"]


def test_of_two_drivers_that_commit_an_epoch_the_second_stops(path: str, is_driver: bool) -> None:
    first, second = (Lake(path, is_driver=is_driver) for _ in range(2))
    planned = write_plan(first, NO_PROGRESS, plan(1, "one"))
    write_commit(second, read_progress(second), plan(1, "two"), {}, {}, {})

    with pytest.raises(OwnerError, match=r"^epoch 1 was committed by two: another driver writes"):
        write_commit(first, planned, plan(1, "one"), {}, {"checks": 1}, {})
    assert Lake(path).read("epochs")["state"].to_pylist().count("committed") == 1


def test_planned_row_whose_answer_was_lost_is_ones_own(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*args: Any, **values: Any) -> None:
        write_deltalake(*args, **values)
        monkeypatch.setattr(lakes, "write_deltalake", write_deltalake)
        raise CommitFailedError("the store said 412 to its own file")

    lake = Lake(path)
    monkeypatch.setattr(lakes, "write_deltalake", write)
    planned = write_plan(lake, NO_PROGRESS, plan(1, "one"))
    write_commit(lake, planned, plan(1, "one"), {}, {}, {})
    assert Lake(path).read("epochs").num_rows == 2

"""Every commit of a consumer group is a compare-and-set on the version that was read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support.counted_queue import CountedQueue
from tests.support.wait import DEADLINE_S
from txlake import GroupBusyError, StaleGenerationError
from txlake._consumer_offsets import Commit, ConsumerOffsets, Key, OwnerSessions
from txlake._ownership import Ownership

KEY = ("points", "orders", 0)
QUEUE = ("orders", 0)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "consumer_offsets")


def count_up(newest: Mapping[Key, Commit], now: datetime) -> Iterable[Commit]:
    """Read, add one, write: loses an increment as soon as one write is not a compare-and-set."""
    row = newest.get(KEY)
    value = 0 if row is None else row.queue_offset or 0
    return [Commit(*KEY, value + 1, 1, "owner", now)]


def ownership(uri: str, owner: str, session_timeout_ms: int = 60_000) -> Ownership:
    return Ownership(uri, None, "points", owner, session_timeout_ms)


def test_a_write_on_a_version_that_is_no_longer_the_newest_is_decided_again(uri: str) -> None:
    one, two = ConsumerOffsets(uri), ConsumerOffsets(uri)
    one.write(count_up)
    seen = []

    def decide(newest: Mapping[Key, Commit], now: datetime) -> Iterable[Commit]:
        seen.append(newest[KEY].queue_offset)
        if len(seen) == 1:
            two.write(count_up)  # comes in between reading and writing
        return count_up(newest, now)

    one.write(decide)
    assert seen == [1, 2]
    assert two.newest()[KEY].queue_offset == 3


def test_threads_that_count_together_lose_nothing(uri: str) -> None:
    def work() -> None:
        offsets = ConsumerOffsets(uri)
        for _ in range(15):
            offsets.write(count_up)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ConsumerOffsets(uri).newest()[KEY].queue_offset == 45


def test_processes_that_count_together_lose_nothing(uri: str) -> None:
    program = (
        "import sys; from txlake._consumer_offsets import Commit, ConsumerOffsets\n"
        "key = ('points', 'orders', 0)\n"
        "def count_up(newest, now):\n"
        "    row = newest.get(key)\n"
        "    return [Commit(*key, (row.queue_offset if row else 0) + 1, 1, 'owner', now)]\n"
        "offsets = ConsumerOffsets(sys.argv[1])\n"
        "for _ in range(20): offsets.write(count_up)\n"
    )
    command = [sys.executable, "-c", program, uri]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(DEADLINE_S) for process in processes] == [0, 0]
    assert ConsumerOffsets(uri).newest()[KEY].queue_offset == 40


def test_the_newest_row_is_of_the_largest_generation_then_the_latest() -> None:
    early, late = (datetime(2026, 1, day, tzinfo=timezone.utc) for day in (1, 2))
    row = Commit(*KEY, 5, 2, "owner", early)
    assert row.is_newer_than(None)
    assert row.is_newer_than(Commit(*KEY, 9, 1, "owner", late))
    assert Commit(*KEY, 4, 2, "owner", late).is_newer_than(row)
    assert not row.is_newer_than(row)


def test_commits_of_one_generation_keep_their_order_when_the_clock_steps_back(uri: str) -> None:
    offsets = ConsumerOffsets(uri)
    late = datetime(2100, 1, 1, tzinfo=timezone.utc)
    offsets.write(lambda _newest, _now: [Commit(*KEY, 1, 1, "owner", late)])
    offsets.write(count_up)
    assert ConsumerOffsets(uri).newest()[KEY].queue_offset == 2


def test_a_free_queue_is_taken_with_the_next_generation(uri: str) -> None:
    first = ownership(uri, "first")
    assert first.take([QUEUE], 0.0) == {QUEUE: None}
    first.commit({QUEUE: 7})
    first.release()
    second = ownership(uri, "second")
    assert second.take([QUEUE], 0.0) == {QUEUE: 7}
    row = ConsumerOffsets(uri).newest()[KEY]
    assert (row.generation, row.owner, row.queue_offset) == (2, "second", 7)


def test_of_two_that_take_a_queue_at_once_one_is_told(uri: str) -> None:
    barrier, busy = threading.Barrier(2), []

    def take(owner: str) -> None:
        mine = ownership(uri, owner)
        barrier.wait()
        try:
            mine.take([QUEUE], 0.0)
        except GroupBusyError as error:
            busy.append(str(error))

    threads = [threading.Thread(target=take, args=(owner,)) for owner in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(busy) == 1
    assert ConsumerOffsets(uri).newest()[KEY].owner in busy[0]


def test_either_all_queues_are_taken_or_none(uri: str) -> None:
    ownership(uri, "first").take([("orders", 1)], 0.0)
    with pytest.raises(GroupBusyError, match="queue 1: first owns it"):
        ownership(uri, "second").take([("orders", 0), ("orders", 1)], 0.0)
    assert KEY not in ConsumerOffsets(uri).newest()


class CountedRows(dict[Any, Commit]):
    """Rows that count how often all of them are gone through."""

    def __init__(self, rows: Mapping[Any, Commit]) -> None:
        super().__init__(rows)
        self.rounds = 0

    def values(self) -> Any:
        self.rounds += 1
        return super().values()


def test_all_rows_are_gone_through_once_for_many_queues(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [("orders", queue_id) for queue_id in range(50)]
    seen: list[CountedRows] = []

    def decided(
        table: ConsumerOffsets, decide: Callable[[Mapping[Any, Commit], datetime], list[Commit]]
    ) -> list[Commit]:
        seen.append(CountedRows(table.newest()))
        return decide(seen[-1], datetime.now(timezone.utc))

    monkeypatch.setattr(ConsumerOffsets, "write", decided)
    assert len(ownership(uri, "one").take(queues, 0.0)) == 50
    assert len(ownership(uri, "two").take_free(queues)) == 50
    assert [rows.rounds for rows in seen] == [1, 1]


def test_queues_are_given_back_without_comparing_each_with_all(uri: str) -> None:
    queues = [("orders", queue_id) for queue_id in range(100)]
    one = ownership(uri, "one")
    one.take(queues, 0.0)
    CountedQueue.compared = 0
    one.release([CountedQueue(queue) for queue in queues[:50]])
    assert CountedQueue.compared <= 50
    assert sorted(one.generations()) == queues[50:]


def test_any_row_of_an_owner_proves_that_it_lives() -> None:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def row(queue_id: int, owner: str, seconds: int, session_ms: int | None = None) -> Commit:
        since = at + timedelta(seconds=seconds)
        return Commit("g", "orders", queue_id, 1, 1, owner, since, session_ms)

    rows = [row(0, "a", 0), row(1, "a", 9), row(2, "b", 0, 500), row(3, "", 5)]
    sessions = OwnerSessions(rows, 1_000)
    assert [sessions.held_until(each) for each in rows] == [
        at + timedelta(seconds=10),
        at + timedelta(seconds=10),
        at + timedelta(milliseconds=500),
        None,
    ]


def test_a_stale_generation_can_neither_commit_nor_beat_nor_release(uri: str) -> None:
    old = ownership(uri, "old", session_timeout_ms=1)
    old.take([QUEUE], 0.0)
    new = ownership(uri, "new", session_timeout_ms=1)
    new.take([QUEUE], DEADLINE_S)
    with pytest.raises(StaleGenerationError, match=r"generation 1 of old is over.*generation 2"):
        old.commit({QUEUE: 3})
    time.sleep(0.002)  # twice the session: a sign of life is due
    with pytest.raises(StaleGenerationError):
        old.heartbeat()
    old.release()
    assert ConsumerOffsets(uri).newest()[KEY].owner == "new"


def test_a_restart_of_the_same_owner_does_not_revive_its_generation(uri: str) -> None:
    one = ownership(uri, "same")
    one.take([QUEUE], 0.0)
    held = dict(one._rows)
    one.release()
    again = ownership(uri, "same")
    again.take([QUEUE], 0.0)
    one._rows.update(held)
    with pytest.raises(StaleGenerationError):
        one.commit({QUEUE: 1})


@pytest.mark.parametrize("what", ["", "_delta_log"])
@pytest.mark.parametrize("how", ["commit", "beat", "release"])
def test_rows_of_a_running_consumer_come_back_in_a_table_that_was_deleted(
    uri: str, how: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = ("orders", 1)
    one = ownership(uri, "one", session_timeout_ms=1)
    one.take([QUEUE, other], 0.0)
    one.commit({QUEUE: 7, other: 5})
    shutil.rmtree(Path(uri, what))
    if how == "commit":
        one.commit({QUEUE: 8, other: 5})
    elif how == "release":
        one.release()
    else:
        time.sleep(0.002)  # twice the session: a sign of life is due
        one.heartbeat()

    found = ConsumerOffsets(uri).newest()

    owner = "" if how == "release" else "one"
    assert {key: (row.queue_offset, row.generation, row.owner) for key, row in found.items()} == {
        ("points", *QUEUE): (8 if how == "commit" else 7, 1, owner),
        ("points", *other): (5, 1, owner),
    }
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{uri} was deleted" in caplog.text


def test_a_queue_that_another_took_in_the_new_table_is_stale(uri: str) -> None:
    one = ownership(uri, "one")
    one.take([QUEUE], 0.0)
    one.commit({QUEUE: 7})
    shutil.rmtree(uri)
    ownership(uri, "two").take([QUEUE], 0.0)
    with pytest.raises(StaleGenerationError, match=r"generation 1 of one is .* 1 of two"):
        one.commit({QUEUE: 8})
    one.release()
    assert ConsumerOffsets(uri).newest()[KEY].owner == "two"


def test_hundreds_of_commits_leave_a_small_table_and_stay_fast(uri: str) -> None:
    offsets = ConsumerOffsets(uri)
    offsets.write(lambda _newest, now: [Commit("other", "orders", 0, 11, 4, "him", now)])
    times = []
    for _ in range(300):
        started = time.process_time()  # other processes can need the processor meanwhile
        offsets.write(count_up)
        times.append(time.process_time() - started)
    offsets.newest()
    assert len(offsets._files.files) <= 50
    early, late = sorted(times[20:70])[25], sorted(times[-50:])[25]
    assert late < 5 * early, f"a commit took {early * 1000:.1f} ms, then {late * 1000:.1f} ms"
    fresh = ConsumerOffsets(uri).newest()
    assert fresh[KEY].queue_offset == 300
    assert fresh["other", "orders", 0].queue_offset == 11


def test_a_compaction_deletes_old_files_that_the_log_has_forgotten(uri: str) -> None:
    offsets = ConsumerOffsets(uri)
    offsets.write(count_up)
    (first,) = Path(uri).glob("*.parquet")
    old, young = Path(uri, "part-old.parquet"), Path(uri, "part-young.parquet")
    for copy in (old, young):
        shutil.copy(first, copy)
    os.utime(old, (1_000_000_000, 1_000_000_000))

    for _ in range(60):
        offsets.write(count_up)

    assert len(offsets._files.files) < 50
    assert not old.exists()
    assert young.exists()  # a commit could be about to name it


def test_a_reader_from_before_a_compaction_goes_on(uri: str) -> None:
    reader, writer = ConsumerOffsets(uri), ConsumerOffsets(uri)
    writer.write(count_up)
    reader.newest()
    for _ in range(60):
        writer.write(count_up)
    writer._files.table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert reader.newest()[KEY].queue_offset == 61
    reader.write(count_up)
    assert writer.newest()[KEY].queue_offset == 62


def test_a_reader_whose_log_was_cleaned_goes_on(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = {
        "delta.checkpointInterval": "5",
        "delta.logRetentionDuration": "interval 0 seconds",
        "delta.deletedFileRetentionDuration": "interval 0 seconds",
    }
    monkeypatch.setattr("txlake._compare_and_set._CONFIGURATION", at_once)
    reader, writer = ConsumerOffsets(uri), ConsumerOffsets(uri)
    reader.newest()
    for _ in range(130):
        writer.write(count_up)
    assert not (Path(uri) / "_delta_log" / "00000000000000000001.json").exists()
    assert len(list(Path(uri).glob("*.parquet"))) < 60
    assert reader.newest()[KEY].queue_offset == 130
    reader.write(count_up)
    assert ConsumerOffsets(uri).newest()[KEY].queue_offset == 131

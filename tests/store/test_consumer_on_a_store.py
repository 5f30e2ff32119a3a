"""The SDK's consumer of a lake in a store: it reads, commits, and survives what a store does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.replay import rebuild
from storage.files.location import lake_location
from storage.lake.lake import Lake as StoredLake
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import DATA, LIST, LOG, CutWithin, Fault, LostAnswer
from tests.support.sound_lake import sound_rows
from tests.support.store import Bucket
from tests.support.wait import DEADLINE_S
from txlake import Consumer, LakeError, StoreAwayError

TOPIC = "orders"
Key = tuple[int, int]


@pytest.fixture(scope="module")
def expected(sound_bucket: Bucket) -> list[tuple[Key, bytes]]:
    """Return the messages of the topic, by place."""
    lake = StoredLake(lake_location(f"{sound_bucket.uri}/lake", sound_bucket.options))
    ids = {row["topic"]: row["table_id"] for row in lake.read("catalog").to_pylist()}
    rows = lake.read(f"topics/{ids[TOPIC]}").to_pylist()
    return sorted(((row["queue_id"], row["queue_offset"]), row["body"]) for row in rows)


@pytest.fixture
def open_consumer(sound_bucket: Bucket, unique: Callable[[str], str]) -> Callable[..., Consumer]:
    """Return a way to open consumers of a group that no other test uses."""
    group = unique("points")

    def make(**options: Any) -> Consumer:
        return Consumer(
            f"{sound_bucket.uri}/lake",
            group,
            [TOPIC],
            storage_options=sound_bucket.options,
            **options,
        )

    return make


def read(consumer: Consumer, count: int) -> list[tuple[Key, bytes | None]]:
    """Return the next messages."""
    found: list[tuple[Key, bytes | None]] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        messages = consumer.poll(1.0, count - len(found))
        found += [((m.queue_id, m.queue_offset), m.body) for m in messages]
    return found


def test_a_group_reads_commits_and_goes_on(
    open_consumer: Callable[[], Consumer], expected: list[tuple[Key, bytes]]
) -> None:
    with open_consumer() as consumer:
        first = read(consumer, 4)
        consumer.commit()
        read(consumer, 2)  # not committed: they come again
    with open_consumer() as consumer:
        rest = read(consumer, len(expected) - 4)
        assert consumer.poll(0.0) == []
    assert sorted(first + rest) == expected


def test_a_commit_whose_answer_is_lost_is_made_once(
    open_consumer: Callable[[], Consumer], proxy: FaultProxy, expected: list[tuple[Key, bytes]]
) -> None:
    lost = Fault(LostAnswer(), method="PUT", key=r"consumer_offsets/_delta_log/\d+\.json$", times=1)
    with open_consumer() as consumer:
        first = read(consumer, 4)
        with proxy.fault(lost) as happening:
            consumer.commit()
            assert happening.hits == 1
        positions = {key: consumer.position(*key) for key in consumer.assignment()}
        assert consumer.committed() == positions
        second = read(consumer, 2)
        consumer.commit()
    with open_consumer() as consumer:
        rest = read(consumer, len(expected) - 6)
    assert sorted(first + second + rest) == expected


def test_an_answer_that_is_cut_short_is_no_message(
    open_consumer: Callable[[], Consumer], proxy: FaultProxy, expected: list[tuple[Key, bytes]]
) -> None:
    cut = Fault(CutWithin(), method="GET", key=r"topics/.*\.parquet$", times=2)
    with proxy.fault(cut) as happening, open_consumer() as consumer:
        assert sorted(read(consumer, len(expected))) == expected
        assert happening.hits >= 1


def test_a_store_that_is_away_is_an_error_of_its_own_and_the_consumer_goes_on(
    open_consumer: Callable[[], Consumer], proxy: FaultProxy, sound_bucket: Bucket,
    expected: list[tuple[Key, bytes]],
) -> None:  # fmt: skip
    with open_consumer() as consumer:
        first = read(consumer, 4)
        with proxy.away(), pytest.raises(StoreAwayError) as caught:
            consumer.commit()
        assert str(caught.value) == (
            f"{sound_bucket.uri}/lake: the store does not answer "
            "(Connection refused (os error 111)); try again"
        )
        consumer.commit()
        rest = read(consumer, len(expected) - 4)
    assert sorted(first + rest) == expected
    with proxy.away(), pytest.raises(StoreAwayError):
        open_consumer()


def test_a_consumer_that_waits_asks_for_the_next_entry_of_the_log_less_and_less_often(
    open_consumer: Callable[..., Consumer],
    proxy: FaultProxy,
    expected: list[tuple[Key, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk is looked at 20 times a second. The bounds hold however slow the machine is."""
    # A machine that stood still for 10 s looks anew at each log, and writes that it lives.
    monkeypatch.setattr("txlake._delta_files._SURE_S", math.inf)
    with open_consumer(session_timeout_ms=3_600_000) as consumer:
        read(consumer, len(expected))
        consumer.poll(0.0)
        before = proxy.traffic()
        assert consumer.poll(3.0) == []
        asked = proxy.traffic().since(before).requests
    assert asked["GET", LOG] >= 3
    # 11 looks within 3 s (0.05 s, each pause half as long again, up to 0.5 s), 2 for topics.
    assert asked["GET", LOG] - asked["GET", LIST] <= 13
    assert asked["GET", LIST] <= 5
    assert asked["GET", DATA] <= 2  # rows of its group's members, at which it looks each 2 s


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_consumer_that_waits_finds_what_comes_also_when_the_next_entry_was_cleaned_up(
    sound_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_cleaned: bool,
    unique: Callable[[str], str],
) -> None:  # fmt: skip
    monkeypatch.setattr("txlake._delta_files._SURE_S", 1.0)
    location = lake_location(f"{sound_bucket.uri}/{unique('lake')}", sound_bucket.options)
    rebuild(sound_rows().write(tmp_path / "lake").path, location)
    lake = StoredLake(location)
    table = f"topics/{lake.read('catalog')['table_id'][0].as_py()}"
    topic = lake.read("catalog")["topic"][0].as_py()
    first = lake.read(table)
    with Consumer(location.path, "late", [topic], storage_options=sound_bucket.options) as consumer:
        read(consumer, first.num_rows)
        assert consumer.poll(0.2) == []
        newest = first.slice(0, 1).to_pylist()[0]
        ends = {q: consumer.position(t, q) for t, q in consumer.assignment()}
        newest |= {"queue_offset": ends[newest["queue_id"]], "epoch": newest["epoch"] + 100}
        lake.append(table, pa.Table.from_pylist([newest], schema=first.schema), newest["epoch"])
        if is_cleaned:
            handle = lake.handle(table)
            handle.create_checkpoint()
            log = location.filesystem(f"{table}/_delta_log")
            for version in range(handle.version() + 1):
                log.delete_file(f"{version:020}.json")
        assert read(consumer, 1) == [((newest["queue_id"], newest["queue_offset"]), newest["body"])]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "another-secret"}, "the store refuses access (403 Forbidden)"),
        ({"AWS_ALLOW_HTTP": "false"}, "the store refuses access (URL scheme is not allowed)"),
    ],
)
def test_a_store_that_refuses_is_one_sentence_without_the_secret(
    sound_bucket: Bucket, changed: dict[str, str], said: str
) -> None:
    with pytest.raises(LakeError) as caught:
        Consumer(
            f"{sound_bucket.uri}/lake",
            "points",
            [TOPIC],
            storage_options=sound_bucket.options | changed,
        )
    text = str(caught.value)
    assert text.startswith(f"{sound_bucket.uri}/lake: {said}: check storage_options")
    assert not isinstance(caught.value, StoreAwayError)
    assert "\n" not in text
    assert not {sound_bucket.keys.secret_access_key, "another-secret"} & set(text.split())

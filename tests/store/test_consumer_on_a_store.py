"""The SDK's consumer of a lake in a store: it reads, commits, and survives what a store does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pipelines.local_store.store import Store
from pipelines.replay import rebuild
from storage.files.place import lake_place
from storage.lake.lake import Lake as StoredLake
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import CutWithin, Fault, LostAnswer
from tests.support.sound_lake import sound_rows
from tests.support.store import Bucket, make_bucket
from txlake import Consumer, LakeError, StoreAwayError

TOPIC = "orders"
Key = tuple[int, int]


@pytest.fixture(scope="module")
def proxy(store: Store) -> Iterator[FaultProxy]:
    with FaultProxy(store.port) as running:
        yield running


@pytest.fixture(scope="module")
def bucket(store: Store, proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """A bucket behind the proxy, with a lake in it."""
    direct = make_bucket(store, f"consumer-{time.time_ns()}")
    local = sound_rows().write(tmp_path_factory.mktemp("sound") / "lake").path
    rebuild(local, lake_place(f"{direct.uri}/lake", direct.options))
    return replace(direct, endpoint=proxy.endpoint)


@pytest.fixture(scope="module")
def expected(bucket: Bucket) -> list[tuple[Key, bytes]]:
    """Return the messages of the topic, by place."""
    lake = StoredLake(lake_place(f"{bucket.uri}/lake", bucket.options))
    ids = {row["topic"]: row["table_id"] for row in lake.read("catalog").to_pylist()}
    rows = lake.read(f"topics/{ids[TOPIC]}").to_pylist()
    return sorted(((row["queue_id"], row["queue_offset"]), row["body"]) for row in rows)


@pytest.fixture
def open_consumer(bucket: Bucket, unique: Callable[[str], str]) -> Callable[[], Consumer]:
    """Return a way to open consumers of a group that no other test uses."""
    group = unique("points")

    def make() -> Consumer:
        return Consumer(f"{bucket.uri}/lake", group, [TOPIC], storage_options=bucket.options)

    return make


def read(consumer: Consumer, count: int) -> list[tuple[Key, bytes | None]]:
    """Return the next messages."""
    found: list[tuple[Key, bytes | None]] = []
    deadline = time.monotonic() + 60
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
    cut = Fault(CutWithin(), method="GET", key=r"topics/.*\.parquet$", every=2, times=3)
    with proxy.fault(cut) as happening, open_consumer() as consumer:
        assert sorted(read(consumer, len(expected))) == expected
        assert happening.hits >= 1


def test_a_store_that_is_away_is_an_error_of_its_own_and_the_consumer_goes_on(
    open_consumer: Callable[[], Consumer], proxy: FaultProxy, bucket: Bucket,
    expected: list[tuple[Key, bytes]],
) -> None:  # fmt: skip
    with open_consumer() as consumer:
        first = read(consumer, 4)
        with proxy.away(), pytest.raises(StoreAwayError) as caught:
            consumer.commit()
        assert str(caught.value) == (
            f"{bucket.uri}/lake: the store does not answer (Connection refused (os error 111)); "
            "try again"
        )
        consumer.commit()
        rest = read(consumer, len(expected) - 4)
    assert sorted(first + rest) == expected
    with proxy.away(), pytest.raises(StoreAwayError):
        open_consumer()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "another-secret"}, "the store refuses access (403 Forbidden)"),
        ({"AWS_ALLOW_HTTP": "false"}, "the store refuses access (URL scheme is not allowed)"),
    ],
)
def test_a_store_that_refuses_is_one_sentence_without_the_secret(
    bucket: Bucket, changed: dict[str, str], said: str
) -> None:
    with pytest.raises(LakeError) as caught:
        Consumer(f"{bucket.uri}/lake", "points", [TOPIC], storage_options=bucket.options | changed)
    text = str(caught.value)
    assert text.startswith(f"{bucket.uri}/lake: {said}: check storage_options")
    assert not isinstance(caught.value, StoreAwayError)
    assert "\n" not in text
    assert not {bucket.keys.secret_access_key, "another-secret"} & set(text.split())

"""A consumer goes to an instant, and reads the messages that it wants by their tags and keys."""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.lake_factory import EPOCH_AT, LakeFactory, places, poll_all
from tests.support.read_bytes import read_bytes
from tests.support.wait import DEADLINE_S, wait_until
from txlake import ConsumedMessage, Consumer, OffsetGapError
from txlake._delta_files import DeltaFiles


@pytest.fixture
def orders(tmp_path: Path) -> LakeFactory:
    lake = LakeFactory(tmp_path / "lake")
    lake.make_topic("orders", 2)
    return lake


def minutes(count: float) -> dt.datetime:
    return EPOCH_AT + dt.timedelta(minutes=count)


@pytest.mark.parametrize(
    ("oldest_epoch", "at", "expected", "why"),
    [
        (1, 0, {0: 0, 1: 0}, "the first epoch"),
        (1, 1, {0: 2, 1: 1}, "an epoch's own instant counts"),
        (1, 1.5, {0: 4, 1: 1}, "the first epoch behind it; in queue 1 it has no message"),
        (1, 2.5, {0: 6, 1: 1}, "an epoch without a message for queue 1: its end"),
        (1, 9, {0: 8, 1: 2}, "nothing is so late: the ends"),
        (2, 1, {0: 0, 1: 0}, "the epochs before it may have been recorded: the beginning"),
        (2, 1.5, {0: 4, 1: 1}, "known again"),
    ],
)
def test_a_seek_to_a_time_finds_the_first_message_of_its_epoch(
    orders: LakeFactory, oldest_epoch: int, at: float, expected: dict[int, int], why: str
) -> None:
    orders.deliver("orders", {0: 2, 1: 1}, epoch=1)
    orders.deliver("orders", {0: 2}, epoch=2)
    orders.deliver("orders", {0: 2}, epoch=3)
    orders.deliver("orders", {0: 2, 1: 1}, epoch=4)
    for epoch in range(oldest_epoch, 5):
        orders.epoch_row(epoch, minutes(epoch - 1))

    with Consumer(orders.path, "points", ["orders"]) as consumer:
        poll_all(consumer, 3, most=3)
        found = consumer.seek_to_time(minutes(at))
        assert found == {("orders", queue_id): offset for queue_id, offset in expected.items()}, why
        messages = poll_all(consumer, 10 - sum(expected.values()))
        assert places(messages, 0) == list(range(expected[0], 8))
        assert places(messages, 1) == list(range(expected[1], 2))


def test_a_seek_to_a_time_opens_no_files_of_the_epochs_before_it(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch in range(1, 21):
        orders.deliver("orders", {0: 1, 1: 1}, epoch=epoch)
        orders.epoch_row(epoch, minutes(epoch))

    opened: set[str] = set()
    dataset = DeltaFiles.dataset

    def open_files(self: DeltaFiles, paths: Iterable[str]) -> Any:
        chosen = list(paths)
        if "/topics/" in self.uri:
            opened.update(chosen)
        return dataset(self, chosen)

    with Consumer(orders.path, "points", ["orders"]) as consumer:
        monkeypatch.setattr(DeltaFiles, "dataset", open_files)
        found = consumer.seek_to_time(minutes(18.5))

    assert found == {("orders", 0): 18, ("orders", 1): 18}
    assert len(opened) == 2


def test_an_instant_without_a_time_zone_is_refused(orders: LakeFactory) -> None:
    with (
        Consumer(orders.path, "points", ["orders"]) as consumer,
        pytest.raises(ValueError, match="an instant with a time zone"),
    ):
        consumer.seek_to_time(dt.datetime(2026, 1, 1))


TAGS = ["a", "b", None, "c"]
KEYS = ["k1", "k2 k3", None, "k1 k4", "k5"]


def committed(orders: LakeFactory) -> dict[tuple[str, int], int | None]:
    """Return how far the group is, as another process sees it: a consumer is one thread's."""
    return {(row.topic, row.queue_id): row.queue_offset for row in orders.committed_rows()}


def mixed(orders: LakeFactory, count: int) -> None:
    """Deliver messages with all tags and keys, in some epochs, two queues each."""
    for first in range(0, count, 10):
        rows = [
            orders.row(
                queue_id, offset, tags=TAGS[offset % len(TAGS)], keys=KEYS[offset % len(KEYS)]
            )
            for queue_id in (0, 1)
            for offset in range(first, first + 10)
        ]
        orders.write_rows("orders", rows)


@pytest.mark.parametrize(
    ("topics", "keys", "is_wanted"),
    [
        ({"orders": "a"}, None, lambda tag, key: tag == "a"),
        ({"orders": "a || c"}, None, lambda tag, key: tag in ("a", "c")),
        ({"orders": "*"}, ["k1"], lambda tag, key: "k1" in (key or "").split()),
        (["orders"], ["k3", "k5"], lambda tag, key: key in ("k2 k3", "k5")),
        ({"orders": "b||c"}, ["k2 k3"], lambda tag, key: tag in ("b", "c") and key == "k2 k3"),
        ({"orders": "nothing"}, None, lambda tag, key: False),
    ],
)
@pytest.mark.parametrize("is_pushed", [False, True])
def test_only_wanted_messages_come_and_the_group_passes_the_others(
    orders: LakeFactory, topics: Any, keys: list[str] | None,
    is_wanted: Callable[[str | None, str | None], bool], is_pushed: bool,
) -> None:  # fmt: skip
    mixed(orders, 60)
    expected = [
        offset for offset in range(60)
        if is_wanted(TAGS[offset % len(TAGS)], KEYS[offset % len(KEYS)])
    ]  # fmt: skip
    messages: list[ConsumedMessage] = []
    ends = {("orders", 0): 60, ("orders", 1): 60}

    with Consumer(orders.path, "points", topics, keys=keys) as consumer:
        if is_pushed:
            thread = threading.Thread(
                target=consumer.run, args=(messages.extend,), kwargs={"commit_interval_ms": 50}
            )
            thread.start()
            # What is read is not handed out yet: a run that is stopped then leaves it.
            wait_until(lambda: committed(orders) == ends, "the ends")
            consumer.stop()
            thread.join()
        else:
            deadline = time.monotonic() + DEADLINE_S
            while set(consumer.lag().values()) != {0}:
                assert time.monotonic() < deadline
                messages += consumer.poll(0.05, max_records=7)
            consumer.commit()
        assert consumer.committed() == ends
    assert places(messages, 0) == places(messages, 1) == expected


def test_a_gap_is_found_behind_messages_that_are_not_wanted(orders: LakeFactory) -> None:
    orders.write_rows("orders", [orders.row(0, offset, tags="a") for offset in (0, 1, 3)])
    with (
        Consumer(orders.path, "points", {"orders": "b"}) as consumer,
        pytest.raises(OffsetGapError, match="offset 2 was expected, 3 was found"),
    ):
        consumer.poll(1.0)


def test_bodies_of_messages_that_are_not_wanted_are_not_read(orders: LakeFactory) -> None:
    for epoch in range(20):  # 2 MB each; one epoch in ten has what is wanted
        tag = "a" if epoch % 10 == 3 else "b"
        offsets = range(20 * epoch, 20 * epoch + 20)
        orders.write_rows(
            "orders", [orders.row(0, at, tags=tag, body=os.urandom(100_000)) for at in offsets]
        )

    def read(topics: Sequence[str] | dict[str, str], count: int) -> int:
        with Consumer(orders.path, f"group-{count}", topics) as consumer:
            before = read_bytes()
            assert len(poll_all(consumer, count)) == count
            return read_bytes() - before

    everything = read(["orders"], 400)
    wanted = read({"orders": "a"}, 40)
    assert wanted < everything / 5, (wanted, everything)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topics": {"orders": ""}}, "tags ''"),
        ({"topics": {"orders": "a || "}}, r"tags 'a \|\| '"),
        ({"topics": ["orders"], "keys": "k1"}, "keys 'k1': a list"),
    ],
)
def test_wrong_filters_are_refused(
    orders: LakeFactory, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Consumer(orders.path, "points", **arguments)

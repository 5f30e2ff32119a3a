"""The consumer reads committed messages in queue order, from real Delta tables."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.lake_factory import LakeFactory, places, poll_all
from tests.support.wait import DEADLINE_S
from txlake import (
    ClosedError,
    ConsumedMessage,
    Consumer,
    LakeError,
    OffsetGapError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from txlake._delta_files import DeltaFiles
from txlake._delta_log import TableFile
from txlake._poll_backoff import LOOK_S
from txlake._topic_reader import TopicReader, _in_order, _window_rows

_LAST = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
_QUEUE_ROWS = pa.schema([("queue_id", pa.int32()), ("queue_offset", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> LakeFactory:
    return LakeFactory(tmp_path / "lake")


@pytest.fixture
def orders(lake: LakeFactory) -> LakeFactory:
    lake.make_topic("orders", 2)
    return lake


def test_messages_come_in_queue_order_with_their_columns(orders: LakeFactory) -> None:
    for _ in range(3):
        orders.deliver("orders", {0: 2, 1: 1})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        messages = poll_all(consumer, 9, most=2)
    assert places(messages, 0) == [0, 1, 2, 3, 4, 5]
    assert places(messages, 1) == [0, 1, 2]
    first = next(message for message in messages if message.queue_id == 0)
    assert (first.topic, first.body, first.keys) == ("orders", b"0:0", "k")
    assert first.properties == {"colour": "red"}
    assert first.transaction_id == "t-0-0"
    assert first.raw_headers is None


def test_null_bodies_and_raw_headers_come_as_they_are(orders: LakeFactory) -> None:
    headers = [{"key": "a", "value": b"\xff"}, {"key": "a", "value": None}]
    orders.deliver("orders", {0: 1}, body=None, raw_headers=headers, properties=None)
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        message = poll_all(consumer, 1)[0]
    assert message.body is None
    assert message.properties == {}
    assert message.raw_headers == [("a", b"\xff"), ("a", None)]


def test_a_new_consumer_goes_on_where_the_group_has_committed(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 5})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        poll_all(consumer, 3, most=3)
        consumer.commit()
        consumer.poll(0, 1)  # returned, not committed: comes again
        assert consumer.committed() == {("orders", 0): 3, ("orders", 1): 0}
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert places(poll_all(consumer, 2), 0) == [3, 4]
    with Consumer(orders.path, "other", ["orders"]) as consumer:
        assert places(poll_all(consumer, 5), 0) == [0, 1, 2, 3, 4]


def test_a_group_without_commits_may_begin_at_the_end(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 5})
    with Consumer(orders.path, "points", ["orders"], auto_offset_reset="latest") as consumer:
        assert consumer.poll(0) == []
        assert consumer.position("orders", 0) == 5
        orders.deliver("orders", {0: 1})
        assert places(poll_all(consumer, 1), 0) == [5]


def test_what_a_group_that_began_at_the_end_has_not_committed_comes_again(
    orders: LakeFactory,
) -> None:
    orders.deliver("orders", {0: 5})
    for reads in (False, True):
        with Consumer(orders.path, "points", ["orders"], auto_offset_reset="latest") as consumer:
            assert consumer.committed() == {("orders", 0): 5, ("orders", 1): 0}
            orders.deliver("orders", {0: 1})
            assert not reads or places(poll_all(consumer, 2), 0) == [5, 6]  # and dies

    with Consumer(orders.path, "points", ["orders"], auto_offset_reset="latest") as consumer:
        assert places(poll_all(consumer, 2), 0) == [5, 6]


@pytest.mark.parametrize("queues", [None, {"orders": [0, 1], "late": [0]}])
def test_a_topic_that_is_waited_for_begins_at_its_first_message(
    orders: LakeFactory, queues: Any
) -> None:
    orders.deliver("orders", {0: 5})
    with Consumer(
        orders.path, "points", ["orders", "late"], queues=queues, auto_offset_reset="latest"
    ) as consumer:
        orders.make_topic("late", 1)
        orders.deliver("late", {0: 2})
        assert places(poll_all(consumer, 2), 0) == [0, 1]

        if queues is None:
            orders.catalog_row("orders", 3)
            orders.deliver("orders", {2: 2})
            assert places(poll_all(consumer, 2), 2) == [0, 1]


def test_lag_and_seek_speak_in_queue_offsets(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 4, 1: 1})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.lag() == {("orders", 0): 4, ("orders", 1): 1}
        poll_all(consumer, 5)
        assert consumer.lag() == {("orders", 0): 0, ("orders", 1): 0}
        consumer.seek("orders", 0, 2)
        assert consumer.lag()["orders", 0] == 2
        assert places(poll_all(consumer, 2), 0) == [2, 3]
        consumer.seek("orders", 0, 4)  # the end is a position
        with pytest.raises(OffsetOutOfRangeError, match="offset 5; 0 to 4"):
            consumer.seek("orders", 0, 5)
        with pytest.raises(UnknownTopicError, match="queue 7"):
            consumer.seek("orders", 7, 0)


def test_a_topic_that_is_named_twice_is_read_once(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 1, 1: 1})
    with Consumer(orders.path, "points", ["orders", "orders"]) as consumer:
        assert len(poll_all(consumer, 2)) == 2
        consumer.commit()
    rows = DeltaTable(orders.path / "consumer_offsets").to_pyarrow_table().to_pylist()
    assert len(rows) == 2 + 2 + 2  # taken, committed, given back


def test_topics_and_queues_are_taken_up_as_they_come(lake: LakeFactory) -> None:
    with Consumer(lake.path, "points", ["orders"]) as consumer:
        assert consumer.poll(0) == []
        lake.catalog_row("orders", 1)  # catalogued, its table not made yet
        assert consumer.poll(0) == []
        lake.deliver("orders", {0: 1})
        assert places(poll_all(consumer, 1), 0) == [0]
        lake.catalog_row("orders", 2)
        lake.deliver("orders", {1: 2})
        assert places(poll_all(consumer, 2), 1) == [0, 1]
        assert consumer.assignment() == [("orders", 0), ("orders", 1)]


def test_a_silent_queue_does_not_hide_or_repeat_the_others(orders: LakeFactory) -> None:
    orders.deliver("orders", {1: 1})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        poll_all(consumer, 1)
        for number in range(5):
            orders.deliver("orders", {0: 3})
            assert places(poll_all(consumer, 3), 0) == list(range(number * 3, number * 3 + 3))
        orders.deliver("orders", {0: 1, 1: 1})
        messages = poll_all(consumer, 2)
        assert (places(messages, 0), places(messages, 1)) == ([15], [1])


def test_a_missing_offset_is_an_error_that_names_both(orders: LakeFactory) -> None:
    orders.write_rows("orders", [orders.row(0, offset) for offset in (0, 1, 3)])
    with (
        Consumer(orders.path, "points", ["orders"]) as consumer,
        pytest.raises(OffsetGapError, match="queue 0: offset 2 was expected, 3 was found"),
    ):
        poll_all(consumer, 4)


def test_an_offset_that_stands_twice_is_an_error(orders: LakeFactory) -> None:
    orders.write_rows("orders", [orders.row(0, offset) for offset in (0, 1, 1)])
    with (
        Consumer(orders.path, "points", ["orders"]) as consumer,
        pytest.raises(OffsetGapError, match="offset 2 was expected, 1 was found"),
    ):
        poll_all(consumer, 3)


def test_a_gap_between_files_is_found(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 2})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        poll_all(consumer, 2)
        orders.write_rows("orders", [orders.row(0, 9)])
        with pytest.raises(OffsetGapError, match="offset 2 was expected, 9 was found"):
            poll_all(consumer, 1)


def test_a_beginning_that_is_missing_and_was_not_deleted_is_a_gap(orders: LakeFactory) -> None:
    orders.write_rows("orders", [orders.row(0, 7), orders.row(0, 8)])
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        with pytest.raises(OffsetGapError, match="offset 0 was expected, 7 was found"):
            consumer.poll(0)
        consumer.seek("orders", 0, 7)
        assert places(poll_all(consumer, 2), 0) == [7, 8]


def test_optimize_and_vacuum_under_a_reader_change_nothing(orders: LakeFactory) -> None:
    for _ in range(6):
        orders.deliver("orders", {0: 3, 1: 2})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        messages = poll_all(consumer, 5, most=5)
        table = DeltaTable(str(orders.table("orders")))
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        orders.deliver("orders", {0: 1})
        messages += poll_all(consumer, 26)
    assert places(messages, 0) == list(range(19))
    assert places(messages, 1) == list(range(12))


def test_a_snapshot_whose_files_were_vacuumed_is_taken_anew(orders: LakeFactory) -> None:
    for _ in range(3):
        orders.deliver("orders", {0: 3})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        reader = consumer._queues.buffers._readers["orders"]
        reader.refresh()  # the old snapshot is in hand
        table = DeltaTable(str(orders.table("orders")))
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        assert reader.read({0: 4})[0].column("queue_offset").to_pylist() == [4, 5, 6, 7, 8]


def test_a_queue_has_news_that_came_with_a_snapshot_taken_anew(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is taken anew for another queue: no version comes after it."""
    monkeypatch.setattr("txlake._topic_reader._WINDOW_ROWS_MAX", 4)
    monkeypatch.setattr("txlake._topic_reader._WINDOW_ROWS_MIN", 1)
    dataset = DeltaFiles.dataset
    failures: list[OSError] = []

    def failing(files: DeltaFiles, paths: Iterable[str]) -> Any:
        if failures and files.uri.endswith("topics/0"):
            orders.deliver("orders", {1: 1})
            raise failures.pop()
        return dataset(files, paths)

    monkeypatch.setattr(DeltaFiles, "dataset", failing)
    orders.deliver("orders", {0: 12, 1: 1})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        messages = poll_all(consumer, 5, most=5)
        buffers = consumer._queues.buffers._buffers
        deadline = time.monotonic() + DEADLINE_S
        while buffers["orders", 1].may_have_more:
            assert time.monotonic() < deadline, messages
            messages += consumer.poll(0.0, 1)
        assert len(messages) < 12

        failures.append(OSError("the answer was cut"))
        messages += poll_all(consumer, 14 - len(messages))
    assert failures == []
    assert places(messages, 0) == list(range(12))
    assert places(messages, 1) == [0, 1]


def test_a_window_smaller_than_what_waits_loses_nothing(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlake._topic_reader._WINDOW_ROWS_MAX", 4)
    monkeypatch.setattr("txlake._topic_reader._WINDOW_ROWS_MIN", 1)
    for _ in range(5):
        orders.deliver("orders", {0: 3, 1: 1})
    DeltaTable(str(orders.table("orders"))).optimize.compact()
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        messages = poll_all(consumer, 20)
    assert places(messages, 0) == list(range(15))
    assert places(messages, 1) == list(range(5))


def test_no_file_is_decoded_twice_where_a_window_ends_in_it(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        orders.deliver("orders", {0: 3, 1: 3})
    reads: list[list[str]] = []

    def dataset(files: DeltaFiles, paths: Iterable[str]) -> Any:
        reads.append(list(paths))
        return original(files, reads[-1])

    original = DeltaFiles.dataset
    monkeypatch.setattr(DeltaFiles, "dataset", dataset)
    monkeypatch.setattr("txlake._topic_reader._WINDOW_ROWS_MAX", 8)  # two files and a part

    reader = TopicReader("orders", str(orders.table("orders")), None)
    reader.refresh()
    positions = {0: 0, 1: 0}
    decoded: list[str] = []
    while positions[0] < 18:
        rows = reader.read(positions)
        decoded += reads[-1]  # the reads before it look for what a file has of each queue
        positions = {q: positions[q] + rows[q].num_rows for q in positions}

    assert positions == {0: 18, 1: 18}
    assert len(decoded) == len(set(decoded)) == 6


def test_a_closed_consumer_refuses(orders: LakeFactory) -> None:
    consumer = Consumer(orders.path, "points", ["orders"])
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll(0)


def test_iterating_gives_messages_one_by_one(orders: LakeFactory) -> None:
    orders.deliver("orders", {0: 2})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        messages: Iterator[ConsumedMessage] = iter(consumer)
        assert [next(messages).queue_offset, next(messages).queue_offset] == [0, 1]


@pytest.mark.parametrize("has_queues", [False, True])
def test_topics_and_queues_can_come_from_a_generator(orders: LakeFactory, has_queues: bool) -> None:
    topics: Any = (topic for topic in ("orders",))
    queues: Any = {"orders": (queue_id for queue_id in (0, 1))} if has_queues else None
    with Consumer(orders.path, "points", topics, queues=queues) as consumer:
        assert consumer.assignment() == [("orders", 0), ("orders", 1)]


def test_no_lake_and_a_newer_lake_are_one_sentence_each(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="there is no lake here; start the job first"):
        Consumer(tmp_path, "points", ["orders"])
    with pytest.raises(LakeError, match=r"^None: a folder, or a URI in a store$"):
        Consumer(None, "points", ["orders"])  # type: ignore[arg-type]
    LakeFactory(tmp_path, format_version=6)
    with pytest.raises(LakeError, match="the lake has format 6, this SDK reads up to 5"):
        Consumer(tmp_path, "points", ["orders"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"group": "a b"}, "group 'a b'"),
        ({"topics": []}, "at least one name"),
        ({"topics": "orders"}, "a list"),
        ({"topics": ["orders "]}, "topic 'orders '"),
        ({"topics": ["orders", ".."]}, r"topic '\.\.'"),
        ({"queues": {"other": [0]}}, "not in topics"),
        ({"queues": {"orders": [0, -1]}}, r"queues \[-1\]: 0 or more"),
        ({"auto_offset_reset": "middle"}, "earliest or latest"),
        ({"session_timeout_ms": 0}, "session_timeout_ms 0"),
        ({"max_poll_records": 0}, "max_poll_records 0"),
        ({"max_poll_records": 10**30}, "max_poll_records 1000"),
        ({"session_timeout_ms": math.nan}, "session_timeout_ms nan: 1 or more"),
        ({"session_timeout_ms": 1.5}, "session_timeout_ms 1.5: 1 or more"),
        ({"max_poll_records": True}, "max_poll_records True: 1 or more"),
        ({"store_look_ms_max": "5"}, "store_look_ms_max '5': 1 or more"),
        ({"wait_for_owner_ms": math.nan}, "wait_for_owner_ms nan: 0 or more"),
        ({"wait_for_owner_ms": -1}, "wait_for_owner_ms -1: 0 or more"),
        ({"wait_for_owner_ms": 10**400}, "wait_for_owner_ms 1000"),
        ({"queues": {"orders": [0.0, True]}}, r"queues \[0.0, True\]: 0 or more"),
        ({"queues": {"orders": 0}}, r"queues {'orders': 0}: a dict"),
        ({"queues": [0]}, r"queues \[0\]: a dict"),
        ({"queues": {"orders": []}}, r"queues of \['orders'\]: at least one number each"),
        ({"topics": 5}, "topics 5: a list"),
        ({"topics": [5]}, "topic 5: "),
        ({"topics": [["orders"]]}, r"topic \['orders'\]: "),
        ({"topics": iter(())}, "at least one name"),
        ({"topics": {"orders": ["A"]}}, r"tags \['A'\]: text, tags with "),
        ({"group": None}, "group None: "),
        ({"keys": 5}, "keys 5: a list"),
        ({"keys": [5]}, r"keys \[5\]: a list"),
        ({"keys": []}, r"keys \[\]: at least one, or None for all"),
    ],
)
def test_a_wrong_argument_is_named(
    orders: LakeFactory, arguments: dict[str, object], said: str
) -> None:
    everything = {"group": "points", "topics": ["orders"], **arguments}
    with pytest.raises(ValueError, match=said):
        Consumer(orders.path, **everything)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda consumer: consumer.seek("orders", 0, 1.5), "offset 1.5: a whole number"),
        (lambda consumer: consumer.seek("orders", 0, True), "offset True: a whole number"),
        (lambda consumer: consumer.seek("orders", 0, None), "offset None: a whole number"),
        (lambda consumer: consumer.poll(None), "timeout_s None: a number of seconds"),
        (lambda consumer: consumer.poll(10**400), "timeout_s 1000"),
        (lambda consumer: consumer.poll(0.0, -1), "max_records -1: 0 or more"),
        (lambda consumer: consumer.poll(0.0, 1.5), "max_records 1.5: 0 or more"),
        (lambda consumer: consumer.poll(0.0, 10**30), "max_records 1000"),
        (lambda consumer: consumer.seek_to_time(_LAST), "at .*: an instant of the years 1 to 9999"),
    ],
)
def test_a_wrong_number_is_named_at_once_and_changes_nothing(
    orders: LakeFactory, call: Callable[[Any], object], said: str
) -> None:
    orders.deliver("orders", {0: 2})
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        with pytest.raises(ValueError, match=said):
            call(consumer)
        assert consumer.position("orders", 0) == 0
        assert len(poll_all(consumer, 2)) == 2


def test_a_waiting_poll_looks_for_news_alone_and_ends_with_them(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Consumer(orders.path, "points", ["orders"]) as consumer:
        assert consumer.poll(0.0) == []
        queues = consumer._queues
        queues._look_s = queues._look_at = queues._full_look_at = math.inf  # no other look is due
        beats: list[None] = []
        pauses: list[float] = []

        def sleep(pause_s: float) -> None:
            pauses.append(pause_s)
            assert len(pauses) < 10, "the news are not seen"
            if len(pauses) == 5:
                orders.deliver("orders", {0: 1})

        monkeypatch.setattr(queues.ownership, "heartbeat", lambda: beats.append(None))
        # Threads of others sleep, too: py4j's where the process has a Spark session.
        clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
        monkeypatch.setattr("txlake._group_queues.time", clock)
        messages = consumer.poll(600.0)

    assert [message.queue_offset for message in messages] == [0]
    assert pauses == [LOOK_S] * 5
    assert len(beats) == 2, "one before it waits, one after"


def test_a_poll_with_nothing_new_is_cheap(
    orders: LakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens no table, reads no entry of a log and lists no files."""
    calls: list[str] = []

    def count(name: str) -> None:
        method = getattr(DeltaTable, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return method(*arguments, **named)

        monkeypatch.setattr(DeltaTable, name, counted)

    orders.deliver("orders", {0: 10, 1: 10})
    hour_ms = 3_600_000  # it writes three times a session
    with Consumer(orders.path, "points", ["orders"], session_timeout_ms=hour_ms) as consumer:
        poll_all(consumer, 20)
        queues = consumer._queues

        def poll_when_each_look_is_due() -> list[ConsumedMessage]:
            queues._look_at = queues._full_look_at = 0.0
            return consumer.poll(0)

        poll_when_each_look_is_due()  # at what it has written itself, too
        for name in ("__init__", "update_incremental", "get_add_actions"):
            count(name)
        for _ in range(50):
            assert poll_when_each_look_is_due() == []
        assert calls == []
        orders.deliver("orders", {0: 1})
        poll_all(consumer, 1)
    assert calls


@pytest.mark.parametrize(("files", "rows_max"), [(0, 0), (1, 40), (5, 40), (400, 3)])
def test_rows_of_several_files_are_put_in_order(files: int, rows_max: int) -> None:
    chance, ends, parts = random.Random(files), [0, 0, 0], []
    for _ in range(files):  # as a job writes them: in each the next offsets of some queues
        queues, offsets = [], []
        for queue_id in chance.sample(range(3), 3):
            count = chance.randrange(rows_max)
            queues += [queue_id] * count
            offsets += range(ends[queue_id], ends[queue_id] + count)
            ends[queue_id] += count
        parts.append(pa.table({"queue_id": queues, "queue_offset": offsets}, _QUEUE_ROWS))
    chance.shuffle(parts)
    rows = pa.concat_tables([_QUEUE_ROWS.empty_table(), *parts])
    expected = rows.sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])
    assert _in_order(rows).equals(expected)


@pytest.mark.parametrize("queues", [1, 4, 16])
def test_windows_of_all_queues_together_are_read_ahead(queues: int) -> None:
    nothing: dict[str, int] = {}
    files = [TableFile(f"{n}", 64 << 20, 32_768, nothing, nothing) for n in range(3)]  # 2 KiB a row
    assert queues * _window_rows(files, queues) * 2_048 == 32 << 20

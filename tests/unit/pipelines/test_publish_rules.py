"""What a publisher compares before it writes, and what the progress topic says."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.errors import StartError
from pipelines.health.topics import read_queues
from pipelines.publish.committed import (
    CommittedEpochs,
    CommittedRows,
    open_lake,
    require_epochs,
)
from pipelines.publish.destination import (
    DestinationEnds,
    KafkaTopic,
    require_fit,
    require_same_end,
    require_same_topic,
    require_unpublished,
)
from pipelines.publish.errors import PublishError
from pipelines.publish.progress import (
    NOTHING,
    Adoption,
    ProgressLog,
    Skip,
    Start,
    Stop,
    TopicProgress,
    adoption_record,
    after_skips,
    before_skips,
    read_log,
    skip_record,
    start_record,
    stop_key,
    stop_record,
    topic_key,
    topic_record,
)
from pipelines.publish.reading import published_record
from pipelines.publish.records import RecordMaker
from pipelines.publish.status import PublisherStatus, topic_lags, topic_rows
from pipelines.publish.stored_times import StoredTimes
from pipelines.publish.topics import require_nobody_else, wanted_topics
from pipelines.publish.transactions import Transactions
from pipelines.publish.verification import QueueDigest, difference
from pipelines.settings import PublisherSettings, SettingsError, parse
from storage.maintenance.limits import Retention
from storage.rows import milliseconds
from storage.schemas import TOPIC
from tests.support.aging_job import EPOCH_MS, AgingJob
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.lake_rows import table_of
from txlake import protocol as p
from txlake._delta_files import DeltaFiles
from txlake._lake import Topic
from txlake.errors import LakeError
from txlake.protocol import COMMIT

PROGRESS = TopicProgress("orders", "orders", "id-1", (3, 0), (2, NOTHING), 7, "digest")
FITTING = KafkaTopic("id-1", 4, {"cleanup.policy": "delete", "max.message.bytes": "1000"})
MAIN = PublisherSettings("main")
HEADERS = 3  # of a record: after value, key and time


class Last:
    """The last record of a partition, as it is read from Kafka."""

    def __init__(self, queue_offset: int, lake_id: str = "ours") -> None:
        self.queue_offset, self.lake_id = queue_offset, lake_id


@pytest.mark.parametrize(
    ("found", "settings", "said"),
    [
        (FITTING, MAIN, None),
        (replace(FITTING, partitions=5), MAIN, None),
        (replace(FITTING, partitions=3), MAIN, "has 3 partitions, and topic orders has 4 queues"),
        (replace(FITTING, config={**FITTING.config, "cleanup.policy": "compact"}), MAIN,
         "has cleanup.policy=compact: "),
        (replace(FITTING, config={**FITTING.config, "cleanup.policy": "compact,delete"}),
         replace(MAIN, null_bodies="tombstones"), None),
        (replace(FITTING, config={**FITTING.config, "max.message.bytes": "999"}), MAIN,
         "has max.message.bytes=999, and a record can need 1000"),
    ],
)  # fmt: skip
def test_a_destination_that_cannot_take_all_is_refused(
    found: KafkaTopic, settings: PublisherSettings, said: str | None
) -> None:
    require(said, require_fit, "orders", 4, found, settings, 1_000)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (FITTING, None),
        (None, "was deleted (id id-1) after 3 messages of topic orders"),
        (replace(FITTING, topic_id="id-2"), "was deleted and made again (id id-1, now id-2)"),
    ],
)
def test_a_destination_that_is_another_is_refused(found: KafkaTopic, said: str | None) -> None:
    require(said, require_same_topic, PROGRESS, "orders", found)
    require("the settings say new-orders", require_same_topic, PROGRESS, "new-orders", found)


@pytest.mark.parametrize(
    ("progress", "last", "said"),
    [
        (PROGRESS, {0: Last(2)}, None),
        (PROGRESS, {}, None),  # Kafka has deleted what was old
        (PROGRESS, {0: Last(1)}, "partition 0 is queue offset 1, and 2 is published"),
        (PROGRESS, {0: Last(3)}, "partition 0 is queue offset 3, and 2 is published"),
        (PROGRESS, {0: Last(2), 1: Last(0)}, "partition 1 is queue offset 0, and -1 is published"),
        (PROGRESS, {0: Last(2, "theirs")}, "is of lake theirs, and this lake is ours"),
        (replace(PROGRESS, follows=True), {0: Last(2), 1: Last(9, "theirs")}, None),
        (replace(PROGRESS, follows=True), {0: Last(9, "theirs")}, "is of lake theirs"),
    ],
)
def test_the_last_record_is_the_one_that_the_progress_says(
    progress: TopicProgress, last: dict[int, Any], said: str | None
) -> None:
    require(said, require_same_end, progress, "ours", last)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (DestinationEnds({}, {0: 0, 1: 3}, {0: 0, 1: 4}), None),
        (DestinationEnds({1: Last(4)}, {}, {}), "partition 1 is queue offset 4, and the progress"),  # type: ignore[dict-item]
        (
            DestinationEnds({}, {0: 8}, {0: 8}),
            "had 8 records in partition 0, now deleted,",
        ),
    ],
)
def test_a_destination_that_was_published_to_needs_progress(
    ends: DestinationEnds, said: str | None
) -> None:
    require(said, require_unpublished, "orders", "orders", ends)


def require(said: str | None, check: Any, *arguments: Any) -> None:
    if said is None:
        check(*arguments)
        return
    with pytest.raises(PublishError) as error:
        check(*arguments)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_adoption_leaves_of_a_skip_what_is_before_the_messages_that_come_now() -> None:
    skips = [Skip("orders", *where, "ada", "broken", 2) for where in ((0, 2, 8), (1, 0, 0))]
    other = Skip("bills", 0, 2, 8, "ada", "broken", 2)
    later = Skip("orders", 0, 5, 5, "ada", "broken", 2)
    adoption = Adoption("orders", "published", "ada", "put back", 1, (4,))
    records = [skip_record("ours", "main", skip) for skip in (*skips, other)]
    records.append(adoption_record("ours", "main", adoption))
    log = read_log([*records, skip_record("ours", "main", later)])

    assert log.skips_of("ours", "main", "orders") == {0: [replace(skips[0], to_offset=3), later]}
    assert log.skips_of("ours", "main", "bills") == {0: [other]}


def test_the_adoptions_of_a_destination_are_those_of_any_lake_the_oldest_first() -> None:
    first = Adoption("orders", "earliest", "ada", "lost", 2, (4,), "id", (7, 0))
    second = Adoption("orders", "latest", "ben", "rebuilt", 1, (4,), "id", (9,))
    elsewhere = Adoption("orders", "latest", "ada", "deleted", 3, (4,), "new id", (1, 1))
    log = read_log(
        [
            adoption_record("theirs", "main", second),
            adoption_record("ours", "main", elsewhere),
            adoption_record("ours", "main", first),
        ]
    )

    assert log.adoptions_of("id") == [("ours", first), ("theirs", second)]
    assert [second.end_of(partition) for partition in range(2)] == [9, 0]


def test_the_newest_record_of_a_key_holds_and_what_cannot_be_read_is_passed_over() -> None:
    newer = replace(PROGRESS, next_offsets=(4, 1), last_offsets=(3, 0))
    stop = Stop("too large", "orders", 0, 4, 1)
    skip = Skip("orders", 0, 4, 5, "ada", "broken", 2)
    adoption = Adoption("orders", "published", "ada", "rebuilt", 3, (6, 1))

    log = read_log(
        [
            topic_record("ours", "main", PROGRESS),
            stop_record("ours", "main", stop),
            stop_record("ours", "other", stop),
            (b"not ours", b"1"),
            (None, b""),
            (b'["future","ours","main"]', b"{}"),
            (b'["topic","ours","main","x"]', b'{"colour": 1}'),
            (b'["start","ours","main"]', b'{"epochs": 1}'),
            topic_record("theirs", "main", replace(PROGRESS, topic="gone")),
            (topic_key("theirs", "main", "gone"), None),
            skip_record("ours", "main", skip),
            adoption_record("ours", "main", adoption),
            topic_record("ours", "main", newer),
            (stop_key("ours", "main"), None),
        ]
    )

    assert log.of("ours", "main") == {"orders": newer}
    assert log.topics.keys() == {("ours", "main", "orders")}
    assert log.stops == {("ours", "other"): stop}
    assert log.starts == {}
    assert log.skips_of("ours", "main", "orders") == {0: [skip]}
    assert log.adoptions == {("ours", "main"): [adoption]}
    assert (newer.next_offset(1), newer.next_offset(2), newer.last_offset(2)) == (1, 0, NOTHING)


TOPIC_KEY = b'["topic","ours","main","orders"]'


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        (TOPIC_KEY, {"next_offsets": "34"}),
        (TOPIC_KEY, {"next_offsets": [1.5, 2]}),
        (TOPIC_KEY, {"next_offsets": None}),
        (TOPIC_KEY, {"last_offsets": [[1], [2]]}),
        (TOPIC_KEY, {"epoch": "7"}),
        (TOPIC_KEY, {"epoch": True}),
        (TOPIC_KEY, {"destination": ["orders"]}),
        (TOPIC_KEY, {"topic": "another"}),
        (b'["topic",1,"main","orders"]', {}),
        (b'["topic","ours",["main"],"orders"]', {}),
        (b'["topic","ours","main"]', {}),
        (b'["topic","ours","main","orders","more"]', {}),
        (b"{}", {}),
        (b"\xff", {}),
        (b"[" * 100_000, {}),
    ],
)
def test_a_record_of_another_writer_is_no_progress(key: bytes, changes: dict[str, Any]) -> None:
    content = {**json.loads(topic_record("ours", "main", PROGRESS)[1]), **changes}
    log = read_log([(key, json.dumps(content).encode())])
    assert log == ProgressLog()


@pytest.mark.parametrize(
    ("headers", "queue_offset"),
    [
        ([(p.QUEUE_OFFSET, b"7"), (p.LAKE_ID, b"ours")], 7),
        ([(p.QUEUE_OFFSET, b"0"), (p.LAKE_ID, b"ours"), (p.QUEUE_OFFSET, b"x")], 0),
        ([(p.QUEUE_OFFSET, b"abc"), (p.LAKE_ID, b"ours")], None),
        ([(p.QUEUE_OFFSET, b"-7"), (p.LAKE_ID, b"ours")], None),
        ([(p.QUEUE_OFFSET, b" 7"), (p.LAKE_ID, b"ours")], None),
        ([(p.QUEUE_OFFSET, b"7_0"), (p.LAKE_ID, b"ours")], None),
        ([(p.QUEUE_OFFSET, "\u0667".encode()), (p.LAKE_ID, b"ours")], None),
        ([(p.QUEUE_OFFSET, b"9" * 5_000), (p.LAKE_ID, b"ours")], None),
        ([(p.QUEUE_OFFSET, b""), (p.LAKE_ID, b"ours")], None),
        ([(p.QUEUE_OFFSET, None), (p.LAKE_ID, b"ours")], None),
        ([(p.QUEUE_OFFSET, b"7"), (p.LAKE_ID, None)], None),
        ([(p.QUEUE_OFFSET, b"7"), (p.LAKE_ID, b"")], None),
        ([(p.QUEUE_OFFSET, b"7"), (p.LAKE_ID, b"\xff")], None),
        ([(p.QUEUE_OFFSET, b"7")], None),
        ([(p.LAKE_ID, b"ours")], None),
        ([], None),
        (None, None),
    ],
)
def test_a_record_is_a_publishers_by_whole_headers(
    headers: list[Any] | None, queue_offset: int | None
) -> None:
    message = SimpleNamespace(headers=lambda: headers, value=lambda: b"v")
    record = published_record(message)
    assert (record and record.queue_offset) == queue_offset


@pytest.mark.parametrize(
    ("recorded", "published", "topics", "newest", "epochs", "why"),
    [
        (None, [], (), 5, {"": 5}, "the first start"),
        (None, [], ("a",), 5, {"a": 5}, "the first start"),
        (None, [3, 7], ("a",), 9, {"a": 7}, "an older version has begun: what it knew holds"),
        (None, [7], (), 4, {"": 4}, "the lake was put back from a copy"),
        ({"": 5}, [9], (), 9, {"": 5}, "nothing has changed"),
        ({"": 5}, [], ("a",), 9, {"a": 5}, "it was one of all"),
        ({"a": 5}, [], ("a", "b"), 9, {"a": 5, "b": 9}, "b is named first"),
        ({"a": 5}, [], (), 9, {"": 9, "a": 5}, "all others are there first"),
        ({"": 9, "a": 5}, [], ("a", "b"), 12, {"a": 5, "b": 9}, "b was one of all"),
        ({"a": 5}, [], ("b",), 9, {"b": 9}, "a is no more"),
        ({"": 5}, [], (), 3, {"": 3}, "the lake was put back from a copy"),
    ],
)
def test_a_start_keeps_since_when_a_topic_was_in_the_settings(
    recorded: dict[str, int] | None,
    published: list[int],
    topics: tuple[str, ...],
    newest: int,
    epochs: dict[str, int],
    why: str,
) -> None:
    log = ProgressLog()
    if recorded is not None:
        log = read_log([start_record("ours", "main", Start(recorded))])
    for epoch in published:
        log.topics["ours", "main", str(epoch)] = replace(PROGRESS, epoch=epoch)
    log.starts["ours", "other"] = log.starts["theirs", "main"] = Start({"": 1, "a": 1, "b": 1})

    assert log.start_of("ours", "main", topics, newest) == Start(epochs), why


def test_a_topic_is_new_that_was_made_after_it_was_in_the_settings_first() -> None:
    start = Start({"": 9, "a": 5})
    assert [start.is_new("a", epoch) for epoch in (5, 6)] == [False, True]
    assert [start.is_new("b", epoch) for epoch in (9, 10)] == [False, True]
    assert not Start({"a": 5}).is_new("b", 9)


def test_skips_are_passed_in_both_directions() -> None:
    skips = [Skip("t", 0, first, last, "", "", 0) for first, last in ((2, 3), (4, 4), (9, 9))]
    assert [after_skips(offset, skips) for offset in (1, 2, 3, 4, 5)] == [1, 5, 5, 5, 5]
    assert [before_skips(offset, skips) for offset in (5, 4, 3, 2, 9)] == [5, 1, 1, 1, 8]


@pytest.mark.parametrize(
    ("lake_id", "publisher", "said"),
    [
        ("ours", "main", None),
        ("ours", "second", "publisher main of this lake publishes to the Kafka topic orders"),
        ("theirs", "main", "lake ours publishes to the Kafka topic orders, and this lake is"),
    ],
)
def test_a_destination_has_one_publisher(lake_id: str, publisher: str, said: str | None) -> None:
    log = read_log([topic_record("ours", "main", PROGRESS)])
    settings = PublisherSettings(publisher)
    require(said, require_nobody_else, log, lake_id, settings, "orders")
    require_nobody_else(log, lake_id, replace(settings, destination="x-{topic}"), "orders")


def test_our_own_real_topics_are_published_when_they_are_named_only() -> None:
    catalog = {name: Topic(1, 4, 1) for name in ("orders", p.CHECK_MAX_TOPIC)}
    assert list(wanted_topics(MAIN, catalog)) == ["orders"]
    named = replace(MAIN, topics=(p.CHECK_MAX_TOPIC, "not_there_yet"))
    assert list(wanted_topics(named, catalog)) == [p.CHECK_MAX_TOPIC]


JOB = {"lake": {"path": "l"}, "kafka": {"bootstrap_servers": "h:1", "client": {"client.id": "x"}}}


@pytest.mark.parametrize(
    ("publisher", "said"),
    [
        (3, "[publish] main = 3: a publisher is a section, [publish.main]"),
        ({"colour": 1}, "[publish.main] colour is unknown; the keys are begin, "),
        ({"topics": "orders"}, "topics = 'orders': a list of topics' names is allowed"),
        ({"topics": ["a b"]}, "topics = ['a b']: a list of topics' names is allowed"),
        ({"destination": "orders"}, "destination = 'orders': the name of a Kafka topic with"),
        ({"begin": dt.datetime(2026, 1, 31, tzinfo=dt.timezone.utc)}, "or an instant like"),
        ({"bootstrap_servers": "kafka2:99999"}, "bootstrap_servers = 'kafka2:99999': host:port"),
        ({"bootstrap_servers": "http://kafka2"}, "host:port, or '' is allowed"),
        ({"begin": "yesterday"}, "begin = 'yesterday': 'earliest', 'latest' or an instant like"),
        ({"begin": "2026-01-31T08:00:00"}, "begin = '2026-01-31T08:00:00': 'earliest'"),
        ({"progress_topic": "TXLAKE_ADMIN"}, "'TXLAKE_ADMIN' is a topic of the job's own"),
        ({"progress_topic": "TRANS_CHECK_shop"}, "is a topic of the job's own"),
        ({"key": "tags"}, "key = 'tags': 'keys' or 'none' is allowed"),
        ({"transaction_timeout_ms": True}, "transaction_timeout_ms = True: a whole number 1000"),
        ({"client": {"acks": "0"}}, "[publish.main.client] acks is set by txlake"),
        ({"client": {"sasl.password": "s3cret"}}, "use sasl.password_env"),
    ],
)
def test_a_wrong_setting_of_a_publisher_is_named(publisher: Any, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse({**JOB, "publish": {"main": publisher}}, "f")
    assert said in str(error.value)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("first", "second", "destination"),
    [
        ({}, {}, "{topic}"),
        ({}, {"topics": ["orders", "bills"]}, "bills"),
        ({"topics": ["orders", "bills"]}, {"topics": ["orders"]}, "orders"),
        ({"topics": ["a.x"], "destination": "{topic}"},
         {"topics": ["x"], "destination": "a.{topic}"}, "a.x"),
        ({}, {"bootstrap_servers": "h:1"}, "{topic}"),
        ({}, {"bootstrap_servers": "h:2"}, None),
        ({}, {"destination": "lake.{topic}"}, None),
        ({"topics": ["orders"]}, {"topics": ["bills"]}, None),
        ({}, {"topics": [p.UNDELIVERABLE_TOPIC]}, None),
        ({"topics": [p.CHECK_MAX_TOPIC, "orders"]}, {}, "orders"),
    ],
)  # fmt: skip
def test_two_publishers_of_one_destination_are_refused_by_the_settings(
    first: dict[str, Any], second: dict[str, Any], destination: str | None
) -> None:
    values = {**JOB, "publish": {"main": first, "second": second}}
    if destination is None:
        assert list(parse(values, "f").publish) == ["main", "second"]
        return

    with pytest.raises(SettingsError) as error:
        parse(values, "f")
    assert str(error.value) == (
        f"f: [publish.main] and [publish.second] both write to the Kafka topic {destination}: "
        "one publisher a destination"
    )


def test_a_publisher_writes_to_the_jobs_kafka_unless_it_has_its_own() -> None:
    given = {
        "main": {},
        "far": {"bootstrap_servers": "f:2", "begin": "2026-01-31T08:00:00Z"},
        "login": {"client": {"client.id": "y"}, "destination": "other.{topic}"},
    }
    found = parse({**JOB, "publish": given}, "f").publish
    assert {name: (one.bootstrap_servers, one.client) for name, one in found.items()} == {
        "main": ("h:1", {"client.id": "x"}),
        "far": ("f:2", {}),
        "login": ("h:1", {"client.id": "y"}),
    }


def test_a_name_of_ours_is_never_a_users() -> None:
    own = [(name, "mine") for name in (p.QUEUE_OFFSET, p.PLACE, p.LAKE_ID)]
    raw = [(name, b"mine") for name in (*p.PUBLISHED_HEADERS, *p.ADMIN_HEADERS)]
    rows = table_of(
        [
            row(0, properties=[*own, ("colour", "red")]),
            row(1, raw_headers=[{"key": k, "value": v} for k, v in [*raw, ("a", None)]]),
        ],
        TOPIC,
    )
    first, second = RecordMaker("orders", "ours", has_keys=True).records(rows)
    names = [name for name, _ in first[HEADERS]]
    assert names == [p.QUEUE_OFFSET, p.PLACE, p.REAL_TOPIC, p.LAKE_ID, "colour"]
    assert second[HEADERS][4:] == [("a", None)]


@pytest.mark.parametrize(
    "columns",
    [
        [{}, {}],
        [{"properties": [("a", "1"), ("b", "2")]}, {"properties": [("b", "3"), ("a", "4")]}],
        [{"properties": [("a", "1"), ("b", "2")]}, {"properties": [("c", "3")]}],
        [{"properties": [("a", "1")]}, {}],
        [{"properties": []}, {"properties": [("a", "1"), ("b", "2")]}, {"properties": None}],
        [{"keys": "k", "properties": [("a", "1")]}, {"keys": None, "properties": [("a", "2")]}],
        [{"tags": "t"}, {"tags": "u"}],
        [{"tags": "t"}, {"tags": "t"}, {"tags": "t"}],
        [{"tags": "t"}, {"tags": "u"}, {"tags": "t"}],
        [{"tags": "t"}, {"tags": None}, {"tags": "t"}],
        [{"tags": None}, {"tags": "t"}, {"tags": None}],
        [
            {"raw_headers": [{"key": "a", "value": b"\xff"}, {"key": "a", "value": None}]},
            {"properties": [("a", "1")]},
        ],
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_each_record_has_the_headers_of_its_row(columns: list[dict[str, Any]], first: int) -> None:
    """As if each row stood alone, whatever stands beside it, and in a slice of a table."""
    table = table_of([row(number, **values) for number, values in enumerate(columns)], TOPIC)
    records = list(RecordMaker("orders", "ours", has_keys=True).records(table.slice(first)))

    expected = []
    for number, values in list(enumerate(columns))[first:]:
        headers = [
            (p.QUEUE_OFFSET, str(number).encode()),
            (p.PLACE, f"half:1-{number}".encode()),
            (p.REAL_TOPIC, b"orders"),
            (p.LAKE_ID, b"ours"),
        ]
        for name, column in ((p.KEYS, "keys"), (p.TAGS, "tags")):
            if values.get(column) is not None:
                headers.append((name, values[column].encode()))
        raw = [(one["key"], one["value"]) for one in values.get("raw_headers") or ()]
        sent = [(name, text.encode()) for name, text in values.get("properties") or ()]
        key = values.get("keys")
        at_ms = 1_000
        expected.append((b"b", key and key.encode(), at_ms, headers + (raw or sent)))

    assert records == expected


def row(queue_offset: int, **columns: Any) -> dict[str, Any]:
    return {
        "queue_id": 0,
        "queue_offset": queue_offset,
        "stored_at": 1_000,
        "source": "half",
        "half_queue_id": 1,
        "half_queue_offset": queue_offset,
        "body": b"b",
        **columns,
    }


def test_a_record_has_the_time_of_its_half_or_of_its_delivery_and_the_key_that_is_asked_for() -> (
    None
):
    rows = table_of([row(0, keys="k"), row(1, keys=None)], TOPIC)
    times = pa.array([77, None], pa.int64())
    records = list(RecordMaker("orders", "ours", has_keys=True).records(rows, times))
    assert [(key, at_ms) for _, key, at_ms, _ in records] == [(b"k", 77), (None, 1_000)]
    ((_, key, _, headers), _) = RecordMaker("orders", "ours", has_keys=False).records(rows, times)
    assert key is None
    assert (p.KEYS, b"k") in headers


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    job = InMemoryJob(tmp_path / "lake")
    for number in range(3):
        job.end(COMMIT, job.half(f"tx-{number}", body=b"b"))
        job.run()
    return job


def test_rows_that_are_missing_stop_the_publisher(job: InMemoryJob) -> None:
    lake = open_lake(job.lake.path, {})
    epochs = CommittedEpochs(lake)
    assert epochs.refresh() and not epochs.refresh()
    assert epochs.epoch == 3
    ends = {queue: end for (_, queue), end in epochs.ends.items()}
    assert sum(ends.values()) == 3
    queue, end = max(ends.items(), key=lambda one: one[1])

    rows = CommittedRows(lake, "orders", lake.topics()["orders"])
    rows.seek(queue, 0)
    with pytest.raises(LakeError, match=f"offsets up to {end + 1} are committed, and the table"):
        list(rows.take({queue: end + 1}))


def test_a_row_that_is_missing_between_others_stops_the_publisher(job: InMemoryJob) -> None:
    for number in range(3):
        job.end(COMMIT, job.half(f"one-{number}", body=b"b", real_queue_id=0))
    job.run()
    lake = open_lake(job.lake.path, {})
    topic = lake.topics()["orders"]
    table = job.lake.table(f"topics/{topic.table_id}")
    end = pc.sum(pc.equal(job.lake.read(f"topics/{topic.table_id}")["queue_id"], 0)).as_py()
    table.handle().delete("queue_id = 0 AND queue_offset = 0")

    rows = CommittedRows(lake, "orders", topic)
    rows.seek(0, 0)
    with pytest.raises(LakeError, match=r"offset 0 was expected, 1 was found: .* `txlake verify`"):
        rows.read_ahead({0: end})
    with pytest.raises(LakeError, match="offset 0 was expected, 1 was found"):
        rows.peek({0: end}, 10, ["epoch"])


def test_another_history_of_a_lake_is_refused(job: InMemoryJob) -> None:
    lake = open_lake(job.lake.path, {})
    epochs = CommittedEpochs(lake)
    epochs.refresh()
    digest = epochs.digest_of(2)
    assert digest and digest != epochs.digest
    require(None, require_digest, epochs, 2, digest)
    require(None, require_digest, epochs, 0, "")
    require("epoch 2 of the lake l has digest", require_digest, epochs, 2, "another")
    require("is 3, and epoch 4 is published", require_digest, epochs, 4, digest)


def test_when_an_epoch_was_committed_is_found_without_the_epochs_since(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        job.end(COMMIT, job.half(f"more-{number}"))
        job.run()
    written = {
        row["epoch"]: row["written_at"]
        for row in job.lake.read("epochs").to_pylist()
        if row["state"] == "committed"
    }
    epochs = CommittedEpochs(open_lake(job.lake.path, {}))
    epochs.refresh()

    opened: list[int] = []
    dataset = DeltaFiles.dataset

    def counted(files: DeltaFiles, paths: Any) -> Any:
        opened.append(len(paths))
        return dataset(files, paths)

    monkeypatch.setattr(DeltaFiles, "dataset", counted)
    for epoch in range(23):
        opened.clear()
        assert epochs.committed_after(epoch) == written[epoch + 1]
        assert sum(opened) <= 3, epoch
    assert epochs.committed_after(23) is None

    job.lake.table("epochs").handle().optimize.compact()
    epochs.refresh()
    assert [epochs.committed_after(epoch) for epoch in range(23)] == list(written.values())


def require_digest(epochs: CommittedEpochs, epoch: int, digest: str) -> None:
    require_epochs(epochs, "l", epoch=epoch, digest=digest)


def test_the_time_of_a_half_is_found_by_its_place(job: InMemoryJob) -> None:
    lake = open_lake(job.lake.path, {})
    rows = table_of(
        [{**row(0), "half_queue_id": 0, "half_queue_offset": at} for at in (2, 0, 9)]
        + [{**row(0), "source": "schedule"}],
        TOPIC,
    )
    first, second = START_AT + 0, START_AT + 2_000
    assert StoredTimes(lake).at_ms(rows).to_pylist() == [second, first, None, None]


Change = Callable[[int], tuple[int, bytes | None, bytes | None, list[Any]]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda at: (at, b"k", b"v", [("a", "1")]), ""),
        (lambda at: (at, b"k", b"v" if at != 1_500 else b"w", [("a", "1")]), "1000 to 1999"),
        (lambda at: (at, b"k" if at != 3 else None, b"v", [("a", "1")]), "offsets 0 to 999"),
        (lambda at: (at, b"k", b"v", [("a", "1" if at != 3 else None)]), "offsets 0 to 999"),
        (lambda at: (at if at != 7 else 6, b"k", b"v", [("a", "1")]), "offset 6 comes after 6"),
        (lambda at: (at + (at > 9), b"k", b"v", [("a", "1")]), "offsets 0 to 999"),
    ],
    ids=["same", "value", "key", "header", "twice", "gap"],
)
def test_a_queue_that_differs_from_its_table_is_found(change: Change, said: str) -> None:
    published, table = QueueDigest(), QueueDigest()
    for at in range(2_000):
        published.add(*change(at))
        table.add(at, b"k", b"v", [("a", b"1")])
    found = difference(published, table)
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("begin", "first", "said"),
    [
        (1, 1_000, "1000 to 1999"),
        (1_000, 1_000, "1000 to 1999"),
        (1_001, 2_000, ""),
        (2_001, None, ""),
    ],
)
def test_a_queue_is_compared_from_its_first_block_that_is_whole(
    begin: int, first: int | None, said: str
) -> None:
    published, table = QueueDigest(), QueueDigest()
    for at in range(2_500):
        published.add(at, b"k", b"v" if at != 1_500 else b"w", [])
        if first is not None and at >= first:
            table.add(at, b"k", b"v", [])

    rest = published.since(begin)
    assert (rest.first, rest.count) == (first, table.count)
    found = difference(rest, table)
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize("name", ["max.in.flight.requests.per.connection", "max.in.flight"])
def test_a_clients_own_number_of_requests_on_their_way_goes_before_ours(name: str) -> None:
    """librdkafka refuses 6 of an idempotent producer: it was given the client's."""
    settings = PublisherSettings("main", bootstrap_servers="127.0.0.1:1", client={name: "6"})

    with pytest.raises(StartError, match=r"\[publish.main.client\]: .*max.in.flight"):
        Transactions(settings, "lake", 1_000_000)


def test_a_topic_whose_table_is_not_made_yet_has_no_first_message(whole_lake: Path) -> None:
    lake = open_lake(str(whole_lake), {})
    rows = CommittedRows(lake, "new", Topic(99, 4, 1))
    assert rows.first_since(datetime(2026, 1, 1, tzinfo=timezone.utc)) == {}

    files = DeltaFiles(lake.uri("topics/99"), {})
    with pytest.raises(LakeError, match="topics/99: there is no table"):
        files.dataset([])


def lag_rows(job: InMemoryJob, begin: str = "earliest") -> dict[str, tuple[int, int | None]]:
    """Return the lag of each topic, in messages and ms, as the status shows it."""
    lake = open_lake(job.lake.path, {})
    epochs = CommittedEpochs(lake)
    epochs.refresh()
    lags = topic_lags(lake, epochs, PublisherSettings("main", begin=begin), ProgressLog())
    status = PublisherStatus("main", lake.lake_id, topics=tuple(lags))
    now_ms = milliseconds(epochs.committed_after(epochs.epoch - 1)) + 500
    return {row["topic"]: (row["lag"], row["lag_ms"]) for row in topic_rows([status], now_ms)}


def test_each_topic_has_a_lag_of_its_own(job: InMemoryJob) -> None:
    job.end(COMMIT, job.half("last", real_topic="bills"))
    job.run(60_000)
    written = [row for row in job.lake.read("epochs").to_pylist() if row["state"] == "committed"]
    first, last = (milliseconds(written[at]["written_at"]) for at in (0, -1))
    lags = lag_rows(job)
    assert lags == {"orders": (3, last - first + 500), "bills": (1, 500)}
    assert lags["orders"][1] != 500


def test_a_lag_begins_where_the_publisher_would_begin(job: InMemoryJob) -> None:
    assert lag_rows(job, begin="latest") == {"orders": (0, 0)}
    topic = open_lake(job.lake.path, {}).topics()["orders"]
    _, second_at, _ = sorted(job.lake.read(f"topics/{topic.table_id}")["stored_at"].to_pylist())
    since = f"{second_at:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
    assert lag_rows(job, begin=since)["orders"][0] == 2


def test_deleted_messages_are_no_lag(tmp_path: Path) -> None:
    job = AgingJob(tmp_path / "lake", half_retention_ms=10**9)
    job.topics = Retention(EPOCH_MS, -1)
    for number in range(12):
        job.end(COMMIT, job.half(f"t{number}", real_queue_id=0))
        job.run(EPOCH_MS)
        if number % 6 == 5:
            job.maintain()
    queue = read_queues(job.lake, "orders")[0]
    assert queue["begin_offset"] > 0
    assert lag_rows(job)["orders"][0] == queue["end_offset"] - queue["begin_offset"]


def test_a_message_that_is_deleted_while_it_is_looked_up_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = AgingJob(tmp_path / "lake", half_retention_ms=10**9)
    job.topics = Retention(EPOCH_MS, -1)
    job.end(COMMIT, job.half("t", real_queue_id=0))
    job.run(EPOCH_MS)
    lake = open_lake(job.lake.path, {})
    rows = CommittedRows(lake, "orders", lake.topics()["orders"])
    seek = rows.seek

    def seek_slowly(queue_id: int, position: int) -> None:
        seek(queue_id, position)
        for _ in range(6):
            job.run(EPOCH_MS)
        job.maintain()

    monkeypatch.setattr(rows, "seek", seek_slowly)
    assert rows.place_and_body(0, 0) is None
    assert read_queues(job.lake, "orders")[0]["begin_offset"] == 1

"""Committed messages in Kafka, by a real broker and a real lake: each once, whatever dies."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import DeltaTable

from pipelines.errors import StartError
from pipelines.jvm.jars import class_path
from pipelines.local_broker.broker import Broker
from pipelines.publish import retention
from pipelines.publish.committed import CommittedEpochs
from pipelines.publish.destination import Destination
from pipelines.publish.errors import FencedError, PublishError, RefusedRecordError
from pipelines.publish.process import PublisherProcess
from pipelines.publish.records import Record
from pipelines.publish.retention import PublishedPositions, read_positions
from pipelines.publish.status import read_publishers
from pipelines.publish.transactions import Transactions
from pipelines.publish.verification import verify_published
from pipelines.settings import Settings
from storage.lake.progress import read_progress
from storage.maintenance.limits import Retention
from storage.maintenance.maintenance import Maintenance
from tests.support.job import wait_until
from tests.support.kafka_admin import admin_client
from tests.support.maintenance_rounds import NOW_GONE
from tests.support.operator import said as output_of
from tests.support.optional import java_with_compiler
from tests.support.publishers import (
    AFTER,
    BEFORE,
    WITHIN,
    PublishedLake,
    PublisherThread,
    killed_publisher,
    new_turn,
    offset_of,
    publish_all,
    wait_for_markers,
)
from tests.support.toml import toml_of
from tests.support.wait import DEADLINE_S
from txlake import protocol as p
from txlake._delta_log import entry_name

CONSUMERS = Path(__file__).parents[2] / "docs" / "kafka-consumers.md"
Unique = Callable[[str], str]
Make = Callable[..., PublishedLake]


@pytest.fixture
def make(broker: Broker, tmp_path: Path, unique: Unique) -> Make:
    """Return what makes a lake with a publisher; its Kafka topics have a prefix of their own."""

    def new(folder: str = "lake", **publisher: Any) -> PublishedLake:
        prefix = publisher.pop("prefix", None) or unique("publish")
        return PublishedLake(tmp_path / folder, broker.bootstrap_servers, prefix, **publisher)

    return new


def orders(count: int, first: int = 0, **columns: Any) -> list[dict[str, Any]]:
    return [
        {"body": b"body-%d" % number, "keys": f"key-{number}", **columns}
        for number in range(first, first + count)
    ]


def test_a_message_is_published_once_with_all_that_was_sent(make: Make) -> None:
    lake = make()
    lake.send(
        {
            "body": b"plain",
            "keys": "k1",
            "tags": "t1",
            "half_queue": 1,
            "real_queue_id": 2,
            "properties": [("colour", "red"), (p.QUEUE_OFFSET, "mine")],
        },
        {"body": None, "half_queue": 0, "real_queue_id": 0},
        {
            "body": b"raw",
            "half_queue": 0,
            "real_queue_id": 1,
            "raw_headers": [
                {"key": p.PGROUP, "value": b"g"},
                {"key": "a", "value": b"1"},
                {"key": "a", "value": b"\xff"},
                {"key": p.ACTOR, "value": b"x"},
            ],
        },
    )

    assert publish_all(lake.settings()) == 3
    assert publish_all(lake.settings()) == 0

    null, raw, plain = sorted(lake.consume(), key=lambda message: int(message.partition()))
    assert [(m.partition(), m.key(), m.value()) for m in (null, raw, plain)] == [
        (0, None, None),
        (1, None, b"raw"),
        (2, b"k1", b"plain"),
    ]
    assert plain.timestamp()[1] == lake.stored_at()[1, 0]
    assert plain.headers() == [
        (p.QUEUE_OFFSET, b"0"),
        (p.PLACE, b"half:1-0"),
        (p.REAL_TOPIC, b"orders"),
        (p.LAKE_ID, lake.job.lake.lake_id().encode()),
        (p.UNIQ_KEY, b"tx-0-0"),
        (p.PGROUP, b"g"),
        (p.KEYS, b"k1"),
        (p.TAGS, b"t1"),
        ("colour", b"red"),
    ]
    assert raw.headers()[6:] == [("a", b"1"), ("a", b"\xff")]


def test_what_is_not_committed_is_not_read(make: Make) -> None:
    lake = make()
    lake.send(*orders(2))
    lake.send(*orders(3, first=2), commit=False)
    assert sum(map(len, lake.rows().values())) == 5

    assert publish_all(lake.settings()) == 2


@pytest.mark.parametrize("at", [BEFORE, WITHIN, AFTER])
def test_kill_9_around_a_commit_neither_loses_nor_doubles(
    make: Make, tmp_path: Path, at: str
) -> None:
    lake = make(transaction_messages_max=3)
    lake.send(*orders(4))
    lake.send_set(*orders(4, first=4))
    lake.send(*orders(4, first=8))

    log = tmp_path / "log"
    with killed_publisher(log, lake.values(), at, 3, signal.SIGKILL) as publisher:
        publisher.require_end(-signal.SIGKILL)

    publish_all(lake.settings())
    lake.require_published()


def test_one_that_sleeps_longer_than_its_transaction_may_is_fenced_by_the_next(
    make: Make, tmp_path: Path
) -> None:
    lake = make()
    lake.send(*orders(6))

    # The others have time, however slow the machine is.
    values, log = lake.values(main={"transaction_timeout_ms": 1_000}), tmp_path / "log"
    with killed_publisher(log, values, BEFORE, 2, signal.SIGSTOP) as sleeper:
        wait_until(sleeper.is_suspended, "the first publisher sleeps", seen=sleeper.said)
        sleeps_at = time.monotonic()
        wait_until(lambda: time.monotonic() - sleeps_at > 1.0, "longer than it may")
        assert publish_all(lake.settings()) == 6
        lake.send(*orders(2, first=6))
        sleeper.go_on()
        sleeper.require_end(1)
        assert FencedError.__name__ in sleeper.said()

    assert publish_all(lake.settings()) == 2
    lake.require_published()


def test_transactions_that_take_too_long_get_smaller_until_they_end_in_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    begin, send, commit = Transactions.begin, Transactions.send, Transactions.commit
    sent: Counter[str] = Counter()  # in this transaction, by Kafka topic

    def begin_anew(self: Transactions) -> None:
        sent.clear()
        begin(self)

    def count_sent(self: Transactions, topic: str, queue: int, records: Iterable[Record]) -> int:
        count = send(self, topic, queue, records)
        sent[topic] += count
        return count

    def commit_slowly(self: Transactions) -> None:
        """Commit more than six messages only when Kafka has aborted them."""
        if sent.total() > 6:
            assert not self._producer.flush(DEADLINE_S)
            for topic in sent:
                wait_for_markers(own.bootstrap_servers, topic, range(4))
        commit(self)

    monkeypatch.setattr(Transactions, "begin", begin_anew)
    monkeypatch.setattr(Transactions, "send", count_sent)
    monkeypatch.setattr(Transactions, "commit", commit_slowly)
    monkeypatch.setattr("pipelines.publish.process._FENCED_S", 0.1)
    looks = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with Broker(tmp_path / "broker", properties=looks) as own:
        lake = PublishedLake(
            tmp_path / "lake", own.bootstrap_servers, "slow", transaction_timeout_ms=1_000
        )
        lake.send(*orders(24))
        with PublisherThread(lake.settings()) as publisher:
            publisher.wait_until(lambda: len(lake.consume()) == 24, "all is published")
        lake.require_published()

    said = [one.message for one in caplog.records if "transaction_timeout_ms" in one.message]
    assert "with 24 messages failed after" in said[0] and said[0].endswith("at most 12")
    assert "with 12 messages failed after" in said[1] and said[1].endswith("at most 6")
    assert "fenced" not in capfd.readouterr().err, "librdkafka writes past Python's logging"


def test_a_start_beside_one_that_still_publishes_goes_on_behind_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make()
    lake.send(*orders(2))
    settings = lake.settings()
    init = Transactions.init

    def init_late(self: Transactions) -> None:
        monkeypatch.setattr(Transactions, "init", init)
        lake.send(*orders(2, first=2))
        assert publish_all(settings) == 4
        init(self)

    monkeypatch.setattr(Transactions, "init", init_late)
    assert publish_all(settings) == 0
    lake.require_published()


def test_a_message_transaction_is_one_instant(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = make(transaction_messages_max=1)
    lake.send_set(*orders(3), *orders(2, real_topic="payments"))
    lake.send_set(*orders(2, first=3), *orders(1, first=2, real_topic="payments"))
    lake.send(*orders(2, first=5))
    seen: list[tuple[int, int]] = []
    commit = Transactions.commit

    def committed(self: Transactions) -> None:
        commit(self)
        seen.append((len(lake.consume()), len(lake.consume("payments"))))

    monkeypatch.setattr(Transactions, "commit", committed)
    publish_all(lake.settings())

    assert seen == [(0, 0), (3, 2), (5, 3), (6, 3), (7, 3)]


def test_what_a_clean_up_of_the_log_hides_from_a_quick_look_is_published(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.publish.publisher._SURE_LOOK_S", 3_600.0)  # a slow test is quick
    lake = make()
    settings = lake.settings()
    lake.send(*orders(3))
    turn = new_turn(settings)
    turn.begin()
    while turn.publish_committed():
        pass
    assert turn._may_have_news()  # the first look is a whole one
    assert not turn._may_have_news()

    lake.send(*orders(2, first=3))
    assert turn._may_have_news()
    epochs = Path(settings.lake.path, "epochs")
    table = DeltaTable(str(epochs))
    table.create_checkpoint()
    for version in range(table.version()):
        (epochs / "_delta_log" / entry_name(version)).unlink(missing_ok=True)
    assert not turn._may_have_news()

    turn._look_at = 0.0  # the next whole look is due
    assert turn._may_have_news()
    assert turn.publish_committed()
    turn.close()
    lake.require_published()


def test_a_client_setting_that_only_a_consumer_refuses_is_one_sentence(make: Make) -> None:
    lake = make()
    lake.send(*orders(1))
    publish_all(lake.settings())
    lake.publisher["client"] = {"session.timeout.ms": 400_000}
    said = "the settings of Kafka's client: Failed to create consumer: `max.poll.interval.ms`"

    assert said in operate(lake, "status", reason=None, code=1)
    assert said in operate(lake, "skip --topic orders --queue 0 --offset 0", code=1)
    settings = lake.settings()
    with pytest.raises(StartError, match=re.escape(said)):
        PublisherProcess(settings, settings.publish["main"]).run()
    PublishedPositions(settings).wait(DEADLINE_S)  # a thread that dies is an error


def test_a_topic_that_grows_grows_in_kafka_first(make: Make) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(4, real_queue_id=3))
    turn = new_turn(settings)
    turn.begin()
    assert turn.publish_committed()

    lake.job.command(p.CREATE_TOPIC, "topic:orders:6")
    lake.job.run()
    lake.send(*orders(3, first=4, real_queue_id=5), *orders(1, first=7, real_queue_id=0))
    assert turn.publish_committed()
    turn.close()

    lake.require_published()
    assert {message.partition() for message in lake.consume()} == {0, 3, 5}


def test_a_destination_that_was_deleted_is_refused_until_somebody_says_how_it_goes_on(
    make: Make,
) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(4))
    publish_all(settings)
    lake.send(*orders(2, first=4))
    delete_topic(lake, lake.destination())

    with pytest.raises(PublishError, match=r"was deleted \(id .*\) after 4 messages of topic ord"):
        publish_all(settings)

    assert "queues go on at 0, 0, 0, 0" in operate(lake, "adopt --position earliest")
    assert publish_all(settings) == 6
    lake.require_published()


def test_without_the_progress_topic_nothing_is_written_until_somebody_says_how_it_goes_on(
    make: Make,
) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(4))
    publish_all(settings)
    delete_topic(lake, f"{lake.prefix}-progress")
    lake.send(*orders(3, first=4))

    with pytest.raises(PublishError, match="the progress topic says nothing of topic orders"):
        publish_all(settings)

    assert "taken from" not in operate(lake, "adopt --position published")
    assert publish_all(settings) == 3
    lake.require_published()


@pytest.mark.parametrize(("position", "count"), [("latest", 0), ("earliest", 6)])
def test_a_publisher_goes_on_where_it_was_said_behind_records_of_its_own_lake(
    make: Make, position: str, count: int
) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(4))
    publish_all(settings)
    delete_topic(lake, f"{lake.prefix}-progress")
    lake.send(*orders(2, first=4))

    operate(lake, f"adopt --position {position}")
    assert publish_all(settings) == count
    lake.send(*orders(1, first=6))
    assert publish_all(settings) == 1
    assert publish_all(settings) == 0
    assert "there is nothing to adopt" in operate(lake, "adopt --position latest", code=1)


@pytest.mark.parametrize(("position", "count"), [("latest", 0), ("earliest", 2)])
def test_a_publisher_of_a_lake_that_was_put_back_goes_on_where_it_was_said(
    make: Make, tmp_path: Path, position: str, count: int
) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(2, real_queue_id=1))
    shutil.copytree(lake.path, tmp_path / "copy")
    lake.send(*orders(2, first=2, real_queue_id=1))
    publish_all(settings)
    shutil.rmtree(lake.path)
    shutil.copytree(tmp_path / "copy", lake.path)
    with pytest.raises(PublishError, match="the lake was put back from an older copy"):
        publish_all(settings)

    refused = operate(lake, "adopt --position published", code=1)
    assert "queue offset 3, and the queue ends at 2 in this lake; say --position " in refused
    operate(lake, f"adopt --position {position}")
    assert publish_all(settings) == count


def test_a_topic_that_a_lake_that_was_put_back_lacks_is_adopted_too(
    make: Make, tmp_path: Path
) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(2))
    publish_all(settings)
    shutil.copytree(lake.path, tmp_path / "copy")
    lake.send(*orders(1, real_topic="audit"))
    publish_all(settings)
    shutil.rmtree(lake.path)
    shutil.copytree(tmp_path / "copy", lake.path)
    with pytest.raises(PublishError, match="the lake was put back from an older copy"):
        publish_all(settings)

    forgotten = "topic audit: not published any more; how far it was is forgotten"
    assert forgotten in operate(lake, "adopt --position published")
    assert publish_all(settings) == 0
    assert "there is nothing to adopt" in operate(lake, "adopt --position published", code=1)


def test_a_lake_that_was_put_back_is_refused_by_its_last_messages_where_epochs_are_deleted(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(2, real_queue_id=0))
    publish_all(settings)

    put_back = copied(lake, tmp_path / "copy")
    lake.send(*orders(2, first=2, real_queue_id=0))
    publish_all(settings)

    # As retention leaves it a week later.
    monkeypatch.setattr(CommittedEpochs, "digest_of", lambda *_: None)
    assert publish_all(settings) == 0

    put_back()
    lake.send(*orders(3, first=10, real_queue_id=0))
    with pytest.raises(PublishError, match="queue offset 3, is message half:1-1, and the lake"):
        publish_all(settings)

    assert "another history" in operate(lake, "adopt --position published", code=1)
    assert "queues go on at 5" in operate(lake, "adopt --position latest")
    assert publish_all(settings) == 0


def test_messages_of_a_lake_that_was_put_back_are_not_those_that_were_skipped(
    make: Make, tmp_path: Path
) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(4, real_queue_id=0))
    publish_all(settings)

    put_back = copied(lake, tmp_path / "copy")
    lake.send(*orders(2, first=4, real_queue_id=0))
    operate(lake, "skip --topic orders --queue 0 --offset 4 --to 5")

    put_back()
    lake.send(*orders(3, first=10, real_queue_id=0))
    with pytest.raises(PublishError, match="the lake has another history"):
        publish_all(settings)

    assert "queues go on at 4" in operate(lake, "adopt --position published")
    assert publish_all(settings) == 3
    lake.require_published()


def test_a_queue_of_which_nothing_was_published_begins_where_it_did(make: Make) -> None:
    lake = make(begin="latest")
    lake.send(*orders(2, real_queue_id=1))
    publish_all(lake.settings())
    lake.send(*orders(3, first=2, real_queue_id=0))
    assert publish_all(lake.settings()) == 3

    anew = make("anew", prefix=lake.prefix, begin="latest", progress_topic=f"{lake.prefix}-none")
    anew.send(*orders(2, real_queue_id=1))
    anew.send(*orders(3, first=2, real_queue_id=0))
    refused = operate(anew, "adopt --position published", code=1)
    assert "begin = 'latest' does not say where queue 1 of topic orders began" in refused

    anew.publisher["progress_topic"] = f"{lake.prefix}-progress"
    assert "queues go on at 3, 2, 0, 0" in operate(anew, "adopt --position published")
    assert publish_all(anew.settings()) == 0

    delete_topic(anew, f"{lake.prefix}-progress")
    anew.publisher["begin"] = "2199-01-31T08:00:00Z"
    assert "queues go on at 3, 2, 0, 0" in operate(anew, "adopt --position published")
    assert publish_all(anew.settings()) == 0


@pytest.mark.parametrize("topics", [[], ["orders"]])
@pytest.mark.parametrize("begin", ["latest", "2199-01-31T08:00:00Z"])
def test_a_topic_made_after_the_first_start_begins_at_its_first_message_whoever_starts_again(
    make: Make, begin: str, topics: list[str]
) -> None:
    lake = make(begin=begin)
    if topics:
        lake.send(*orders(1, real_topic="audit"))
    settings = lake.settings(main={"topics": topics})
    publish_all(settings)

    lake.send(*orders(3))
    assert publish_all(settings) == 3
    lake.require_published()


def test_a_topic_made_before_an_adoption_of_another_one_begins_at_its_first_message(
    make: Make,
) -> None:
    lake = make(begin="latest")
    settings = lake.settings()
    lake.send(*orders(1, real_topic="audit"))
    publish_all(settings)
    lake.send(*orders(3))
    delete_topic(lake, lake.destination("audit"))

    operate(lake, "adopt --position latest")
    assert publish_all(settings) == 3
    lake.require_published()


@pytest.mark.parametrize("is_first_there", [True, False])
def test_topics_that_kafka_takes_for_one_stop_the_publisher_with_the_names_of_both(
    make: Make, is_first_there: bool
) -> None:
    lake = make()
    settings = lake.settings()
    lake.send({"body": b"1", "real_topic": "a.b"})
    if is_first_there:
        publish_all(settings)
    lake.send({"body": b"1", "real_topic": "a_b"}, *orders(2))

    with pytest.raises(PublishError) as refused:
        publish_all(settings)
    assert str(refused.value).startswith(
        f"topic a_b would be published to {lake.destination('a_b')}, and Kafka takes no topic of "
        f"that name beside {lake.destination('a.b')}, to which topic a.b goes: to it '.' and '_' "
    )
    (status,) = read_publishers(settings)
    assert status.stop is not None
    assert (status.stop.cause, status.stop.reason) == ("refused_start", str(refused.value))

    pattern = f"{lake.prefix}-second-{{topic}}"
    settings = lake.settings(
        main={"topics": ["orders", "a.b"]}, second={"topics": ["a_b"], "destination": pattern}
    )
    assert publish_all(settings) == (2 if is_first_there else 3)
    assert publish_all(settings, "second") == 1
    assert read_publishers(settings)[0].stop is None


def test_a_record_that_is_refused_stops_the_publisher_until_it_is_skipped(make: Make) -> None:
    lake = make(record_bytes_max=2_000)
    settings = lake.settings()
    lake.send(*orders(3, real_queue_id=1))
    lake.send({"body": b"x" * 5_000, "real_queue_id": 1}, *orders(2, real_queue_id=0))

    for _ in range(2):
        with pytest.raises(RefusedRecordError) as refused:
            publish_all(settings)
        assert "does not take message half:0-2 of transaction tx-1-0 (topic orders, queue 1, " in (
            str(refused.value)
        )
    assert lake.consume() == []
    (status,) = json.loads(operate(lake, "status -o json", reason=None))
    assert (status["lag"], status["stopped"]) == (6, str(refused.value))

    command = "skip --topic orders --queue 1 --offset"
    said = "message 4; those that are committed and not published begin at 0 and end before 4"
    assert said in operate(lake, f"{command} 4", code=1)
    assert "message 3 is not published" in operate(lake, f"{command} 3")
    assert publish_all(settings) == 5
    assert sorted((m.partition(), offset_of(m)) for m in lake.consume()) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    (found,) = read_publishers(settings)
    assert (found.lag, found.stop, found.skips[0].reason) == (0, None, "a test")
    lake.send(*orders(1, first=9, real_queue_id=1))
    assert publish_all(settings) == 1


def test_each_queue_whose_next_messages_are_deleted_is_named_until_all_are_skipped(
    make: Make,
) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(1, real_queue_id=0), *orders(1, first=1, real_queue_id=1))
    publish_all(settings)
    lake.send(*orders(2, first=2, real_queue_id=0), *orders(2, first=4, real_queue_id=1))
    lake.send(
        *orders(1, first=6, real_queue_id=0),
        *orders(1, first=7, real_queue_id=1),
        after_ms=60_000,
    )
    delete_old_messages(lake, count=6)

    for queue_id in range(2):
        skip = f"skip --name main --topic orders --queue {queue_id} --offset 1 --to 2"
        with pytest.raises(PublishError, match=f"queue {queue_id}: 1 is .*txlake publish {skip}"):
            publish_all(settings)
        operate(lake, skip)

    assert publish_all(settings) == 2
    assert sorted(map(offset_of, lake.consume())) == [0, 0, 3, 3]


@pytest.mark.parametrize("options", [{}, {"transaction_messages_max": 1}])
def test_queues_that_were_deleted_whole_are_named_until_all_are_skipped(
    make: Make, options: dict[str, int]
) -> None:
    lake = make(**options)
    settings = lake.settings()
    lake.send(*orders(1, real_queue_id=0), *orders(1, first=1, real_queue_id=1))
    publish_all(settings)
    lake.send(*orders(2, first=2, real_queue_id=0), *orders(2, first=4, real_queue_id=1))
    lake.job.run(after_ms=60_000)
    delete_old_messages(lake, count=6)

    for queue_id in range(2):
        skip = f"skip --name main --topic orders --queue {queue_id} --offset 1 --to 2"
        with pytest.raises(PublishError, match=f"queue {queue_id}: 1 is .*{skip}") as named:
            publish_all(settings)
        run_printed(lake, str(named.value))

    assert publish_all(settings) == 0
    lake.send(*orders(2, first=6, real_queue_id=1))
    assert publish_all(settings) == 2
    assert sorted(map(offset_of, lake.consume())) == [0, 0, 3, 4]


def test_a_refused_record_is_named_where_others_of_its_queue_stand_behind_it(make: Make) -> None:
    """Kafka's client delivers nothing behind a refused record, and a commit would wait for it."""
    lake = make(record_bytes_max=2_000)
    lake.send({"body": b"x" * 5_000, "real_queue_id": 1})
    lake.send(*orders(3, real_queue_id=1))

    with pytest.raises(RefusedRecordError, match="topic orders, queue 1, offset 0") as named:
        publish_all(lake.settings())
    run_printed(lake, str(named.value))
    assert publish_all(lake.settings()) == 3


def test_a_refused_record_is_named_where_the_second_try_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_alone = Transactions._send_alone

    def send_slowly(self: Transactions, *arguments: Any) -> None:
        time.sleep(0.1)
        send_alone(self, *arguments)

    monkeypatch.setattr(Transactions, "_send_alone", send_slowly)
    monkeypatch.setattr("pipelines.publish.process._FENCED_S", 0.1)
    looks = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with Broker(tmp_path / "broker", properties=looks) as own:
        lake = PublishedLake(
            tmp_path / "lake",
            own.bootstrap_servers,
            "slow",
            transaction_timeout_ms=1_000,
            record_bytes_max=2_000,
        )
        lake.send(*orders(24, real_queue_id=1), {"body": b"x" * 5_000, "real_queue_id": 1})
        (settings,) = lake.settings().publish.values()
        names = lake.job.lake.lake_id(), settings.name

        with (
            pytest.raises(RefusedRecordError, match=r"half:0-12 .*queue 1, offset 12\)"),
            PublisherThread(lake.settings()) as publisher,
        ):
            publisher.wait_until(
                lambda: names in Destination(settings).progress().stops, "it has stopped"
            )


def test_another_lake_of_the_same_names_is_refused_until_somebody_says_how_it_goes_on(
    make: Make,
) -> None:
    lake = make()
    lake.send(*orders(4))
    publish_all(lake.settings())

    anew = make("anew", prefix=lake.prefix)
    anew.send(*orders(4))
    anew.send(*orders(2, first=4))
    with pytest.raises(PublishError, match=r"lake \w+ publishes to the Kafka topic .*-orders, and"):
        publish_all(anew.settings())
    assert publish_all(lake.settings()) == 0  # it was not disturbed

    assert "would be: " in operate(anew, "adopt --position published --dry-run")
    assert f"taken from publisher main of lake {lake.job.lake.lake_id()}" in operate(
        anew, "adopt --position published"
    )
    assert publish_all(anew.settings()) == 2
    anew.require_published()
    lake.send(*orders(1, first=9))
    with pytest.raises(PublishError, match="publishes to the Kafka topic"):
        publish_all(lake.settings())


def test_a_topic_that_another_lake_began_to_publish_meanwhile_is_refused(make: Make) -> None:
    lake = make()
    lake.send(*orders(1, real_topic="audit"))
    anew = make("anew", prefix=lake.prefix)
    anew.send(*orders(1, real_topic="bills"))
    first, second = new_turn(lake.settings()), new_turn(anew.settings())
    try:
        for turn in (first, second):
            turn.begin()
            assert turn.publish_committed()

        lake.job.command(p.CREATE_TOPIC, "topic:orders:4")  # its first message comes later
        lake.job.run()
        first.publish_committed()

        anew.send(*orders(1))
        with pytest.raises(PublishError, match=r"lake \w+ publishes to the Kafka topic .*-orders"):
            second.publish_committed()
        lake.send(*orders(2))
        assert first.publish_committed()
    finally:
        first.close()
        second.close()

    lake.require_published()


def test_a_lake_that_has_deleted_the_last_published_message_does_not_go_on_behind_it(
    make: Make,
) -> None:
    lake = make()
    lake.send(*orders(4, real_queue_id=0))
    publish_all(lake.settings())

    anew = make("anew", prefix=lake.prefix)
    anew.send(*orders(4, real_queue_id=0))
    anew.send(*orders(2, first=4, real_queue_id=0), after_ms=60_000)
    delete_old_messages(anew, count=4)

    refused = operate(anew, "adopt --position published", code=1)
    assert "queue offset 3, is deleted in this lake: whether it is the same message" in refused

    operate(anew, "adopt --position earliest")
    assert publish_all(anew.settings()) == 2
    assert [offset_of(message) for message in anew.consume()] == [0, 1, 2, 3, 4, 5]


def test_progress_is_read_behind_the_open_transaction_of_another_publisher(
    make: Make, broker: Broker
) -> None:
    lake = make()
    lake.send(*orders(2))
    settings = lake.settings(main={}, other={"destination": f"{lake.prefix}-other-{{topic}}"})
    publish_all(settings)
    other = Transactions(settings.publish["other"], "another-lake", 1_000_000)
    other.init()
    other.begin()
    other.send_progress(f"{lake.prefix}-progress", [(b"k", b"v")])
    other._producer.flush()
    lake.send(*orders(2, first=2))

    threading.Timer(1.0, other.abort).start()  # until then read_committed shows nothing newer
    assert publish_all(settings) == 2
    assert publish_all(settings) == 0
    other.close()
    lake.require_published()


def test_progress_waits_for_room_behind_as_many_messages_as_the_client_holds(make: Make) -> None:
    lake = make()
    lake.send(*orders(2))
    settings = lake.settings()
    publish_all(settings)
    partition = TopicPartition(f"{lake.prefix}-progress", 0)
    wait_for_markers(lake.servers, partition.topic, [0])  # else it comes behind `before`
    consumer = Consumer({"bootstrap.servers": lake.servers, "group.id": lake.prefix})
    _, before = consumer.get_watermark_offsets(partition, timeout=DEADLINE_S)

    narrow = {"queue.buffering.max.messages": 2}
    transactions = Transactions(settings.publish["main"], "another-lake", 1_000_000, **narrow)
    transactions.init()
    transactions.begin()
    transactions.send_progress(partition.topic, [(b"k%d" % n, b"v") for n in range(20)])
    transactions.commit()
    transactions.close()

    def written() -> int:
        _, after = consumer.get_watermark_offsets(partition, timeout=DEADLINE_S)
        return int(after - before)

    # Kafka says that a transaction is committed, and writes its marker then.
    wait_until(lambda: written() == 21, "20 records and a marker", seen=written)
    consumer.close()


def test_one_process_of_a_name_publishes_and_the_next_takes_over(make: Make) -> None:
    lake = make()
    lake.send(*orders(2))
    settings = lake.settings()

    def count() -> int:
        return len(lake.consume())

    def members() -> tuple[bool, int]:
        (status,) = read_publishers(settings)
        return status.active is not None, len(status.standbys)

    command = [sys.executable, "-m", "pipelines", "publish", "--conf", str(written(lake))]
    with PublisherThread(settings) as first, subprocess.Popen(command) as second:
        try:
            first.wait_until(lambda: members() == (True, 1), "one of two stands by", seen=members)
            lake.send(*orders(2, first=2))
            first.wait_until(lambda: _count(lake) == 4, "the active one publishes")
            first.stop()
            lake.send(*orders(2, first=4))
            wait_until(lambda: count() == 6, "the second one publishes", seen=count)
        finally:
            second.terminate()
        assert second.wait(DEADLINE_S) == 0
    lake.require_published()


def test_a_publisher_goes_on_when_its_broker_comes_back(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as own:
        lake = PublishedLake(tmp_path / "lake", own.bootstrap_servers, "restarted")
        lake.send(*orders(4))
        settings = lake.settings()
        with PublisherThread(settings) as publisher:
            publisher.wait_until(
                lambda: own.is_running() and _count(lake) == 4, "four are published"
            )
            own.kill()
            lake.send(*orders(3, first=4))
            own.start()
            publisher.wait_until(lambda: _count(lake) == 7, "the others are published")
        lake.require_published()


def test_retention_knows_what_is_published_when_kafka_has_said_so(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer = threading.Event()

    def read_later(settings: Settings) -> dict[str, dict[int, int] | None]:
        assert may_answer.wait(DEADLINE_S)
        return read_positions(settings)

    monkeypatch.setattr(retention, "read_positions", read_later)
    lake = make()
    lake.send(*orders(3, real_queue_id=1))
    second = {"destination": f"{lake.prefix}-second-{{topic}}", "topics": ["orders"]}
    settings = lake.settings(main={"topics": ["orders"]}, latest=second)
    publish_all(settings)
    lake.send(*orders(1, first=3, real_queue_id=2), *orders(1, real_topic="audit"))
    publish_all(settings)
    publish_all(settings, "latest")
    lake.send(*orders(2, first=4, real_queue_id=2))
    publish_all(settings, "latest")

    positions = PublishedPositions(settings)
    assert positions("topics/1") == {}
    may_answer.set()
    positions.wait(DEADLINE_S)
    assert positions("topics/1") == {0: 0, 1: 3, 2: 1, 3: 0}
    assert positions("topics/2") is None, "nobody publishes audit"
    assert positions("topics/3") == {}, "a topic that is made later may have a publisher"


def test_retention_does_not_wait_for_what_is_skipped(make: Make) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(1, real_queue_id=1))
    publish_all(settings)
    lake.send(*orders(4, first=1, real_queue_id=1))
    operate(lake, "skip --topic orders --queue 1 --offset 1 --to 3")

    positions = PublishedPositions(settings)
    positions.wait(DEADLINE_S)
    assert positions("topics/1") == {0: 0, 1: 4, 2: 0, 3: 0}


def test_what_a_publisher_at_work_has_written_is_compared_and_nothing_beyond_its_progress(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make()
    lake.send(*orders(3, real_queue_id=1))
    settings = lake.settings()
    publish_all(settings)
    (publisher,) = settings.publish.values()
    read_progress = Destination.progress
    earlier = Destination(publisher).progress()
    lake.send(*orders(2, first=3, real_queue_id=1))
    publish_all(settings)

    def problem() -> str:
        """Compare queue 1, with the first look at the progress before the second publishing."""
        looks = iter([earlier, read_progress(Destination(publisher))])
        monkeypatch.setattr(Destination, "progress", lambda _, **options: next(looks))
        queue = list(verify_published(settings, publisher))[1]
        assert queue.count >= 5
        return queue.problem

    assert problem() == ""

    *_, last = lake.consume()
    headers = [(p.QUEUE_OFFSET, b"9"), *last.headers()[1:]]
    forger = Producer({"bootstrap.servers": lake.servers, "log_level": 0})
    forger.produce(lake.destination(), last.value(), last.key(), 1, headers=headers)
    forger.flush()
    assert problem() == "queue offset 9 is published, and the progress ends at 4"


def test_what_is_published_is_compared_behind_the_open_transaction_of_another_publisher(
    make: Make,
) -> None:
    lake = make()
    settings = lake.settings(main={}, other={"destination": f"{lake.prefix}-other-{{topic}}"})
    lake.send(*orders(2, real_queue_id=1))
    turn = new_turn(settings)
    other = Transactions(settings.publish["other"], "another-lake", 1_000_000)
    try:
        turn.begin()
        assert turn.publish_committed()
        other.init()
        other.begin()
        other.send_progress(f"{lake.prefix}-progress", [(b"k", b"v")])
        other._producer.flush()
        lake.send(*orders(2, first=2, real_queue_id=1))
        assert turn.publish_committed()

        ending = threading.Timer(1.0, other.abort)  # until then read_committed shows nothing newer
        ending.start()
        queues = list(verify_published(settings, settings.publish["main"]))
        ending.join()
    finally:
        turn.close()
        other.close()

    assert [queue.count for queue in queues] == [0, 4, 0, 0]
    assert {queue.problem for queue in queues} == {""}


def test_what_retention_deletes_while_it_is_compared_is_left_out(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.publish.verification._BLOCK", 2)
    lake = make()
    settings = lake.settings()
    lake.send(*orders(3, real_queue_id=0), *orders(5, real_queue_id=1))
    lake.send(*orders(4, first=5, real_queue_id=1), after_ms=60_000)
    publish_all(settings)
    read = Destination.records

    def read_slowly(self: Destination, name: str) -> Iterable[Any]:
        yield from read(self, name)
        delete_old_messages(lake, count=8)

    monkeypatch.setattr(Destination, "records", read_slowly)
    compared = verify_published(settings, settings.publish["main"])
    assert [(queue.first, queue.count, queue.problem) for queue in compared] == [
        (None, 0, ""),
        (6, 3, ""),
        (None, 0, ""),
        (None, 0, ""),
    ]


def test_what_differs_from_the_tables_is_found(make: Make, broker: Broker) -> None:
    lake = make()
    lake.send(*orders(3, real_queue_id=1, properties=[("colour", "red")]))
    publish_all(lake.settings())
    rows = json.loads(verified(lake, "-o", "json"))
    assert [(row["queue_id"], row["first"], row["count"]) for row in rows] == [
        (0, None, 0),
        (1, 0, 3),
        (2, None, 0),
        (3, None, 0),
    ]
    *_, last = lake.consume()
    forger = Producer({"bootstrap.servers": lake.servers, "log_level": 0})

    def write(value: bytes, offset: bytes) -> None:
        headers = [(p.QUEUE_OFFSET, offset), *last.headers()[1:]]
        forger.produce(lake.destination(), value, last.key(), 1, headers=headers)
        forger.flush()

    write(last.value(), b"2")
    said = verified(lake, code=3)
    assert "queues that differ: 1 of 4: topic orders queue 1: queue offset 2 comes after 2" in said
    assert "comes after 2" in verified(lake, "--name", "main", "--from-offset", "1", code=3)
    assert "go" not in verified(lake, "--from-offset", "3")


def test_what_an_adoption_published_again_is_compared_from_its_first_record_on(
    make: Make,
) -> None:
    lake = make(begin="latest")
    settings = lake.settings()
    lake.send(*orders(4, real_queue_id=1))
    publish_all(settings)
    lake.send(*orders(3, first=4, real_queue_id=1))
    publish_all(settings)
    delete_topic(lake, f"{lake.prefix}-progress")
    operate(lake, "adopt --position earliest")
    assert publish_all(settings) == 7

    queue = json.loads(verified(lake, "-o", "json"))[1]
    assert (queue["first"], queue["count"], queue["problem"]) == (0, 7, "")
    queue = json.loads(verified(lake, "--from-offset", "5", "-o", "json"))[1]
    assert (queue["first"], queue["count"], queue["problem"]) == (5, 2, "")

    *_, last = lake.consume()
    forger = Producer({"bootstrap.servers": lake.servers, "log_level": 0})
    for offset in (b"6", b"0"):
        headers = [(p.QUEUE_OFFSET, offset), *last.headers()[1:]]
        forger.produce(lake.destination(), last.value(), last.key(), 1, headers=headers)
    forger.flush()
    assert "queue 1: queue offset 6 comes after 6" in verified(lake, code=3)


def test_what_an_adoption_left_out_is_not_missing(make: Make) -> None:
    lake = make()
    settings = lake.settings()
    lake.send(*orders(4, real_queue_id=1))
    publish_all(settings)
    delete_topic(lake, f"{lake.prefix}-progress")
    lake.send(*orders(2, first=4, real_queue_id=1))
    operate(lake, "adopt --position latest")

    queue = json.loads(verified(lake, "-o", "json"))[1]
    assert (queue["first"], queue["count"], queue["problem"]) == (None, 0, "")

    lake.send(*orders(3, first=6, real_queue_id=1))
    assert publish_all(settings) == 3
    queue = json.loads(verified(lake, "-o", "json"))[1]
    assert (queue["first"], queue["count"], queue["problem"]) == (6, 3, "")


def test_explain_finds_the_newest_record_of_a_message_that_is_published_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = make(begin="latest", transaction_messages_max=2)
    settings = lake.settings()
    lake.send(*orders(4, real_queue_id=1, half_queue=0))
    publish_all(settings)
    lake.send(*orders(8, first=4, real_queue_id=1, half_queue=0))
    publish_all(settings)
    delete_topic(lake, f"{lake.prefix}-progress")
    operate(lake, "adopt --position earliest")
    again_from = time.time_ns() // 1_000_000
    explained: set[int] = set()
    commit = Transactions.commit

    def commit_and_explain(self: Transactions) -> None:
        commit(self)
        newest = {offset_of(message): message.offset() for message in lake.consume()}
        again = [offset for offset in (0, 2, 11) if newest.get(offset, 0) >= newest.get(0, 99)]

        for offset in again:
            words = ["tx", "explain", f"half:0-{offset}", "--conf", str(written(lake))]
            (transaction,) = json.loads(output_of(*words, "-o", "json"))["transactions"]
            (publication,) = transaction["messages"][0]["published"]
            assert publication["kafka_offset"] == newest[offset]
            at = dt.datetime.fromisoformat(publication["at"].replace("Z", "+00:00"))
            assert at.timestamp() * 1_000 >= again_from
            assert publication["is_exact"]
            explained.add(offset)

    monkeypatch.setattr(Transactions, "commit", commit_and_explain)
    assert publish_all(settings) == 12
    assert explained == {0, 2, 11}


def test_a_record_of_another_writer_with_headers_like_ours_is_not_ours(make: Make) -> None:
    lake = make()
    lake.send(*orders(3, real_queue_id=1))
    publish_all(lake.settings())
    others = [
        [(p.QUEUE_OFFSET, b"abc"), (p.LAKE_ID, None)],
        [(p.QUEUE_OFFSET, b"7"), (p.LAKE_ID, None)],
        [(p.QUEUE_OFFSET, b"7"), (p.LAKE_ID, b"\xff")],
        [(p.QUEUE_OFFSET, b"x"), (p.LAKE_ID, lake.job.lake.lake_id().encode())],
    ]
    producer = Producer({"bootstrap.servers": lake.servers, "log_level": 0})
    for headers in others:
        producer.produce(lake.destination(), b"x", partition=1, headers=headers)
    producer.flush()
    lake.send(*orders(2, first=3, real_queue_id=1))

    assert publish_all(lake.settings()) == 2
    rows = json.loads(verified(lake, "-o", "json"))
    assert [row["count"] for row in rows] == [0, 5, 0, 0]


def test_the_consumer_in_the_docs_reads_each_message_once(make: Make) -> None:
    lake = make()
    lake.send(*orders(5))
    publish_all(lake.settings())
    (program,) = re.findall(r"^```python\n(.*?)^```", CONSUMERS.read_text(), re.M | re.S)
    program = program.replace('"orders"', repr(lake.destination()))
    read: list[tuple[bytes, bytes, int]] = []

    class Enough(Exception):
        """All has come."""

    def handle(*message: Any) -> None:
        read.append(message)
        if len(read) == 5:
            raise Enough

    with pytest.raises(Enough):
        exec(program, {"SERVERS": lake.servers, "handle": handle})  # noqa: S102
    assert sorted(body for body, _, _ in read) == [b"body-%d" % number for number in range(5)]


# The method of the page, in a program that ends when all has come.
JAVA = """
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.serialization.*;

public class Consumes {
    static int remaining;

    static void handle(byte[] value, long offset) {
        System.out.println(offset + " " + new String(value));
        if (--remaining == 0) Runtime.getRuntime().halt(0);
    }

    public static void main(String[] words) {
        String servers = words[0];
        remaining = Integer.parseInt(words[1]);
%s
    }
}
"""


def test_the_java_consumer_in_the_docs_reads_each_message_once_where_one_was_aborted(
    make: Make, tmp_path: Path
) -> None:
    java = java_with_compiler()

    lake = make(transaction_messages_max=3)
    lake.send(*orders(9, real_queue_id=1))
    with killed_publisher(tmp_path / "log", lake.values(), BEFORE, 2, signal.SIGKILL) as publisher:
        publisher.require_end(-signal.SIGKILL)
    publish_all(lake.settings())
    assert len(lake.consume(isolation="read_uncommitted")) > 9

    (program,) = re.findall(r"^```java\n(.*?)^```", CONSUMERS.read_text(), re.M | re.S)
    source = tmp_path / "Consumes.java"
    # A group of its own: the Python program of the page was a member of the other one, and left
    # without a word.
    program = program.replace('"orders"', json.dumps(lake.destination()))
    source.write_text(JAVA % program.replace('"billing"', '"billing-in-java"'))
    words = [str(java), "-cp", class_path(["broker"]), str(source), lake.servers, "9"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [line for line in ran.stdout.splitlines() if " body-" in line]
    rows = lake.rows()[1]
    assert lines == [f"{row['queue_offset']} {row['body'].decode()}" for row in rows]


def _count(lake: PublishedLake) -> int:
    try:
        return len(lake.consume())
    except KeyError:  # the topic is not there yet
        return -1


def delete_old_messages(lake: PublishedLake, count: int) -> None:
    """Delete the messages of the first topic that are older than 30 s. Input: how many they are."""
    maintenance = Maintenance(lake.job.lake, replace(NOW_GONE, topics=Retention(ms=30_000)))
    plan = read_progress(lake.job.lake).last
    assert plan is not None
    maintenance.resume_from(plan)
    assert sum(step.rows_expired for step in maintenance.steps("topics/1", is_full=True)) == count


def delete_topic(lake: PublishedLake, topic: str) -> None:
    admin = admin_client(lake.servers)
    admin.delete_topics([topic])[topic].result()
    wait_until(
        lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, f"{topic} is deleted"
    )


def verified(lake: PublishedLake, *words: str, code: int = 0) -> str:
    """Run `txlake verify --published` on a lake, and return what it prints."""
    return output_of("verify", "--published", "--conf", str(written(lake)), *words, code=code)


def copied(lake: PublishedLake, copy: Path) -> Callable[[], None]:
    """Copy a lake, and return what puts the copy back, with the job as it was."""
    shutil.copytree(lake.path, copy)
    job_then = deepcopy(lake.job, {id(lake.job.lake): lake.job.lake})

    def put_back() -> None:
        shutil.rmtree(lake.path)
        shutil.copytree(copy, lake.path)
        lake.job = job_then
        lake.job.lake.reset()

    return put_back


def operate(lake: PublishedLake, words: str, reason: str | None = "a test", code: int = 0) -> str:
    """Run `txlake publish ...` on a lake, and return what it prints."""
    more = [] if reason is None else ["--reason", reason]
    return output_of("publish", *words.split(), "--conf", str(written(lake)), *more, code=code)


def run_printed(lake: PublishedLake, text: str) -> None:
    """Run the command that a text prints, as it stands."""
    (command,) = re.findall("`txlake (.*?)`", text)
    output_of(*shlex.split(command.replace("job.toml", str(written(lake)))))


def written(lake: PublishedLake) -> Path:
    """Write the settings of a lake's publisher."""
    conf = lake.path.parent / "job.toml"
    conf.write_text(toml_of(lake.values()))
    return conf

"""What a status says of publishers: a real broker, a real lake, each problem caused."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import JobError, KafkaRefusedError
from pipelines.kafka_client import connection
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.group_member import Member
from pipelines.kafka_client.group_members import MemberGroup
from pipelines.local_broker.broker import Broker
from pipelines.metrics.publisher_watch import PublisherWatch
from pipelines.publish.destination import Destination
from pipelines.publish.process import PublisherProcess, elected_process, group_of
from pipelines.publish.publisher import Turn
from pipelines.publish.status import find_publishers, read_publishers
from pipelines.settings import Settings
from storage.rows import milliseconds
from tests.support.history import History
from tests.support.kafka_admin import admin_client
from tests.support.metrics_client import ReportedHistory, reporter_of
from tests.support.operator import said
from tests.support.publishers import PublishedLake, offset_of, publish_all
from tests.support.toml import toml_of
from tests.support.wait import DEADLINE_S, wait_until
from txlake.errors import LakeError

HOUR_NS = 3_600_000_000_000
Unique = Callable[[str], str]


@pytest.fixture
def be_impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what lets this test wait less, for a Kafka that is not there."""
    return lambda: monkeypatch.setattr(connection, "REQUEST_TIMEOUT_S", 2.0)


@pytest.fixture
def lake(broker: Broker, tmp_path: Path, unique: Unique) -> PublishedLake:
    return PublishedLake(
        tmp_path / "lake", broker.bootstrap_servers, unique("seen"), record_bytes_max=2_000
    )


def make_topics(settings: Settings) -> None:
    """Make the job's own topics, so that the job's Kafka answers a status."""
    KafkaAdmin(settings, settings.kafka.topics()).create_missing()


def member_of(settings: Settings, lake_id: str) -> Member:
    """Return a process that is elected and does not publish, as one that hangs."""
    publisher = settings.publish["main"]
    return Member(
        publisher.bootstrap_servers,
        publisher.client,
        publisher.progress_topic,
        group_of(lake_id, "main"),
        elected_process("main"),
        "host:1:hangs",
    )


def test_status_names_each_problem_of_a_publisher(
    lake: PublishedLake, monkeypatch: pytest.MonkeyPatch, be_impatient: Callable[[], None]
) -> None:
    def problems(**publishers: dict[str, Any]) -> dict[str, str]:
        conf = lake.path.parent / "job.toml"
        conf.write_text(toml_of(lake.values(**publishers)))
        told = json.loads(said("status", "--conf", str(conf), "-o", "json"))
        return {
            problem["name"]: problem["words"]
            for problem in told["problems"]
            if problem["name"].startswith("publisher")
        }

    settings = lake.settings()
    make_topics(settings)
    lake.send({"body": b"one", "real_queue_id": 1})
    publish_all(settings)
    lake.send({"body": b"two", "real_queue_id": 1})
    assert problems() == {}

    real = time.time_ns
    with monkeypatch.context() as later:
        later.setattr("time.time_ns", lambda: real() + HOUR_NS)
        assert problems() == {
            "publisher_gone": "publisher main has no process, and its oldest message was committed "
            "1 h ago: messages not published: 1"
        }
        member = member_of(settings, lake.job.lake.lake_id())
        member.join()
        wait_until(lambda: member.is_active, "a process is elected")
        assert problems() == {
            "publisher_lag": "publisher main is behind: its oldest message was committed 1 h ago: "
            "messages not published: 1"
        }
        member.leave()

    lake.send({"body": b"x" * 5_000, "real_queue_id": 1})
    with pytest.raises(JobError) as refused:
        publish_all(settings)
    assert problems() == {"publisher_stopped": f"publisher main has stopped: {refused.value}"}

    be_impatient()
    unknown = problems(main={"bootstrap_servers": "127.0.0.1:1"})
    assert list(unknown) == ["publisher_unknown"]
    assert unknown["publisher_unknown"].startswith(
        "nobody knows how far publisher main is: Kafka at 127.0.0.1:1 did not answer"
    )


def test_the_oldest_message_is_as_old_as_its_own_epoch_and_not_as_the_last_one_published(
    lake: PublishedLake,
) -> None:
    settings = lake.settings()
    lake.send({"body": b"one", "real_topic": "quiet"})
    publish_all(settings)
    lake.send({"body": b"two"})
    publish_all(settings)
    lake.send({"body": b"three", "real_topic": "quiet"})

    (status,) = find_publishers(settings)
    rows = lake.job.lake.read("epochs").to_pylist()
    written_at = [row["written_at"] for row in rows if row["state"] == "committed"]
    assert (status.lag, status.oldest_at) == (1, milliseconds(max(written_at)))
    assert milliseconds(max(written_at)) > milliseconds(min(written_at))


def test_what_is_skipped_does_not_wait_though_the_publisher_has_not_run_since(
    lake: PublishedLake,
) -> None:
    settings = lake.settings()
    conf = lake.path.parent / "job.toml"
    conf.write_text(toml_of(lake.values()))
    lake.send({"body": b"0", "real_queue_id": 1})
    publish_all(settings)
    for number in range(1, 7):  # an epoch each
        lake.send({"body": b"%d" % number, "real_queue_id": 1})
    rows = lake.job.lake.read("epochs").sort_by("epoch").to_pylist()
    written_at = [milliseconds(row["written_at"]) for row in rows if row["state"] == "committed"]

    def waiting(first: int, last: int) -> tuple[int, int | None]:
        words = ("--topic", "orders", "--queue", "1", "--offset", str(first), "--to", str(last))
        said("publish", "skip", "--conf", str(conf), *words, "--reason", "a test")
        (status,) = read_publishers(settings)
        return status.lag, status.oldest_at

    assert waiting(3, 4) == (4, written_at[-6])
    assert waiting(1, 3) == (2, written_at[-2])
    assert waiting(6, 6) == (1, written_at[-2])
    assert waiting(5, 5) == (0, None)
    assert publish_all(settings) == 0


def test_why_a_publisher_has_stopped_is_told_until_it_publishes_again(
    lake: PublishedLake,
) -> None:
    settings = lake.settings()
    lake.send({"body": b"one", "real_queue_id": 1})
    publish_all(settings)
    begins = lake.path / "topics"
    away = lake.path.with_name("topics-away")
    lake.send({"body": b"two", "real_queue_id": 1})

    def stop() -> Any:
        (status,) = read_publishers(settings)
        return status.stop

    shutil.move(begins, away)
    process = PublisherProcess(settings, settings.publish["main"])
    with pytest.raises(LakeError) as broken:
        process.run()
    shutil.move(away, begins)
    assert (stop().cause, stop().reason, stop().topic) == ("broken_lake", str(broken.value), "")

    admin = admin_client(lake.servers)
    admin.delete_topics([lake.destination()])[lake.destination()].result()
    wait_until(
        lambda: lake.destination() not in admin.list_topics(timeout=DEADLINE_S).topics,
        "it is deleted",
    )
    with pytest.raises(JobError) as refused:
        PublisherProcess(settings, settings.publish["main"]).run()
    assert (stop().cause, stop().reason) == ("refused_start", str(refused.value))

    conf = lake.path.parent / "job.toml"
    conf.write_text(toml_of(lake.values()))
    said("publish", "adopt", "--position", "latest", "--conf", str(conf), "--reason", "a test")
    assert stop() is None


def test_a_request_that_kafka_refuses_is_told_as_why_the_publisher_has_stopped(
    lake: PublishedLake,
) -> None:
    long_name = "t" * 127  # with the prefix it is longer than Kafka allows
    lake.publisher["destination"] = f"{lake.prefix}-".ljust(126, "x") + "{topic}"
    settings = lake.settings()
    lake.send({"body": b"one"}, {"body": b"two", "real_topic": long_name})

    with pytest.raises(KafkaRefusedError) as refused:
        PublisherProcess(settings, settings.publish["main"]).run()
    (status,) = read_publishers(settings)
    assert status.stop is not None
    assert (status.stop.cause, status.stop.reason) == ("refused_start", str(refused.value))

    named = lake.settings(main={"topics": ["orders"]})
    assert publish_all(named) == 1
    assert read_publishers(named)[0].stop is None


def test_a_publisher_that_has_nothing_to_publish_takes_back_why_it_had_stopped(
    lake: PublishedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lake.settings()
    lake.send({"body": b"one"})
    publish_all(settings)

    def refuse(self: Turn) -> None:
        raise LakeError("for a while")

    with monkeypatch.context() as broken:
        broken.setattr(Turn, "_open_topics", refuse)
        with pytest.raises(LakeError):
            publish_all(settings)
    (status,) = read_publishers(settings)
    assert status.stop is not None and status.stop.reason == "for a while"

    assert publish_all(settings) == 0
    (status,) = read_publishers(settings)
    assert status.stop is None


def test_a_scrape_has_each_publisher_without_the_request_that_can_end_the_job(
    lake: PublishedLake, monkeypatch: pytest.MonkeyPatch, be_impatient: Callable[[], None]
) -> None:
    settings = lake.settings(main={}, far={"bootstrap_servers": "127.0.0.1:1"})
    lake.send({"body": b"one", "real_queue_id": 1})
    publish_all(settings)
    member = member_of(settings, lake.job.lake.lake_id())
    member.join()
    wait_until(lambda: member.is_active, "a process is elected")
    lake.send({"body": b"x" * 5_000, "real_queue_id": 1})
    with pytest.raises(JobError):
        publish_all(settings)

    monkeypatch.delattr(MemberGroup, "describe")
    be_impatient()
    watch = PublisherWatch(settings, lambda: True)

    def are_known() -> list[bool]:
        watch.read_once()
        return [status.unknown_reason is None for status in watch.statuses]

    wait_until(lambda: are_known() == [True, False], "one of two", seen=lambda: watch.statuses)
    told = ReportedHistory(reporter_of())
    told.reporter._publishers = watch
    samples = told.tell(History()).samples()

    seen = {
        name.removeprefix("txlake_publisher_"): value
        for name, value in samples.items()
        if name.startswith("txlake_publisher_")
    }
    lag_s = seen.pop('lag_seconds{publisher="main"}')
    assert 0 <= lag_s < 3_600
    assert seen == {
        'waiting_messages{publisher="main"}': 1,
        'active{publisher="main"}': 1,
        'stopped{cause="refused_record",publisher="main"}': 1,
        'known{publisher="main"}': 1,
        'known{publisher="far"}': 0,
    }
    member.leave()
    wait_until(lambda: _active(watch) is None, "nobody is active")

    ended = PublisherWatch(settings, lambda: True)
    ended.start()
    ended.close()
    assert not any(t.name == "txlake-publishers" for t in threading.enumerate())


def _active(watch: PublisherWatch) -> str | None:
    watch.read_once()
    return watch.statuses[0].active


def test_explain_says_where_and_when_a_message_was_published_or_that_it_is_not_yet(
    lake: PublishedLake, be_impatient: Callable[[], None]
) -> None:
    settings = lake.settings()
    conf = lake.path.parent / "job.toml"
    conf.write_text(toml_of(lake.values()))

    def explained(offset: int) -> tuple[str, list[dict[str, Any]]]:
        words = ("tx", "explain", f"half:0-{offset}", "--conf", str(conf))
        (told,) = json.loads(said(*words, "-o", "json"))["transactions"]
        return said(*words), told["messages"][0]["published"]

    rows = [{"body": b"%d" % number, "real_queue_id": 1, "half_queue": 0} for number in range(5)]
    lake.send(*rows[:2])
    assert "not published yet by main, which has not begun with its topic" in explained(0)[0]
    before = time.time_ns() // 1_000_000
    publish_all(settings)
    lake.send(*rows[2:4])
    assert (
        f"not published yet by main: in {lake.destination()}, partition 1, queue offset 2 comes "
        "next" in explained(3)[0]
    )
    words = ("--topic", "orders", "--queue", "1", "--offset", "2", "--reason", "a test")
    said("publish", "skip", "--conf", str(conf), *words)
    publish_all(settings)
    lake.send(*rows[4:])
    publish_all(settings)

    offsets = {offset_of(message): message.offset() for message in lake.consume()}
    assert sorted(offsets) == [0, 1, 3, 4]
    for offset, kafka_offset in offsets.items():
        text, (told,) = explained(offset)
        names = ("publisher", "destination", "partition", "kafka_offset", "is_exact")
        assert [told[name] for name in names] == [
            "main",
            lake.destination(),
            1,
            kafka_offset,
            True,
        ]
        at = dt.datetime.fromisoformat(told["at"].replace("Z", "+00:00")).timestamp() * 1_000
        assert before <= at <= time.time_ns() // 1_000_000
        assert (
            f"published by main to {lake.destination()}, partition 1, offset {kafka_offset}, at "
            in text
        )
    text, (told,) = explained(2)
    assert "main is past it" in text and told["kafka_offset"] is None

    be_impatient()
    conf.write_text(toml_of(lake.values(main={"bootstrap_servers": "127.0.0.1:1"})))
    assert "nobody knows whether publisher main has published it: Kafka at" in explained(0)[0]
    assert "publish" not in said("tx", "explain", "half:0-0", "--lake", str(lake.path))


def test_explain_of_a_set_reads_the_progress_of_a_topic_once_and_asks_a_silent_kafka_once(
    lake: PublishedLake, monkeypatch: pytest.MonkeyPatch, be_impatient: Callable[[], None]
) -> None:
    conf = lake.path.parent / "job.toml"
    conf.write_text(toml_of(lake.values()))
    lake.send_set(*({"body": b"%d" % number, "real_queue_id": 1} for number in range(5)))
    publish_all(lake.settings())

    read = Destination.progress_records
    reads: list[str] = []

    def counted_read(destination: Destination, **options: bool) -> Iterator[Any]:
        reads.append("the progress topic")
        return read(destination, **options)

    monkeypatch.setattr(Destination, "progress_records", counted_read)
    assert said("tx", "explain", "half:0-0", "--conf", str(conf)).count("published by main") == 5
    assert len(reads) == 1

    be_impatient()
    conf.write_text(toml_of(lake.values(main={"bootstrap_servers": "127.0.0.1:1"})))
    text = said("tx", "explain", "half:0-0", "--conf", str(conf))
    assert text.count("nobody knows whether publisher main has published it: Kafka at") == 5
    assert len(reads) == 2

    def refused_read(_destination: Destination, **_options: bool) -> Iterator[Any]:
        reads.append("a refusal, which another topic need not get")
        raise KafkaRefusedError("the topic refuses this client")

    reads.clear()
    monkeypatch.setattr(Destination, "progress_records", refused_read)
    text = said("tx", "explain", "half:0-0", "--conf", str(conf))
    assert text.count("published it: the topic refuses this client") == 5
    assert len(reads) == 5

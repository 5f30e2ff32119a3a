"""A broker that is behind the controller: it does not know yet a topic that was made just now.

The broker is a real one. Its client here gives some of its answers as such a broker would: of each
kind of request, the first and the third answer about a new topic lack it, or say that the broker
does not lead the partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from pipelines.errors import KafkaAwayError
from pipelines.kafka_client import connection
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import Cluster
from pipelines.local_broker.broker import Broker
from tests.support.job import settings_for
from tests.support.kafka_admin import admin_client
from tests.support.publishers import PublishedLake, publish_all
from tests.support.wait import DEADLINE_S, wait_until

Unique = Callable[[str], str]
_LACKING = (1, 3)  # which answers


class LaggingAdmin(AdminClient):
    """A client whose answers about the topics that it has made are at times those of a moment ago.

    `lacked`: how many answers of each kind lacked a topic.
    """

    lacked: ClassVar[Counter[str]] = Counter()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._new: set[str] = set()
        self._answers: Counter[tuple[str, str]] = Counter()

    def _lacks(self, kind: str, topic: str) -> bool:
        if topic not in self._new:
            return False
        self._answers[kind, topic] += 1
        is_lacking = self._answers[kind, topic] in _LACKING
        self.lacked[kind] += is_lacking
        return is_lacking

    def create_topics(self, new_topics: Any, **options: Any) -> Any:
        self._new |= {topic.topic for topic in new_topics}
        return super().create_topics(new_topics, **options)

    def list_topics(self, *arguments: Any, **options: Any) -> Any:
        metadata = super().list_topics(*arguments, **options)
        for name in [name for name in metadata.topics if self._lacks("metadata", name)]:
            del metadata.topics[name]
        return metadata

    def describe_topics(self, topics: Any, **options: Any) -> Any:
        futures = super().describe_topics(topics, **options)
        return {
            name: unknown() if self._lacks("description", name) else future
            for name, future in futures.items()
        }

    def describe_configs(self, resources: Any, **options: Any) -> Any:
        futures = super().describe_configs(resources, **options)
        return {
            resource: unknown() if self._lacks("settings", resource.name) else future
            for resource, future in futures.items()
        }

    def list_offsets(self, specs: Any, **options: Any) -> Any:
        futures = super().list_offsets(specs, **options)
        return {
            at: failed(KafkaError.NOT_LEADER_FOR_PARTITION)
            if self._lacks(f"offsets of {at.partition}", at.topic)
            else future
            for at, future in futures.items()
        }


def failed(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def unknown() -> Future[Any]:
    return failed(KafkaError.UNKNOWN_TOPIC_OR_PART)


@pytest.fixture(autouse=True)
def lacked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    monkeypatch.setattr(LaggingAdmin, "lacked", counts)
    monkeypatch.setattr(connection, "AdminClient", LaggingAdmin)
    return counts


def test_a_publisher_begins_where_a_broker_does_not_know_its_topics_yet(
    broker: Broker, tmp_path: Path, unique: Unique, lacked: Counter[str]
) -> None:
    lake = PublishedLake(tmp_path / "lake", broker.bootstrap_servers, unique("lagging"))
    lake.send({"body": b"one", "real_queue_id": 1}, {"body": b"two", "real_queue_id": 2})
    assert publish_all(lake.settings()) == 2
    lake.require_published()
    assert min(lacked[kind] for kind in ("metadata", "description", "settings")) > 0


def test_a_job_begins_where_a_broker_does_not_know_its_topics_yet(
    broker: Broker, tmp_path: Path, unique: Unique, lacked: Counter[str]
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("lagging"))
    kafka = KafkaAdmin(settings, settings.kafka.topics())
    kafka.create_missing()
    assert kafka.require_sound() == []
    assert set(kafka.topic_ids()) == set(settings.kafka.topics().values())
    assert min(lacked[kind] for kind in ("metadata", "description", "settings")) > 0


def test_offsets_are_those_of_the_leader_once_a_partition_has_it(
    broker: Broker, unique: Unique, lacked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(broker.bootstrap_servers, {})
    name = unique("led")
    cluster.create_topic(connection.NewTopic(name, 2))

    partitions = [(name, 0), (name, 1)]
    assert cluster.end_offsets(partitions) == dict.fromkeys(partitions, 0)
    assert lacked["offsets of 0"] == lacked["offsets of 1"] == 1

    monkeypatch.setattr(connection, "_LEADER_S", 0.0)
    with pytest.raises(KafkaAwayError, match="Not leader for partition"):
        cluster.beginning_offsets(partitions)


def test_a_topic_that_is_deleted_again_is_not_waited_for_any_more(
    broker: Broker, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_APPEAR_S", 0.5)
    cluster = Cluster(broker.bootstrap_servers, {})
    name = unique("deleted")
    cluster.create_topic(connection.NewTopic(name, 1))
    assert name in cluster.topics()

    cluster.admin.delete_topics([name])[name].result(DEADLINE_S)
    told = admin_client(broker.bootstrap_servers).list_topics
    wait_until(lambda: name not in told(timeout=DEADLINE_S).topics, "the broker knows that")
    assert cluster.describe_topics([name]) == {}
    assert name not in cluster.topics()
    with pytest.raises(KafkaAwayError, match=f"has no topic {name}"):
        cluster.topic_configs([name])

"""A producer group's check topic, for groups whose client does not make it.

The SDK makes its group's. The job makes none: a half names any group, so a client that may
write the half topic could make topics in Kafka.
"""

from __future__ import annotations

from confluent_kafka.cimpl import NewTopic

from pipelines.errors import OperatorError
from pipelines.kafka_client.connection import Cluster
from pipelines.settings import Settings
from txlake import protocol as p


def make_check_topic(settings: Settings, producer_group: str, partitions: int) -> bool:
    """Makes a group's check topic. Returns False if it was there, whatever partitions it has.

    Replay: a second call changes nothing.
    Errors: OperatorError if Kafka takes no topic of this name beside another; KafkaAwayError,
    KafkaRefusedError.
    """
    kafka = settings.kafka
    topic = p.check_topic(producer_group, kafka.check_topic_prefix)
    cluster = Cluster(kafka.bootstrap_servers, kafka.client)
    existing = cluster.topics()
    if topic in existing:
        return False

    other = p.colliding_topic(topic, existing)
    if other is not None:
        raise OperatorError(
            f"Kafka takes no topic {topic} beside {other}, since it counts '.' and '_' as one: "
            f"group {producer_group} needs another name"
        )

    config = p.check_topic_config(settings.transaction.message_bytes_max)
    cluster.create_topic(NewTopic(topic, partitions, config=config))
    return True

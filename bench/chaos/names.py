"""Names that the processes of a chaos run share: who they are, what they send to, how they stop."""

from __future__ import annotations

from typing import Final

# The processes that are started, and killed.
JOB: Final = "job"  # as the one to kill: the active driver
STANDBY: Final = "standby"  # as the one to kill: a driver that is not active
DRIVERS: Final = (JOB, "job-b")  # the second only where two are asked for
CONSUMER: Final = "consumer"
BROKER: Final = "broker"
PRODUCERS: Final = ("producer-a", "producer-b")  # the SDK's
RAW: Final = "raw-producer"  # writes Kafka records by hand
PUBLISHERS: Final = ("publisher-a", "publisher-b")  # of one name: the second one stands by
KAFKA_CONSUMER: Final = "kafka-consumer"  # reads what is published
EXECUTORS: Final = "executors"  # of the job, where it runs on a cluster

STOP_FILE: Final = "stop-sending"  # beside the journals: producers begin nothing new
KAFKA_QUEUES: Final = 3  # of half and op topic
TOPIC_QUEUES: Final = 4  # `[topics] default_queue_count`

GROUP: Final = "chaos"  # of the SDK's producers
TOPICS: Final = ("chaos-orders", "chaos-payments")

# The raw producer's groups: one with a check topic, one without, one that owns no half.
RAW_GROUP: Final = "raw"
UNASKED_GROUP: Final = "raw-unasked"
STRANGER_GROUP: Final = "raw-stranger"
RAW_TOPIC: Final = "raw-orders"  # takes every message that has to arrive
NARROW_TOPIC: Final = "raw-narrow"  # followed by a number: some messages ask for too high a queue
NEW_TOPIC: Final = "raw-new"  # followed by a number: made by the job, where it may
TOPICS_MAX: Final = 14  # `[topics] topics_max`: reached by new topics in a long run

PUBLISHER: Final = "main"  # [publish.main]
PUBLISHED_PREFIX: Final = "published-"  # of the Kafka topics

CONSUMED: Final = (*TOPICS, RAW_TOPIC)

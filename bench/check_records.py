"""Read the checks that stand in Kafka."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from bench.sample_data import GROUP
from pipelines.settings import Settings
from txlake import protocol

_READ_S = 30.0


@dataclass(frozen=True)
class Check:
    """A check. Units: `stored_at` s since 1970, the broker's clock."""

    check_id: str
    queue_id: int
    queue_offset: int
    check_times: int
    stored_at: float


def check_records(settings: Settings) -> list[Check]:
    """Read all checks of the sample data's group, from the first to the last that is there now."""
    topic = protocol.check_topic(GROUP, settings.kafka.check_topic_prefix)
    kafka = Consumer({
        "bootstrap.servers": settings.kafka.bootstrap_servers, "group.id": "bench-look",
        "enable.auto.commit": False, "log_level": 0,
    })  # fmt: skip
    found = []
    try:
        for partition in kafka.list_topics(topic, timeout=10).topics[topic].partitions:
            ends = kafka.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            left = ends[1] - ends[0] if ends else 0
            kafka.assign([TopicPartition(topic, partition, ends[0] if ends else 0)])
            while left > 0:
                records = kafka.consume(min(left, 10_000), timeout=_READ_S)
                if not records:
                    raise RuntimeError(f"{left} checks of {topic} could not be read")
                found += [_check(record) for record in records]
                left -= len(records)
    finally:
        kafka.close()
    return found


def _check(record: object) -> Check:
    headers = dict(record.headers())  # type: ignore[attr-defined]
    return Check(
        check_id=headers[protocol.CHECK_ID].decode(),
        queue_id=int(headers[protocol.HALF_QUEUE_ID]),
        queue_offset=int(headers[protocol.HALF_QUEUE_OFFSET].split(b",")[0]),
        check_times=int(headers[protocol.CHECK_TIMES]),
        stored_at=record.timestamp()[1] / 1000,  # type: ignore[attr-defined]
    )

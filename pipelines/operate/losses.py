"""The records that Kafka deleted before the job landed them, as the lake and Kafka stand now."""

from __future__ import annotations

from pipelines.epoch.recover import next_offsets
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.source_log import SourceLog
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from txlake.protocol import LostTarget


def losses(settings: Settings, lake: Lake) -> list[LostTarget]:
    """Returns the offsets to land next that Kafka no longer has, one range a partition.

    Errors: LostInputError for a loss that cannot be accepted: another cluster, a topic that was
    made again, a partition that is gone or that ends before the landed offsets; KafkaAwayError.
    """
    progress = read_progress(lake)
    plan = progress.unfinished or progress.last
    if plan is None:
        return []

    topics = settings.kafka.topics()
    log = SourceLog(KafkaAdmin(settings, topics))
    log.check(plan)

    kinds = {topic: kind for kind, topic in topics.items()}
    lost = log.losses(next_offsets(lake, plan))
    return [
        LostTarget(kinds[topic], partition, offsets.start, offsets[-1])
        for (topic, partition), offsets in sorted(lost.items())
    ]

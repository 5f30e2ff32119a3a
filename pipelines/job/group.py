"""The drivers of a lake, as Kafka counts them: one is active, the others stand by.

All drivers of a lake are members of one consumer group on the one partition of the admin topic.
"""

from __future__ import annotations

from pipelines.job.election import DRIVER
from pipelines.kafka_client.acls import group_id
from pipelines.kafka_client.group_member import SESSION_TIMEOUT_MS
from pipelines.kafka_client.group_members import MemberGroup
from pipelines.kafka_client.group_members import Members as Drivers
from pipelines.kafka_client.group_members import members_of as drivers_of
from pipelines.settings import KafkaSettings

__all__ = ["SESSION_TIMEOUT_MS", "DriverGroup", "Drivers", "drivers_of"]


class DriverGroup(MemberGroup):
    """The consumer group of a lake's drivers, looked at from outside."""

    def __init__(self, kafka: KafkaSettings, lake_path: str) -> None:
        super().__init__(
            kafka.bootstrap_servers,
            kafka.client,
            group_id(lake_path, kafka.admin_topic),
            DRIVER,
        )

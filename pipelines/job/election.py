"""The election among a lake's drivers: Kafka makes one of them active, the others stand by.

All drivers of a lake are members of one consumer group on the one partition of the admin topic. A
driver that does not know yet that it was replaced is kept out by Delta's transaction identifiers
(`LakeTable.commit_once`).
"""

from __future__ import annotations

from typing import Final

from pipelines.kafka_client.acls import group_id
from pipelines.kafka_client.group_member import ElectedProcess, Member
from pipelines.kafka_client.group_members import MemberGroup
from pipelines.settings import KafkaSettings

DRIVER: Final = ElectedProcess("the driver of this lake", "the job")


class Election(Member):
    """A driver's membership in the group of its lake's drivers, on the admin topic."""

    def __init__(self, kafka: KafkaSettings, lake_path: str, owner: str) -> None:
        super().__init__(
            kafka.bootstrap_servers,
            kafka.client,
            kafka.admin_topic,
            group_id(lake_path, kafka.admin_topic),
            DRIVER,
            owner,
        )


class DriverGroup(MemberGroup):
    """The consumer group of a lake's drivers, looked at from outside."""

    def __init__(self, kafka: KafkaSettings, lake_path: str) -> None:
        super().__init__(
            kafka.bootstrap_servers,
            kafka.client,
            group_id(lake_path, kafka.admin_topic),
            DRIVER,
        )

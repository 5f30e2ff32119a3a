"""The kinds of Kafka records, and what decoding them depends on (`storage/wire/decode.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from txlake import protocol as p

HALF, OP, SCHEDULE, ADMIN = "half", "op", "schedule", "admin"
KINDS = (HALF, OP, SCHEDULE, ADMIN)


@dataclass(frozen=True)
class WireLimits:
    """What decoding depends on: the topics' names and the configured limits.

    `operation_namings_max`: how many halves an operation can name; None, as in plans before rule
    version 5: neither that nor the size of operations and commands is limited.
    """

    topics: dict[str, str]  # kind -> Kafka topic
    check_topic_prefix: str
    message_bytes_max: int
    messages_max: int
    operation_namings_max: int | None = None

    def own_topics(self) -> list[str]:
        """Returns the names that a real topic must not have."""
        return [*self.topics.values(), *p.SYSTEM_REAL_TOPICS]

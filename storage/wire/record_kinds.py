"""The kinds of Kafka records, and the limits of their decoding (`storage/wire/decode.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from txlake import protocol as p

HALF = "half"
OP = "op"
SCHEDULE = "schedule"
ADMIN = "admin"
KINDS = (HALF, OP, SCHEDULE, ADMIN)


@dataclass(frozen=True)
class WireLimits:
    """The topics' names and the configured limits that decoding reads.

    `operation_namings_max`: the most halves that an operation can name; None, as in plans before
    rule version 5: neither that nor the size of operations and commands is limited.
    """

    topics: dict[str, str]  # kind -> Kafka topic
    check_topic_prefix: str
    message_bytes_max: int
    messages_max: int
    operation_namings_max: int | None = None

    def own_topics(self) -> list[str]:
        """Returns the names that a real topic must not have."""
        return [*self.topics.values(), *p.SYSTEM_REAL_TOPICS]

"""Why a publisher stops or begins again.

PublishError (StartError)    a publisher cannot go on; nothing was written
RefusedRecordError           the destination does not take a record; it names the message
FencedError                  another process of this name, or a command, has taken over
"""

from __future__ import annotations

from pipelines.errors import JobError, StartError


class PublishError(StartError):
    """A publisher cannot go on as things are; nothing was written."""


class RefusedRecordError(JobError):
    """The destination does not take a record."""

    def __init__(self, text: str, topic: str, queue_id: int, queue_offset: int) -> None:
        super().__init__(text)
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset


class FencedError(JobError):
    """Kafka has given this transactional id to another process."""

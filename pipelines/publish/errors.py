"""Why a publisher stops or begins again.

PublishError (StartError)    something is not as it should be; nothing was written
RefusedRecordError           the destination does not take a record; it names the message
FencedError                  another process of this name, or a command, has taken over
"""

from __future__ import annotations

from pipelines.errors import JobError, StartError


class PublishError(StartError):
    """A publisher cannot go on as things are; nothing of what it says was written."""


class RefusedRecordError(JobError):
    """The destination does not take a record."""

    def __init__(self, text: str, topic: str, queue_id: int, queue_offset: int) -> None:
        super().__init__(text)
        self.topic, self.queue_id, self.queue_offset = topic, queue_id, queue_offset


class FencedError(JobError):
    """Kafka has given this transactional id to another process."""

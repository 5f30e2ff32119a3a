"""Why the job stops, or does not start. Each is one sentence with both values and what to do.

JobError
|-- StartError        something is not as the job needs it; nothing was changed
|-- LostInputError    Kafka no longer has what was not landed: it says what is lost
|-- ClockError        T and the broker's clock differ too much
|-- StorageError      the lake or the checkpoint cannot be written
`-- KafkaAwayError    Kafka cannot be reached; the driver tries again
"""

from __future__ import annotations


class JobError(Exception):
    """The job cannot go on."""


class StartError(JobError):
    """The job cannot start as things are."""


class LostInputError(JobError):
    """Records that were not landed are gone, or the log is not the one that was read."""


class ClockError(JobError):
    """This machine's clock and the broker's differ too much."""


class StorageError(JobError):
    """The lake or the checkpoint cannot be written."""


class KafkaAwayError(JobError):
    """Kafka does not answer."""

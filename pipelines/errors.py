"""Why the job stops or does not start: one sentence each, with both values and what to do.

JobError
|-- StartError        something is not as the job needs it; nothing was changed
|-- LostInputError    Kafka no longer has records that were not landed; the text names them
|-- ClockError        this machine's clock and the broker's differ too much
|-- StorageError      the lake or the checkpoint cannot be written
|-- LostCheckpointError  the stream's checkpoint was deleted; the driver makes a new one
|-- JvmError          the driver's JVM has ended
|-- LargeEpochError   an epoch's records are more than the heap takes; the driver takes fewer
`-- KafkaAwayError    Kafka cannot be reached; the driver tries again
    |-- KafkaRefusedError    Kafka does not let us in; at its start that ends the driver
    `-- NotAnsweredYetError  Kafka was asked a moment ago; nobody knows whether it is away

OperatorError         what an operator asked for is missing, or is refused
"""

from __future__ import annotations


class JobError(Exception):
    """The job cannot go on."""


class StartError(JobError):
    """The job cannot start as things are."""


class LostInputError(JobError):
    """Records are gone before they were landed, or the log is another than the lake's."""


class ClockError(JobError):
    """This machine's clock and the broker's differ too much."""


class StorageError(JobError):
    """The lake or the checkpoint cannot be written."""


class LostCheckpointError(JobError):
    """The checkpoint of a running stream was deleted."""


class JvmError(JobError):
    """The driver's JVM has ended."""


class LargeEpochError(JobError):
    """An epoch's records are more than the heap takes."""


class KafkaAwayError(JobError):
    """Kafka does not answer."""


class KafkaRefusedError(KafkaAwayError):
    """Kafka does not let this client in, or it lacks a right."""


class NotAnsweredYetError(KafkaAwayError):
    """Kafka was asked, and its answer was not waited for to the end."""


class OperatorError(Exception):
    """What an operator asked for is missing, or is refused."""

"""What can go wrong, as one tree.

TxlakeError
├── MessageError (also ValueError)    a message that may not be sent; nothing was sent
├── SendError                         not stored; the local transaction did not run
├── ClosedError                       used after close(), or in a forked child
├── NoListenerError                   a transaction without anything to run
├── UnknownTopicError                 a Kafka topic, or a topic's queue, that is not there
├── LakeError                         no lake there, or one of a newer format
└── ConsumerError
    ├── GroupBusyError                another consumer owns the queues
    ├── StaleGenerationError          this consumer was replaced and may no longer commit
    ├── OffsetOutOfRangeError         a position that the queue does not have
    └── OffsetGapError                rows are missing between two queue offsets
"""

from __future__ import annotations


class TxlakeError(Exception):
    """Be the root of all errors of the SDK."""


class MessageError(TxlakeError, ValueError):
    """Say which part of a message may not be sent, and what is allowed."""


class SendError(TxlakeError):
    """Say that a message was not stored: its local transaction did not run.

    A send that timed out may have stored the half all the same. Nobody will end it; the producer
    group is asked about it and its listener answers as it does for any id it never committed.
    """

    def __init__(self, text: str, transaction_id: str = "") -> None:
        super().__init__(text)
        self.transaction_id = transaction_id


class ClosedError(TxlakeError):
    """Say that a producer or consumer was used after `close()`."""


class NoListenerError(TxlakeError):
    """Say that a transaction was begun without a listener and without `execute`."""


class UnknownTopicError(TxlakeError):
    """Name a topic or queue that does not exist."""


class LakeError(TxlakeError):
    """Say why a lake cannot be read, in one sentence."""


class ConsumerError(TxlakeError):
    """Be the root of the errors of a consumer."""


class GroupBusyError(ConsumerError):
    """Name the consumer that owns the queues, and when its hold on them lapses."""


class StaleGenerationError(ConsumerError):
    """Say that another consumer took the queues over: what was read is not committed."""


class OffsetOutOfRangeError(ConsumerError):
    """Name a position that the queue does not have."""


class OffsetGapError(ConsumerError):
    """Name the offset that was expected and the one that was found."""

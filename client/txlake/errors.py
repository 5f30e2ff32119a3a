"""What can go wrong, as one tree.

TxlakeError
├── MessageError (also ValueError)    a message that may not be sent; nothing was sent
├── SendError                         not stored, or not known to be; the local transaction did
│                                     not run
├── ClosedError                       used after close(), or in a forked child
├── NoListenerError                   a transaction without anything to run
├── UnknownTopicError                 a Kafka topic, or a topic's queue, that is not there
├── LakeError                         no lake there, one of a newer format, or one that is not whole
└── ConsumerError
    ├── GroupBusyError                another consumer owns the queues
    ├── StaleGenerationError          this consumer was replaced and may no longer commit
    ├── OffsetOutOfRangeError         a position that the queue does not have
    └── OffsetGapError                rows are missing between two queue offsets
"""

from __future__ import annotations


class TxlakeError(Exception):
    """The root of all errors of the SDK."""


class MessageError(TxlakeError, ValueError):
    """Say which part of a message may not be sent, and what is allowed."""


class SendError(TxlakeError):
    """A message that Kafka did not store, or did not confirm: its local transaction did not run.

    After a time-out Kafka can have the record all the same, and the text says so. Nobody will end
    such a half: the job asks the producer group about it, and its listener answers as it does for
    any id it never committed. A message without a transaction is delivered then.
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
    """Say why a lake cannot be read, in one sentence: which table, what is there, what was."""


class ConsumerError(TxlakeError):
    """The root of the errors of a consumer."""


class GroupBusyError(ConsumerError):
    """Name the consumer that owns the queues, and when its hold on them lapses."""


class StaleGenerationError(ConsumerError):
    """Say that another consumer took the queues over: what was read is not committed."""


class OffsetOutOfRangeError(ConsumerError):
    """Name a position that the queue does not have."""


class OffsetGapError(ConsumerError):
    """Name the offset that was expected and the one that was found."""

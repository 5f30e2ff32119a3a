"""The errors of the SDK, as one tree.

TxlakeError
├── MessageError (also ValueError)    a message that may not be sent; nothing was sent
├── SendError                         not stored, or not known to be; the local transaction did
│                                     not run
├── ClosedError                       used after close(), or in a forked child
├── NoListenerError                   a transaction without anything to run
├── UnknownTopicError                 a Kafka topic, or a topic's queue, that is not there
├── SchemaError (also ValueError)     a schema of bodies that is not there, or is wrong
├── LakeError                         no lake there, one of a newer format, or one that is not whole
│   └── StoreAwayError                the lake's object store does not answer; try again
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
    """A message that may not be sent. The text names the part, its value and what is allowed."""


class SendError(TxlakeError):
    """A message that Kafka did not store, or did not confirm: its local transaction did not run.

    After a time-out Kafka can have the record all the same, and the text says so. The producer
    does not end such a half: the job asks the producer group about it, and the listener answers
    as for any id that it never committed. A message without a transaction is delivered then.
    """

    def __init__(self, text: str, transaction_id: str = "") -> None:
        super().__init__(text)
        self.transaction_id = transaction_id


class ClosedError(TxlakeError):
    """A producer or consumer that is used after `close()`, or in a forked child."""


class NoListenerError(TxlakeError):
    """A transaction that is begun without a listener and without `execute`."""


class UnknownTopicError(TxlakeError):
    """A topic or queue that does not exist; the text names it."""


class SchemaError(TxlakeError, ValueError):
    """A schema of bodies that cannot be read, or cannot be columns; the text names the file."""


class LakeError(TxlakeError):
    """A lake that cannot be read. One sentence says which table, what is there and what was."""


class StoreAwayError(LakeError):
    """An object store that does not answer. The call did nothing that counts: make it again."""


class ConsumerError(TxlakeError):
    """The root of the errors of a consumer."""


class GroupBusyError(ConsumerError):
    """A queue of another consumer. The text names the consumer, and when its hold ends."""


class StaleGenerationError(ConsumerError):
    """A consumer whose queues another one took over: what it read is not committed."""


class OffsetOutOfRangeError(ConsumerError):
    """A position that the queue does not have, or not any more; the text names both."""


class OffsetGapError(ConsumerError):
    """A gap in a queue. The text names the offset that was expected, and the one that was found."""

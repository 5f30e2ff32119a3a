"""What an application implements: run the local transaction, and tell later how it ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txlake import protocol
from txlake.message import Message


class LocalTransactionState(Enum):
    """Say how a local transaction ended.

    ROLLBACK_MESSAGE is for ever: answer it only when the local transaction can never commit any
    more. Who does not know, or not yet, answers UNKNOWN and is asked again.
    """

    COMMIT_MESSAGE = protocol.COMMIT
    ROLLBACK_MESSAGE = protocol.ROLLBACK
    UNKNOWN = protocol.UNKNOWN


class HalfMessage:
    """A half message that Kafka has stored: what a local transaction is run for.

    `transaction_id` is the fresh id of this transaction, (`queue_id`, `queue_offset`) its place
    in the half topic. Of several messages in one transaction this is the first; `messages` has
    them all. To be read only.
    """

    __slots__ = ("message", "messages", "queue_id", "queue_offset", "transaction_id")

    def __init__(self, message: Message, messages: Sequence[Message], transaction_id: str) -> None:
        self.message = message
        self.messages = messages
        self.transaction_id = transaction_id
        self.queue_id = -1
        self.queue_offset = -1

    @property
    def topic(self) -> str:
        """Name the real topic."""
        return self.message.topic

    @property
    def body(self) -> bytes | None:
        """Return the body as it was sent."""
        return self.message.body

    @property
    def keys(self) -> str | None:
        """Return the business keys."""
        return self.message.keys

    @property
    def tags(self) -> str | None:
        """Return the tags."""
        return self.message.tags

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the user's properties."""
        return self.message.properties


@dataclass(frozen=True, slots=True)
class CheckedMessage:
    """The question how a transaction ended.

    `body` is None when the message has none, or when `is_body_omitted` (it did not fit into the
    check topic). `queue_offsets` has more than one entry for a transaction of several messages.
    The same `check_id` may be asked more than once.
    """

    transaction_id: str
    topic: str
    body: bytes | None
    queue_id: int
    queue_offsets: tuple[int, ...]
    check_times: int
    check_id: str
    keys: str | None
    tags: str | None
    properties: Mapping[str, str]
    is_body_omitted: bool

    @property
    def queue_offset(self) -> int:
        """Return the half offset of the transaction's first message."""
        return self.queue_offsets[0]


class TransactionListener(ABC):
    """Run local transactions and answer for them.

    Errors: an exception, None, or anything that is no LocalTransactionState counts as UNKNOWN.
    Replay: both methods may be called from several threads at once, and
    `check_local_transaction` more than once for one transaction, also by another process of the
    producer group.
    """

    @abstractmethod
    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        """Run the local transaction of a half message that is stored."""

    @abstractmethod
    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        """Say how the local transaction of this message ended."""

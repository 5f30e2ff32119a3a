"""The listener that an application implements: it runs local transactions and answers checks."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txlake import protocol
from txlake._foreign_text import error_text, value_text
from txlake.message import Message

log = logging.getLogger("txlake.listener")

_REMARK_CHARACTERS_MAX = 300  # enough for an exception's first line


class LocalTransactionState(Enum):
    """How a local transaction ended.

    ROLLBACK_MESSAGE is for ever: answer it only when the local transaction can never commit any
    more. A listener that does not know answers UNKNOWN, and is asked again.
    """

    COMMIT_MESSAGE = protocol.COMMIT
    ROLLBACK_MESSAGE = protocol.ROLLBACK
    UNKNOWN = protocol.UNKNOWN


class HalfMessage:
    """A half message that Kafka has stored, and for which a local transaction runs. Read only.

    `transaction_id` is the fresh id of this transaction, (`queue_id`, `queue_offset`) its place
    in the half topic. Of several messages in one transaction this is the first; `messages` has
    all of them.
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
        """Returns the real topic."""
        return self.message.topic

    @property
    def body(self) -> bytes | None:
        """Returns the body as it was sent."""
        return self.message.body

    @property
    def keys(self) -> str | None:
        """Returns the business keys."""
        return self.message.keys

    @property
    def tags(self) -> str | None:
        """Returns the tags."""
        return self.message.tags

    @property
    def properties(self) -> Mapping[str, str]:
        """Returns the user's properties."""
        return self.message.properties


@dataclass(frozen=True, slots=True)
class CheckedMessage:
    """The question how a transaction ended.

    `body` is None when the message has no body, or when `is_body_omitted`: it did not fit into
    the check topic. `queue_offsets` has more than one entry for a transaction of several messages.
    The same `check_id` can come more than once.
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
        """Returns the offset of the transaction's first half."""
        return self.queue_offsets[0]


class TransactionListener(ABC):
    """An application's code that runs local transactions, and answers for them.

    Errors: an exception counts as UNKNOWN; so does any value but a LocalTransactionState.
    Replay: several threads can call both methods at once. `check_local_transaction` can be called
    more than once for one transaction, and in another process of the producer group.
    """

    @abstractmethod
    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        """Runs the local transaction of a half message that is stored."""

    @abstractmethod
    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        """Returns how the local transaction of this message ended."""


def call_safely(
    call: Callable[..., Any], *args: Any, caught: type[BaseException] = Exception
) -> tuple[LocalTransactionState, str]:
    """Returns the state that a call returns, and a remark that says why it counts as UNKNOWN.

    Input: `caught`: the errors that count as UNKNOWN. On a thread of the producer that is
    BaseException: SystemExit or CancelledError would end the thread, for which others wait.
    Errors: those that are not caught, KeyboardInterrupt on the caller's thread for example.
    """
    try:
        state = call(*args)
        is_state = isinstance(state, LocalTransactionState)  # a proxy's class is its own code
    except caught as error:
        log.exception("a listener failed; its answer counts as UNKNOWN")
        text = error_text(error, caught)
        return LocalTransactionState.UNKNOWN, text[:_REMARK_CHARACTERS_MAX]

    if not is_state:
        log.error("a listener answered %s; it counts as UNKNOWN", value_text(state, caught))
        return LocalTransactionState.UNKNOWN, f"not a LocalTransactionState: {type(state).__name__}"

    return state, ""

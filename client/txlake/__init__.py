"""Transactional messages over Kafka into a lakehouse: the client."""

from txlake.consumer import ConsumedMessage, Consumer
from txlake.errors import (
    ClosedError,
    ConsumerError,
    GroupBusyError,
    LakeError,
    MessageError,
    NoListenerError,
    OffsetGapError,
    OffsetOutOfRangeError,
    SendError,
    StaleGenerationError,
    StoreAwayError,
    TxlakeError,
    UnknownTopicError,
)
from txlake.listener import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    TransactionListener,
)
from txlake.message import Message
from txlake.options import ProducerOptions
from txlake.producer import TransactionProducer
from txlake.results import SendResult, TransactionSendResult
from txlake.schedule import Producer
from txlake.signing import SigningKey

__all__ = [
    "CheckedMessage",
    "ClosedError",
    "ConsumedMessage",
    "Consumer",
    "ConsumerError",
    "GroupBusyError",
    "HalfMessage",
    "LakeError",
    "LocalTransactionState",
    "Message",
    "MessageError",
    "NoListenerError",
    "OffsetGapError",
    "OffsetOutOfRangeError",
    "Producer",
    "ProducerOptions",
    "SendError",
    "SendResult",
    "SigningKey",
    "StaleGenerationError",
    "StoreAwayError",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "TxlakeError",
    "UnknownTopicError",
]

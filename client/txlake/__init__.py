"""Transactional messages over Kafka into a lakehouse: the client.

A module is imported with the first of its names that is asked for: an error, a constant of the
protocol or a key needs neither Kafka's client nor Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txlake._consumed_message import ConsumedMessage
    from txlake.async_consumer import AsyncConsumer
    from txlake.bodies import BodySchema, read_schema
    from txlake.consume_status import ConsumeStatus
    from txlake.consumer import Consumer
    from txlake.errors import (
        ClosedError,
        ConsumerError,
        GroupBusyError,
        LakeError,
        MessageError,
        NoListenerError,
        OffsetGapError,
        OffsetOutOfRangeError,
        SchemaError,
        SendError,
        StaleGenerationError,
        StoreAwayError,
        TxlakeError,
        UnknownTopicError,
    )
    from txlake.lake_queues import LakeQueueCounts
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
    from txlake.sql_inbox import SqlInbox

# By module.
_NAMES = {
    "async_consumer": ("AsyncConsumer",),
    "consume_status": ("ConsumeStatus",),
    "bodies": ("BodySchema", "read_schema"),
    "_consumed_message": ("ConsumedMessage",),
    "consumer": ("Consumer",),
    "errors": (
        "ClosedError",
        "ConsumerError",
        "GroupBusyError",
        "LakeError",
        "MessageError",
        "NoListenerError",
        "OffsetGapError",
        "OffsetOutOfRangeError",
        "SchemaError",
        "SendError",
        "StaleGenerationError",
        "StoreAwayError",
        "TxlakeError",
        "UnknownTopicError",
    ),
    "lake_queues": ("LakeQueueCounts",),
    "listener": ("CheckedMessage", "HalfMessage", "LocalTransactionState", "TransactionListener"),
    "message": ("Message",),
    "options": ("ProducerOptions",),
    "producer": ("TransactionProducer",),
    "results": ("SendResult", "TransactionSendResult"),
    "schedule": ("Producer",),
    "signing": ("SigningKey",),
    "sql_inbox": ("SqlInbox",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AsyncConsumer",
    "BodySchema",
    "CheckedMessage",
    "ClosedError",
    "ConsumeStatus",
    "ConsumedMessage",
    "Consumer",
    "ConsumerError",
    "GroupBusyError",
    "HalfMessage",
    "LakeError",
    "LakeQueueCounts",
    "LocalTransactionState",
    "Message",
    "MessageError",
    "NoListenerError",
    "OffsetGapError",
    "OffsetOutOfRangeError",
    "Producer",
    "ProducerOptions",
    "SchemaError",
    "SendError",
    "SendResult",
    "SigningKey",
    "SqlInbox",
    "StaleGenerationError",
    "StoreAwayError",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "TxlakeError",
    "UnknownTopicError",
    "read_schema",
]

# Type checkers read the imports above: a name that is not there stays an error.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Returns an exported name, from its module."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

        module = import_module(f"{__name__}.{_MODULE_OF[name]}")
        exported = getattr(module, name)
        globals()[name] = exported
        return exported

    def __dir__() -> list[str]:
        """Returns the exported names, imported or not."""
        return sorted({*globals(), *__all__})

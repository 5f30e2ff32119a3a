"""The SDK's public surface is what it says, and light."""

from __future__ import annotations

import subprocess
import sys

import txlake

PUBLIC = [
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


def test_the_exported_names_are_these() -> None:
    assert sorted(txlake.__all__) == PUBLIC
    assert all(hasattr(txlake, name) for name in PUBLIC)


def test_every_exported_name_has_a_docstring() -> None:
    assert [name for name in PUBLIC if not getattr(txlake, name).__doc__] == []


def test_every_error_is_a_txlake_error() -> None:
    errors = [getattr(txlake, name) for name in PUBLIC if name.endswith("Error")]
    assert all(issubclass(error, txlake.TxlakeError) for error in errors)
    assert issubclass(txlake.MessageError, ValueError)


def test_importing_the_sdk_loads_no_spark() -> None:
    program = "import sys, txlake, txlake.testing; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pyspark", "delta", "polars", "duckdb", "py4j"} & set(loaded)

"""Kafka's records read by offsets: where from, and what it means when they do not come.

Tasks of a landing read by `storage.tasks.kafka_reader`, and so does the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from pipelines.errors import JobError, KafkaAwayError, KafkaRefusedError, LostInputError
from pipelines.kafka_client.connection import Partition
from pipelines.kafka_client.options import portable_config
from pipelines.settings import KafkaSettings
from storage.tasks.kafka_reader import (
    FETCH_BYTES,
    GONE,
    NOT_READ,
    REFUSED,
    KafkaSource,
    RecordRange,
    UnreadRecordsError,
    close_consumer,
    read_records,
)

_TEXT_MAX: Final = 300


def kafka_source(kafka: KafkaSettings, fetch_bytes: int = FETCH_BYTES) -> KafkaSource:
    """Returns the Kafka of some settings, as a task on any machine reads it.

    Errors: StartError for a file of [kafka.client] that cannot be used.
    """
    return KafkaSource(kafka.bootstrap_servers, portable_config(kafka.client), fetch_bytes)


def read_kafka(kafka: KafkaSettings, spans: Mapping[Partition, range]) -> Iterator[pa.RecordBatch]:
    """Returns the records of some offsets, read in this process. Output: KAFKA.

    Errors: LostInputError, KafkaAwayError.
    """
    ranges = [RecordRange(*partition, span.start, span.stop) for partition, span in spans.items()]
    try:
        yield from read_records(kafka_source(kafka), ranges)
    except UnreadRecordsError as error:
        raise unread_error(str(error)) or AssertionError(error) from error
    finally:
        close_consumer()


def unread_error(text: str) -> JobError | None:
    """Returns the error that a reader's text stands for; None if it is not a reader's."""
    line = next((line for line in text.splitlines() if NOT_READ in line), None)
    if line is None:
        return None

    reason = line[line.index(NOT_READ) :].strip()[:_TEXT_MAX]
    if GONE in reason:
        return LostInputError(reason)
    return KafkaRefusedError(reason) if REFUSED in reason else KafkaAwayError(reason)

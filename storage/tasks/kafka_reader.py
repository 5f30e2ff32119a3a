"""Kafka records read by librdkafka: the offsets of some partitions, as Arrow batches.

    read_records(Kafka, ranges) -> batches of KAFKA, one partition after the other

Landing tasks read in this way on executors, the driver where it needs few records. A process keeps
one consumer from one landing to the next: connections and logins stay.

Memory: one fetch at a time. Kafka counts its bytes before they are unpacked, so a fetch is small
(`fetch_bytes`); a larger batch of a producer comes whole, and alone.
"""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from operator import methodcaller
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from storage.schemas import HEADERS
from storage.wire.decode import KAFKA
from txlake.protocol import INSTANT_MS_MAX, RECEIVED_BYTES_MAX

# What is fetched at once can be unpacked to a thousand times its bytes, and more.
FETCH_BYTES: Final = 16 * 1024
# Records and bytes of a batch; the size of records is taken from the batch before.
_BATCH_RECORDS: Final = 1_000
_BATCH_BYTES: Final = 4 * 1024 * 1024
_FIRST_RECORDS: Final = 4
_NO_RECORD_S: Final = 10.0  # then the partition's leader is asked whether it answers
_ANSWER_S: Final = 5.0
# A large record can take long on a slow link. librdkafka gives up a fetch after as long, and begins
# it again (`socket.timeout.ms`).
_SLOW_RECORD_S: Final = 60.0
_POLL_S: Final = 0.5
_LEADERS_S: Final = 1.0
# The text of a task's error when Kafka does not give the records: only the text crosses Spark.
NOT_READ: Final = "Kafka's records could not be read"
# Parts of that text: the records are gone; the client is refused.
GONE: Final = "they are gone"
REFUSED: Final = "Kafka refuses"
# What stands for a header's name that is not UTF-8, as Java's client shows it.
_NO_NAME: Final = "\N{REPLACEMENT CHARACTER}"
_call_offset = methodcaller("offset")
_call_timestamp = methodcaller("timestamp")
_call_key = methodcaller("key")
_call_value = methodcaller("value")
# A call that Python does not specialise: it always meets the error of a name that is not UTF-8.
_call_headers = methodcaller("headers")

Header: TypeAlias = tuple[str, "bytes | None"]


def _kafka() -> Any:
    """Returns Kafka's client, which commands that only read a lake do without."""
    import confluent_kafka

    return confluent_kafka


class UnreadRecordsError(Exception):
    """Kafka does not give records that a landing needs; its text begins with `NOT_READ`."""


@dataclass(frozen=True)
class RecordRange:
    """Offsets of one Kafka partition; `stop` is exclusive."""

    topic: str
    partition: int
    start: int
    stop: int

    @property
    def topic_partition(self) -> tuple[str, int]:
        """Returns the Kafka partition."""
        return self.topic, self.partition


@dataclass(frozen=True)
class KafkaSource:
    """A Kafka to read from: all that a task on another machine needs.

    `client`: librdkafka's settings, secrets among them, without names of files; they are in no
    print. `fetch_bytes`: the most bytes that Kafka gives at once, as it has them, compressed; a
    batch that is larger comes alone.
    """

    bootstrap_servers: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    fetch_bytes: int = FETCH_BYTES

    def consumer_config(self) -> dict[str, Any]:
        """Returns the settings of a consumer that reads given offsets and commits none."""
        return {
            "log_level": 0,
            "receive.message.max.bytes": RECEIVED_BYTES_MAX,
            **self.client,
            "bootstrap.servers": self.bootstrap_servers,
            "group.id": "txlake-landing",  # librdkafka asks for one; nothing joins it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "allow.auto.create.topics": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            # A partition is fetched when nothing of it waits: so memory holds one fetch.
            "queued.min.messages": 1,
            "fetch.queue.backoff.ms": 1,
            "fetch.wait.max.ms": 5,  # at the end of a partition, where EOF is waited for
            "message.max.bytes": 1_000,  # the others cannot be smaller
            "fetch.message.max.bytes": self.fetch_bytes,
            "fetch.max.bytes": max(1_000, self.fetch_bytes),
        }


def read_records(source: KafkaSource, ranges: Sequence[RecordRange]) -> Iterator[pa.RecordBatch]:
    """Returns the records of some offsets, range by range. Output: KAFKA.

    Offsets without a record, as the markers of Kafka transactions, are passed. A time that no
    column holds becomes one just outside of the columns' range; a header's name that is not UTF-8
    becomes U+FFFD.
    Errors: UnreadRecordsError if no record comes within 10 s, 60 s of a Kafka that answers, or if
    the first offset is gone.
    """
    wanted = [r for r in ranges if r.stop > r.start]
    if not wanted:
        return

    with _kept_consumer(source) as kept:
        kept.find_leaders(record_range.topic for record_range in wanted)
        for record_range in wanted:
            yield from _read_range(kept, record_range)
        kept.consumer.unassign()


@dataclass
class _KeptConsumer:
    """A consumer, and the topics of which it knows the leaders."""

    source: KafkaSource
    consumer: Any
    topics: set[str] = field(default_factory=set)

    def find_leaders(self, topics: Iterable[str]) -> None:
        """Asks Kafka who leads the partitions of topics, before they are assigned.

        A consumer that is assigned one topic after the other would wait for each but the first:
        librdkafka looks once a second for topics that it does not know. If Kafka does not answer,
        these looks remain.
        """
        new = set(topics) - self.topics
        with suppress(_kafka().KafkaException):
            for topic in new:
                self.consumer.list_topics(topic, timeout=_LEADERS_S)
        self.topics |= new


_kept: list[_KeptConsumer] = []  # this process's consumer, at most one


@contextmanager
def _kept_consumer(source: KafkaSource) -> Iterator[_KeptConsumer]:
    """Lends this process's consumer of a Kafka. One that fails, or is left midway, is closed."""
    kept = _take_consumer(source)
    try:
        yield kept
    except _kafka().KafkaException as error:
        kept.consumer.close()
        raise UnreadRecordsError(f"{NOT_READ}: {error.args[0]}") from error
    except BaseException:
        kept.consumer.close()
        raise

    close_consumer()
    _kept.append(kept)


def _take_consumer(source: KafkaSource) -> _KeptConsumer:
    if _kept and _kept[0].source == source:
        return _kept.pop()
    try:
        return _KeptConsumer(source, _kafka().Consumer(source.consumer_config()))
    except _kafka().KafkaException as error:
        raise UnreadRecordsError(f"{NOT_READ}: {error.args[0]}") from error


def close_consumer() -> None:
    """Closes the consumer that this process keeps, if there is one."""
    while _kept:
        _kept.pop().consumer.close()


def _read_range(kept: _KeptConsumer, wanted: RecordRange) -> Iterator[pa.RecordBatch]:
    """Returns the records of one range; its end is passed by a record, or by Kafka's end."""
    consumer = kept.consumer
    consumer.assign([_kafka().TopicPartition(wanted.topic, wanted.partition, wanted.start)])
    end_of_partition = _kafka().KafkaError._PARTITION_EOF
    reported = ""
    heard_at = time.monotonic()
    limit_s = _NO_RECORD_S
    batch_records = _FIRST_RECORDS
    is_through = False

    while not is_through:
        messages = consumer.consume(batch_records, 0) or [consumer.poll(_POLL_S)]
        messages = [message for message in messages if message is not None]
        events = [message for message in messages if message.error() is not None]
        if events:
            messages = [message for message in messages if message.error() is None]
        # The client drops what it has fetched of the range before; if not, that comes first.
        while messages and not _is_of_range(messages[0], wanted):
            del messages[0]

        offsets = list(map(_call_offset, messages))
        if offsets:
            is_through = offsets[-1] >= wanted.stop - 1
            count = bisect_left(offsets, wanted.stop)
            if count:
                batch = _as_batch(wanted, messages[:count], offsets[:count])
                batch_records = _BATCH_BYTES * count // (batch.nbytes + 1)
                batch_records = min(max(1, batch_records), _BATCH_RECORDS)
                yield batch
            heard_at = time.monotonic()  # also after a long time in the caller

        for event in events:
            if event.error().code() == end_of_partition:
                is_of_range = (event.topic(), event.partition()) == wanted.topic_partition
                is_through = is_through or (is_of_range and event.offset() >= wanted.stop)
            else:
                reported = _reported(event.error(), wanted)

        if not is_through and time.monotonic() - heard_at > limit_s:
            if limit_s < _SLOW_RECORD_S and _is_answered(kept.source, wanted):
                limit_s = _SLOW_RECORD_S
                continue
            raise UnreadRecordsError(
                f"{NOT_READ}: no record within {limit_s:.0f} s of {wanted.topic} partition "
                f"{wanted.partition}{reported}"
            )


def _is_answered(source: KafkaSource, wanted: RecordRange) -> bool:
    """Returns whether the leader of a partition answers, on a connection that brings no records."""
    other = _kafka().Consumer(source.consumer_config())
    try:
        partition = _kafka().TopicPartition(wanted.topic, wanted.partition)
        return other.get_watermark_offsets(partition, timeout=_ANSWER_S) is not None
    except _kafka().KafkaException:
        return False
    finally:
        other.close()


def _is_of_range(message: Any, wanted: RecordRange) -> bool:
    """Returns whether a record is of the range, or behind it in its partition."""
    partition = (message.topic(), message.partition())
    return partition == wanted.topic_partition and message.offset() >= wanted.start


def _reported(error: Any, wanted: RecordRange) -> str:
    """Returns what an error says, after which the client tries again. Errors: all others."""
    codes = _kafka().KafkaError
    if error.code() == codes._AUTO_OFFSET_RESET:
        raise UnreadRecordsError(
            f"{NOT_READ}: {GONE}, from offset {wanted.start} of {wanted.topic} partition "
            f"{wanted.partition} on: {error.str()}"
        )
    if error.code() in (
        codes._AUTHENTICATION,
        codes.SASL_AUTHENTICATION_FAILED,
        codes.TOPIC_AUTHORIZATION_FAILED,
    ):
        raise UnreadRecordsError(f"{NOT_READ}: {REFUSED}: {error.str()}")
    return f": {error.str()}"


def _as_batch(
    source: RecordRange, messages: Sequence[Any], offsets: Sequence[int]
) -> pa.RecordBatch:
    """Returns records of one partition as columns. Output: KAFKA."""
    count = len(messages)
    times_ms = np.array([ms for _, ms in map(_call_timestamp, messages)], np.int64)
    # Clipped, since a time of 10^18 ms is more than the column can count in us.
    times_us = np.clip(times_ms, -1, INSTANT_MS_MAX + 1) * 1_000

    columns = [
        pa.repeat(source.topic, count),
        pa.repeat(pa.scalar(source.partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(times_us).cast(KAFKA.field("timestamp").type),
        pa.array(list(map(_call_key, messages)), pa.binary()),
        pa.array(list(map(_call_value, messages)), pa.binary()),
        _header_column(_headers(messages)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KAFKA)


def _header_column(headers: Sequence[Sequence[Header]]) -> pa.Array:
    """Returns the headers of each record as one column of HEADERS; null where there are none."""
    counts = np.fromiter(map(len, headers), np.int32, len(headers))
    starts = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])

    flat = list(chain.from_iterable(headers))
    pairs = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in flat], pa.string()),
            pa.array([value for _, value in flat], pa.binary()),
        ],
        fields=list(HEADERS.value_type),
    )
    return pa.ListArray.from_arrays(
        pa.array(starts), pairs, type=HEADERS, mask=pa.array(counts == 0)
    )


def _headers(messages: Sequence[Any]) -> list[Sequence[Header]]:
    """Returns the headers of each record; `_NO_NAME` stands for a name that is not UTF-8."""
    try:
        return [headers or () for headers in map(_call_headers, messages)]
    except (SystemError, UnicodeDecodeError):
        return list(map(_headers_with_bad_names, messages))


def _headers_with_bad_names(message: Any) -> list[Header]:
    """Returns the headers of a record of which a name may be no UTF-8.

    For such a name the client sets an error, once for each record, and leaves a hole in its pair.
    """
    with suppress(SystemError, UnicodeDecodeError):
        _call_headers(message)
    pairs = _call_headers(message) or []  # the client has kept the pairs that it has made

    # The garbage collector's view of a pair leaves a hole out; unpacking it would end the process.
    is_named = [len(gc.get_referents(pair)) == 2 for pair in pairs]
    return [
        pair if named else (_NO_NAME, gc.get_referents(pair)[0])
        for pair, named in zip(pairs, is_named, strict=True)
    ]

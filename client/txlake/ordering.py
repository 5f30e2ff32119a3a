"""The real queue of a message with an ordering key: a hash of the key, by the topic's queue count.

The hash is that of Kafka's default partitioner in Java. So where a topic is published, a key stands
in the partition in which Kafka's own producers put it.
Source: Kafka's `Utils.murmur2`, `Utils.toPositive` and `BuiltInPartitioner.partitionForKey`;
docs/protocol/wire.md "Order by key".
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from txlake.errors import MessageError, UnknownTopicError
from txlake.message import Message
from txlake.protocol import QUEUE_COUNT_MAX

QueueCounts = Mapping[str, int]

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_32_BITS: Final = 0xFFFFFFFF
_31_BITS: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Returns MurmurHash2 of some bytes, as Kafka computes it. Output: 32 bits, without a sign."""
    length = len(data)
    value = _SEED ^ length

    for start in range(0, length - 3, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _32_BITS
        word = (word ^ word >> 24) * _MULTIPLIER & _32_BITS
        value = (value * _MULTIPLIER & _32_BITS) ^ word

    tail = data[length & ~3 :]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * _MULTIPLIER & _32_BITS

    value = (value ^ value >> 13) * _MULTIPLIER & _32_BITS
    return value ^ value >> 15


@functools.lru_cache(maxsize=4096)  # a hash of 20 bytes takes 8 to 17 us, a look-up 0.14
def _positive_hash(key: str) -> int:
    return murmur2(key.encode()) & _31_BITS


def queue_for_key(key: str, queue_count: int) -> int:
    """Returns the real queue of an ordering key, in a topic of so many queues."""
    return _positive_hash(key) % queue_count


def with_queue(message: Message, queue_counts: QueueCounts | None) -> Message:
    """Returns a message that asks for the real queue of its ordering key.

    A message without a key is returned as it is.
    Errors: MessageError without `queue_counts`; UnknownTopicError if they lack its topic.
    """
    key = message.ordering_key
    if key is None:
        return message

    if queue_counts is None:
        raise MessageError(
            f"ordering_key {key!r}: the producer has no queue_counts, which say how many queues "
            f"topic {message.topic} has: LakeQueueCounts(lake) reads them, or state them: "
            f"{{{message.topic!r}: 4}}"
        )

    try:
        queue_count = queue_counts[message.topic]
    except KeyError:
        raise UnknownTopicError(
            f"topic {message.topic}: queue_counts do not have it, and without its number of queues "
            "a key has no queue: make the topic first, with `txlake topic create`"
        ) from None

    return replace(message, queue_id=queue_for_key(key, queue_count), ordering_key=None)


def checked_counts(queue_counts: QueueCounts | None) -> QueueCounts | None:
    """Returns the counts that a producer is made with; a plain dict is copied.

    Errors: ValueError naming a topic and its count; TypeError for what is no mapping.
    """
    if queue_counts is None or not isinstance(queue_counts, dict):
        if queue_counts is not None and not isinstance(queue_counts, Mapping):
            raise TypeError(
                "queue_counts: a dict from topics to their numbers of queues, or "
                f"LakeQueueCounts, not {type(queue_counts).__name__}"
            )
        return queue_counts

    for topic, count in queue_counts.items():
        if type(count) is not int or not 1 <= count <= QUEUE_COUNT_MAX:
            raise ValueError(f"queue_counts[{topic!r}] = {count!r}: 1 to {QUEUE_COUNT_MAX}")
    return dict(queue_counts)

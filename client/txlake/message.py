"""The messages that applications hand over; they are checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from txlake import protocol
from txlake._counted import counted
from txlake.errors import MessageError

OWN_TOPICS = frozenset(
    (
        protocol.HALF_TOPIC,
        protocol.OP_TOPIC,
        protocol.SCHEDULE_TOPIC,
        protocol.ADMIN_TOPIC,
        *protocol.SYSTEM_REAL_TOPICS,
    )
)
# Room for the headers that the SDK adds: names 130, group and topic 127 each, id, numbers.
PROTOCOL_HEADERS_BYTES_MAX = 768
_PROPERTIES_BYTES_MAX = protocol.PROPERTIES_BYTES_MAX - PROTOCOL_HEADERS_BYTES_MAX
_REAL_TOPIC_BYTES = len(protocol.REAL_TOPIC) + 2  # as `_bytes` counts
_NUMBER_MAX = 999_999_999  # protocol.SMALL_NUMBER_PATTERN
_SPAN_MAX = 10**15 - 1  # protocol.SPAN_PATTERN


@dataclass(frozen=True, slots=True)
class Message:
    """One message for a real topic.

    `properties` are the user's own headers. `queue_id` asks for one real queue, `ordering_key` for
    the same queue as every other message of the topic with that key; without them the job spreads
    messages over all queues. Of `delay_level`, `deliver_at` and `deliver_after_ms`
    only one is allowed; `delay_level` 1 is the first of the configured levels, 0 is no delay.
    For `check_immunity_time_s` nobody is asked how the transaction ended.

    Units: `deliver_at` epoch ms; `deliver_after_ms` ms, counted from the broker's time of a message
    without a transaction, else from the commit; `check_immunity_time_s` s.
    Errors: MessageError, naming the field, its value and what is allowed. The producer raises it
    for what its options limit: the size of the record, and how far ahead it is delivered.
    Source: docs/protocol/wire.md "The half message".
    """

    topic: str
    body: bytes | None
    keys: str | None = None
    tags: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    delay_level: int | None = None
    deliver_at: int | None = None
    deliver_after_ms: int | None = None
    queue_id: int | None = None
    check_immunity_time_s: int | None = None
    ordering_key: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str):
            raise MessageError(f"topic {self.topic!r}: {protocol.TOPIC_PATTERN} is allowed")
        _check_topic(self.topic)

        has_more = has_options(self)
        if has_more:
            self._check_numbers()

        if self.ordering_key is not None:
            self._check_ordering_key(self.ordering_key)

        if self.body is not None and not isinstance(self.body, bytes):
            raise MessageError(f"body: bytes or None, not {type(self.body).__name__}: encode it")

        try:
            properties = dict(self.properties)
        except (TypeError, ValueError):
            raise MessageError(f"properties {self.properties!r}: a dict is allowed") from None
        object.__setattr__(self, "properties", properties)

        properties_bytes = _REAL_TOPIC_BYTES + len(self.topic)
        if properties:
            properties_bytes += _checked_bytes(properties)
        if has_more:
            for name, text in (("keys", self.keys), ("tags", self.tags)):
                if text is not None:
                    _check_text(name, text)
            properties_bytes += _bytes(option_headers(self))

        if properties_bytes > _PROPERTIES_BYTES_MAX:
            raise MessageError(
                f"keys, tags and properties: {properties_bytes} bytes, "
                f"{_PROPERTIES_BYTES_MAX} at most"
            )

    def _check_ordering_key(self, key: str) -> None:
        _check_text("ordering_key", key)
        if not key:
            raise MessageError("ordering_key '': text that is not empty is allowed")
        if self.queue_id is not None:
            raise MessageError(
                f"queue_id, ordering_key: only one of them, not {self.queue_id}, {key!r}"
            )

    def _check_numbers(self) -> None:
        for name, value, maximum in (
            ("delay_level", self.delay_level, _NUMBER_MAX),
            ("deliver_at", self.deliver_at, protocol.INSTANT_MS_MAX),
            ("deliver_after_ms", self.deliver_after_ms, _SPAN_MAX),
            ("queue_id", self.queue_id, protocol.QUEUE_COUNT_MAX - 1),
            ("check_immunity_time_s", self.check_immunity_time_s, _NUMBER_MAX),
        ):
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum
            ):
                raise MessageError(f"{name} {value!r}: a whole number from 0 to {maximum}")

        delays = (self.delay_level, self.deliver_at, self.deliver_after_ms)
        if sum(value is not None for value in delays) > 1:
            raise MessageError(
                "delay_level, deliver_at, deliver_after_ms: only one of them, not "
                f"{self.delay_level}, {self.deliver_at}, {self.deliver_after_ms}"
            )


def require_message(value: object) -> None:
    """Raises MessageError unless a value is a Message."""
    if not isinstance(value, Message):
        raise MessageError(
            f"expected a txlake.Message, not {type(value).__name__}: Message(topic, body) makes one"
        )


def require_messages(values: object) -> None:
    """Raises MessageError unless a value is a sequence of messages."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise MessageError(
            f"expected a list or a tuple of txlake.Message, not {type(values).__name__}"
        )
    for value in values:
        require_message(value)


def require_set(values: object, members_max: int) -> None:
    """Raises MessageError unless a value is 1 to `members_max` messages of one transaction."""
    require_messages(values)
    assert isinstance(values, Sequence)
    if not 1 <= len(values) <= members_max:
        raise MessageError(
            f"{counted(len(values), 'message')} in a transaction: 1 to {members_max}"
        )


def has_options(message: Message) -> bool:
    """Returns whether it has more than topic, body and properties; most messages do not."""
    return not (
        message.keys is None
        and message.tags is None
        and message.delay_level is None
        and message.deliver_at is None
        and message.deliver_after_ms is None
        and message.queue_id is None
        and message.check_immunity_time_s is None
    )


def option_headers(message: Message) -> dict[str, str]:
    """Returns those of REAL_QID, KEYS, TAGS, DELAY, DELAY_MS and DELIVER_AT that it has."""
    options = (
        (protocol.REAL_QID, message.queue_id),
        (protocol.KEYS, message.keys),
        (protocol.TAGS, message.tags),
        (protocol.DELAY, message.delay_level or None),
        (protocol.DELAY_MS, message.deliver_after_ms),
        (protocol.DELIVER_AT, message.deliver_at),
    )
    return {
        name: value if isinstance(value, str) else f"{value:d}"
        for name, value in options
        if value is not None
    }


@lru_cache(maxsize=1024)
def _check_topic(topic: str) -> None:
    """Checks a real topic's name; an application has few of them."""
    if not protocol.matches(protocol.TOPIC_PATTERN, topic):
        raise MessageError(f"topic {topic!r}: {protocol.TOPIC_PATTERN} is allowed")
    if topic in protocol.NO_TOPICS:
        raise MessageError(f"topic {topic!r}: not a name")
    if protocol.is_own_topic(topic, OWN_TOPICS, protocol.CHECK_TOPIC_PREFIX):
        raise MessageError(f"topic {topic!r} belongs to the transaction machinery itself")


def _bytes(headers: Mapping[str, str]) -> int:
    """Returns the length of RocketMQ's properties string: a separator after each name and value.

    Errors: TypeError for a value that is not text, UnicodeEncodeError for text that is not UTF-8.
    """
    names, values = "".join(headers), "".join(headers.values())
    return len(names.encode()) + len(values.encode()) + 2 * len(headers)


def _checked_bytes(properties: Mapping[str, str]) -> int:
    """Returns the bytes of properties; checks all at once, one by one only for the error."""
    try:
        size = _bytes(properties)
    except (TypeError, UnicodeEncodeError):
        raise _invalid_part(properties) from None
    if "" in properties or not protocol.RESERVED_HEADERS.isdisjoint(properties):
        raise _invalid_part(properties)
    if any("\0" in name for name in properties):
        raise _invalid_part(properties)
    return size


def _invalid_part(properties: Mapping[str, str]) -> MessageError:
    reserved = protocol.RESERVED_HEADERS.intersection(properties)
    if reserved:
        return MessageError(f"properties: {sorted(reserved)} are names of the protocol")

    for name, value in properties.items():
        if not isinstance(name, str) or not name:
            return MessageError(f"properties: name {name!r}: text that is not empty is allowed")
        if "\0" in name:  # "DELAY\0x" would be DELAY
            return MessageError(f"properties: name {name!r}: librdkafka ends it at its NUL")
        _check_text("properties: name", name)
        _check_text(f"properties[{name!r}]", value)

    return MessageError(f"properties {properties!r}: names and values are text")


def _check_text(name: str, value: str) -> None:
    if not isinstance(value, str):
        raise MessageError(f"{name}: a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MessageError(f"{name}: {value!r} cannot be written as UTF-8") from error

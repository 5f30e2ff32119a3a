"""The messages that applications hand over, checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from txlake import protocol
from txlake.errors import MessageError

OWN_TOPICS = frozenset((
    protocol.HALF_TOPIC, protocol.OP_TOPIC, protocol.SCHEDULE_TOPIC, protocol.ADMIN_TOPIC,
    *protocol.SYSTEM_REAL_TOPICS,
))  # fmt: skip
# Room that stays for the headers the SDK adds: names 130, group and topic 127 each, id, numbers.
PROTOCOL_HEADERS_BYTES_MAX = 768
_NUMBER_MAX = 999_999_999  # protocol.SMALL_NUMBER_PATTERN
_INSTANT_MAX = 10**18 - 1  # protocol.NUMBER_PATTERN


@dataclass(frozen=True, slots=True)
class Message:
    """Describe one message for a real topic.

    `properties` are the user's own headers. `queue_id` asks for one real queue; without it the
    reconciler spreads. `delay_level` (1 is the first of the configured levels, 0 is no delay),
    `deliver_at` and `deliver_after_ms` exclude each other. `check_immunity_time_s` is how long
    nobody asks how the transaction ended.

    Units: `deliver_at` epoch ms, `deliver_after_ms` ms from sending, `check_immunity_time_s` s.
    Errors: MessageError, naming the field, its value and what is allowed.
    Source: PROTOCOL.md, the half message.
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

    bytes_max: ClassVar[int] = protocol.MESSAGE_BYTES_MAX

    # Encoded once: the protocol headers that do not change from send to send, then the user's.
    fixed_headers: tuple[tuple[str, bytes], ...] = field(init=False, repr=False, compare=False)
    immunity_headers: tuple[tuple[str, bytes], ...] = field(init=False, repr=False, compare=False)
    user_headers: tuple[tuple[str, bytes], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_topic()
        self._check_numbers()
        if self.body is not None and not isinstance(self.body, bytes):
            raise MessageError(f"body: bytes or None, not {type(self.body).__name__}: encode it")
        keep = object.__setattr__
        keep(self, "properties", dict(self.properties))
        keep(self, "user_headers", _user_headers(self.properties))
        keep(self, "fixed_headers", self._fixed())
        immunity = self.check_immunity_time_s
        keep(self, "immunity_headers", () if immunity is None else _number(
            protocol.CHECK_IMMUNITY, immunity))  # fmt: skip
        self._check_size()

    def _check_topic(self) -> None:
        topic = self.topic
        if not isinstance(topic, str) or not protocol.matches(protocol.TOPIC_PATTERN, topic):
            raise MessageError(f"topic {topic!r}: {protocol.TOPIC_PATTERN} is allowed")
        if topic in (".", ".."):
            raise MessageError(f"topic {topic!r}: not a name")
        if protocol.is_own_topic(topic, OWN_TOPICS, protocol.CHECK_TOPIC_PREFIX):
            raise MessageError(f"topic {topic!r} belongs to the transaction machinery itself")

    def _check_numbers(self) -> None:
        _check_int("delay_level", self.delay_level, _NUMBER_MAX)
        _check_int("deliver_at", self.deliver_at, _INSTANT_MAX)
        _check_int("deliver_after_ms", self.deliver_after_ms, _INSTANT_MAX // 2)
        _check_int("queue_id", self.queue_id, _NUMBER_MAX)
        _check_int("check_immunity_time_s", self.check_immunity_time_s, _NUMBER_MAX)
        delays = (self.delay_level, self.deliver_at, self.deliver_after_ms)
        if sum(value is not None for value in delays) > 1:
            raise MessageError(
                "delay_level, deliver_at, deliver_after_ms: only one of them, not "
                f"{self.delay_level}, {self.deliver_at}, {self.deliver_after_ms}"
            )

    def _fixed(self) -> tuple[tuple[str, bytes], ...]:
        headers = [(protocol.REAL_TOPIC, self.topic.encode())]
        if self.queue_id is not None:
            headers += _number(protocol.REAL_QID, self.queue_id)
        if self.keys is not None:
            headers.append((protocol.KEYS, _text("keys", self.keys)))
        if self.tags is not None:
            headers.append((protocol.TAGS, _text("tags", self.tags)))
        if self.delay_level:
            headers += _number(protocol.DELAY, self.delay_level)
        if self.deliver_at is not None:
            headers += _number(protocol.DELIVER_AT, self.deliver_at)
        return tuple(headers)

    def _check_size(self) -> None:
        headers = (*self.fixed_headers, *self.user_headers)
        # RocketMQ's properties string puts one separator after each name and each value.
        properties_bytes = sum([len(name) + len(value) + 2 for name, value in headers])
        properties_max = protocol.PROPERTIES_BYTES_MAX - PROTOCOL_HEADERS_BYTES_MAX
        if properties_bytes > properties_max:
            raise MessageError(
                f"keys, tags and properties: {properties_bytes} bytes, {properties_max} at most"
            )
        size = len(self.body or b"") + properties_bytes + PROTOCOL_HEADERS_BYTES_MAX
        if size > self.bytes_max:
            raise MessageError(
                f"body of {len(self.body or b'')} bytes: {size} bytes with its headers, "
                f"{self.bytes_max} at most"
            )


def _user_headers(properties: Mapping[str, str]) -> tuple[tuple[str, bytes], ...]:
    if not properties:
        return ()
    reserved = protocol.RESERVED_HEADERS.intersection(properties)
    if reserved:
        raise MessageError(f"properties: {sorted(reserved)} are names of the protocol")
    headers = []
    for name, value in properties.items():
        if not isinstance(name, str) or not name:
            raise MessageError(f"properties: name {name!r}: a text that is not empty")
        _text("properties: name", name)
        headers.append((name, _text(f"properties[{name!r}]", value)))
    return tuple(headers)


def _text(what: str, value: str) -> bytes:
    if not isinstance(value, str):
        raise MessageError(f"{what}: a str, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise MessageError(f"{what}: {value!r} cannot be written as UTF-8") from error


def _number(name: str, value: int) -> tuple[tuple[str, bytes], ...]:
    return ((name, b"%d" % value),)


def _check_int(name: str, value: int | None, most: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise MessageError(f"{name} {value!r}: a whole number from 0 to {most}")

"""A producer's options; they are checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from txlake import protocol
from txlake._numbers import INT_MAX

_NAMES = {
    "half_topic": protocol.TOPIC_PATTERN,
    "op_topic": protocol.TOPIC_PATTERN,
    "schedule_topic": protocol.TOPIC_PATTERN,
    "check_topic_prefix": protocol.CHECK_TOPIC_PREFIX_PATTERN,
}


# What is not INT_MAX, of which a thread can wait so many ms; None: the job's limit counts.
_MAXIMA = {
    "check_session_timeout_ms": 3_600_000,  # Kafka's client takes no more
    "deliver_at_max_ms": None,
    "message_bytes_max": protocol.MESSAGE_BYTES_LARGEST,
}


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The names and limits of a producer.

    These must equal the job's settings: `messages_max` and `message_bytes_max` those of
    `[transaction]`, `delay_levels` and `deliver_at_max_ms` those of `[delay]`, the topics those
    of `[kafka]`.
    Units: `_ms` milliseconds; `_bytes_max` bytes; other `_max` and `_threads` counts.
    Errors: ValueError naming the option, its value and what is allowed.
    """

    half_topic: str = protocol.HALF_TOPIC
    op_topic: str = protocol.OP_TOPIC
    schedule_topic: str = protocol.SCHEDULE_TOPIC
    check_topic_prefix: str = protocol.CHECK_TOPIC_PREFIX
    delay_levels: str = protocol.DELAY_LEVELS
    deliver_at_max_ms: int = protocol.DELIVER_AT_MAX_MS
    message_bytes_max: int = protocol.MESSAGE_BYTES_MAX
    messages_max: int = protocol.MESSAGES_MAX
    send_timeout_ms: int = 30_000
    half_linger_ms: int = 2
    # In a few ms of waiting many ends come together in one operation: far fewer records to read.
    operation_linger_ms: int = 5
    operation_ends_max: int = 50
    in_flight_max: int = 20_000
    local_transaction_threads: int = 1
    check_threads: int = 4
    check_topic_partitions: int = 1
    # Kafka refuses less than its group.min.session.timeout.ms, 6000 by default.
    check_session_timeout_ms: int = 10_000
    close_timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        for option in fields(self):
            value: object = getattr(self, option.name)

            kind = str if option.type == "str" else int
            if type(value) is not kind:
                raise ValueError(f"{option.name} = {value!r}: {kind.__name__} is allowed")
            if kind is str and not value:
                raise ValueError(f"{option.name} = {value!r}: text that is not empty is allowed")

            minimum = 0 if option.name.endswith("linger_ms") else 1
            if isinstance(value, int) and value < minimum:
                raise ValueError(f"{option.name} = {value}: {minimum} or more is allowed")
            maximum = _MAXIMA.get(option.name, INT_MAX)
            if isinstance(value, int) and maximum is not None and value > maximum:
                raise ValueError(f"{option.name} = {value}: {maximum} or less is allowed")

        protocol.delay_levels_ms(self.delay_levels)

        for name, pattern in _NAMES.items():
            if not protocol.matches(pattern, getattr(self, name)):
                raise ValueError(f"{name} = {getattr(self, name)!r}: {pattern} is allowed")

        topics = (self.half_topic, self.op_topic, self.schedule_topic)
        error_text = protocol.topics_error(topics, self.check_topic_prefix)
        if error_text:
            raise ValueError(error_text)


def checked_options(options: object) -> ProducerOptions:
    """Returns options, the default ones for None. Errors: ValueError for what is none."""
    if options is None:
        return ProducerOptions()
    if not isinstance(options, ProducerOptions):
        raise ValueError(f"options {options!r}: ProducerOptions(...) makes them")
    return options

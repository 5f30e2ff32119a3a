"""The wire form: names, numbers and patterns that producers, consumers and the job share.

Source: RocketMQ's `MessageConst`, `MessageSysFlag` and `TopicValidator` (4.6.0 / 5.1.2) for the
names and numbers; docs/protocol/wire.md for the meaning of each header. This module imports only
the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

WIRE_VERSION: Final = "1"
Headers = list[tuple[str, bytes]]

# Kafka topics: the default names, which the settings can change.
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
CHECK_TOPIC_PREFIX: Final = "TRANS_CHECK_"
ADMIN_TOPIC: Final = "TXLAKE_ADMIN"

# Names that are not ours: Kafka has its own topics of these, and allows none of the other two.
_KAFKAS_OWN: Final = (
    "__consumer_offsets",
    "__transaction_state",
    "__cluster_metadata",
    "__share_group_state",
    "__remote_log_metadata",
)
NO_TOPICS: Final = (".", "..")

# Real topics that the job itself writes: one queue each.
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
UNDELIVERABLE_TOPIC: Final = "TRANS_UNDELIVERABLE_TOPIC"
SYSTEM_REAL_TOPICS: Final = (CHECK_MAX_TOPIC, UNDELIVERABLE_TOPIC)

# Headers.
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
UNIQ_KEY: Final = "UNIQ_KEY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
DELAY: Final = "DELAY"
DELAY_MS: Final = "DELAY_MS"
DELIVER_AT: Final = "DELIVER_AT"
CHECK_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRAN_SIZE: Final = "TRAN_SIZE"
TRAN_SEQ: Final = "TRAN_SEQ"
TXV: Final = "TXV"
TRAN_TYPE: Final = "TRAN_TYPE"
FROM_CHECK: Final = "FROM_CHECK"
CHECK_ID: Final = "CHECK_ID"
REMARK: Final = "REMARK"
ACTOR: Final = "ACTOR"
REASON: Final = "REASON"
SIG: Final = "SIG"
HALF_QUEUE_ID: Final = "HALF_QUEUE_ID"
HALF_QUEUE_OFFSET: Final = "HALF_QUEUE_OFFSET"
CHECK_TIMES: Final = "CHECK_TIMES"
BODY_OMITTED: Final = "BODY_OMITTED"
COMMAND: Final = "COMMAND"
TARGET: Final = "TARGET"
OP_TAG: Final = "d"  # RocketMQ's TransactionalMessageUtil.REMOVETAG

# The SDK writes a half's protocol headers first and in this order; the user's headers follow. The
# decoder reads headers by position where this order holds, and else searches them by name.
HALF_HEADERS: Final = (
    TRAN_MSG,
    PGROUP,
    UNIQ_KEY,
    REAL_TOPIC,
    REAL_QID,
    KEYS,
    TAGS,
    DELAY,
    DELAY_MS,
    DELIVER_AT,
    CHECK_IMMUNITY,
    BORN_TIMESTAMP,
    TRAN_SIZE,
    TRAN_SEQ,
    TXV,
)
OP_HEADERS: Final = (
    TAGS,
    PGROUP,
    TRAN_TYPE,
    UNIQ_KEY,
    FROM_CHECK,
    CHECK_ID,
    REMARK,
    ACTOR,
    REASON,
    TXV,
    SIG,
)
ADMIN_HEADERS: Final = (COMMAND, TARGET, ACTOR, REASON, TXV)
CHECK_HEADERS: Final = (
    PGROUP,
    UNIQ_KEY,
    REAL_TOPIC,
    KEYS,
    TAGS,
    HALF_QUEUE_ID,
    HALF_QUEUE_OFFSET,
    CHECK_TIMES,
    CHECK_ID,
    BODY_OMITTED,
    SIG,
)
# What a published record says of itself beside the protocol's own names.
PLACE: Final = "TXLAKE_PLACE"
QUEUE_OFFSET: Final = "TXLAKE_QUEUE_OFFSET"
LAKE_ID: Final = "TXLAKE_LAKE_ID"
PUBLISHED_HEADERS: Final = (
    QUEUE_OFFSET,
    PLACE,
    REAL_TOPIC,
    LAKE_ID,
    UNIQ_KEY,
    PGROUP,
    KEYS,
    TAGS,
)
# The protocol's own names: a header with one of these is never a property of the user's.
RESERVED_HEADERS: Final = frozenset((*HALF_HEADERS, *OP_HEADERS, *ADMIN_HEADERS, *CHECK_HEADERS))
# Of these, the names that no column of a message holds: a message with one keeps its headers raw.
FOREIGN_HEADERS: Final = RESERVED_HEADERS.difference(HALF_HEADERS)

# Decisions, with RocketMQ's MessageSysFlag numbers.
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
UNKNOWN: Final = "UNKNOWN"
DECISION_CODES: Final = {COMMIT: "8", ROLLBACK: "12", UNKNOWN: "0"}
DECISIONS: Final = {code: name for name, code in DECISION_CODES.items()}

# Operator commands (TXLAKE_ADMIN).
RESUME: Final = "RESUME"
RESEND: Final = "RESEND"
CANCEL: Final = "CANCEL"
CREATE_TOPIC: Final = "CREATE_TOPIC"
ALTER_TOPIC: Final = "ALTER_TOPIC"
ACCEPT_LOSS: Final = "ACCEPT_LOSS"
MAINTAIN: Final = "MAINTAIN"
PING: Final = "PING"
COMMANDS: Final = (
    RESUME,
    RESEND,
    CANCEL,
    CREATE_TOPIC,
    ALTER_TOPIC,
    ACCEPT_LOSS,
    MAINTAIN,
    PING,
)

# What ALTER_TOPIC can set of a topic, under Kafka's names; without a limit (`forever`) it is -1.
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
FOREVER: Final = -1
SESSION_TIMEOUT_MS: Final = 30_000  # of a consumer that does not say its own

# The texts that can be read. The patterns are ASCII; Spark SQL uses them too, as Java regex.
GROUP_PATTERN: Final = "[A-Za-z0-9._-]{1,127}"
TRANSACTION_ID_PATTERN: Final = "[A-Za-z0-9_-]{1,128}"
TOPIC_PATTERN: Final = "[A-Za-z0-9._-]{1,127}"
CHECK_TOPIC_PREFIX_PATTERN: Final = "[A-Za-z0-9._-]{1,100}"
OFFSETS_PATTERN: Final = "[0-9]{1,18}(,[0-9]{1,18})*,?"
NUMBER_PATTERN: Final = "[0-9]{1,18}"
SPAN_PATTERN: Final = "[0-9]{1,15}"
SMALL_NUMBER_PATTERN: Final = "[0-9]{1,9}"

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELIVER_AT_MAX_MS: Final = 2_592_000_000
MESSAGE_BYTES_MAX: Final = 1_048_576
# What Kafka adds to a record: its key, the lengths of its headers, the batch around it. For the
# SDK's headers it adds a third of this at most.
FRAMING_BYTES_MAX: Final = 65_536
_TOPIC_BYTES_MAX = 1_048_588  # Kafka's default of max.message.bytes: no topic of ours takes less
# The largest limit allowed: librdkafka's largest message.max.bytes without what Kafka adds.
MESSAGE_BYTES_LARGEST: Final = 1_000_000_000 - FRAMING_BYTES_MAX
# The most bytes that librdkafka takes at once, and that it unpacks zstd to: its largest. By default
# it gives up a batch of 65 MB, which can be 3 KB in Kafka, and reads nothing behind it.
RECEIVED_BYTES_MAX: Final = 2_147_483_647
MESSAGES_MAX: Final = 1000
PROPERTIES_BYTES_MAX: Final = 32_767  # RocketMQ stores the length of the properties in 16 bits

# As many queues as a real topic can have.
QUEUE_COUNT_MAX: Final = 10_000
# The last instant that any column holds, in ms: 2262-04-11T00:00:00Z. Readers that count ns end on
# that day (pandas); the rest of it leaves room for every time zone.
INSTANT_MS_MAX: Final = 9_223_286_400_000

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def matches(pattern: str, text: object) -> bool:
    """Returns whether a value is text, and all of it matches one of this module's patterns."""
    return isinstance(text, str) and re.fullmatch(pattern, text, flags=re.ASCII) is not None


@dataclass(frozen=True)
class RecordTarget:
    """A half or a schedule record: `half:<queue>-<offset>`, `schedule:<queue>-<offset>`."""

    kind: str
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.queue_id}-{self.queue_offset}"


@dataclass(frozen=True)
class UndeliverableTarget:
    """A message of TRANS_UNDELIVERABLE_TOPIC: `undeliverable:<offset>`."""

    queue_offset: int

    def __str__(self) -> str:
        return f"undeliverable:{self.queue_offset}"


@dataclass(frozen=True)
class TopicTarget:
    """A topic, and how many queues it is to have: `topic:<name>:<queue count>`."""

    topic: str
    queue_count: int

    def __str__(self) -> str:
        return f"topic:{self.topic}:{self.queue_count}"


@dataclass(frozen=True)
class ConfigTarget:
    """How long a topic keeps its messages: `config:<topic>:<name>=<value>`; -1 is for ever."""

    topic: str
    name: str
    value: int

    def __str__(self) -> str:
        return f"config:{self.topic}:{self.name}={self.value}"


@dataclass(frozen=True)
class LostTarget:
    """Offsets that Kafka no longer has, of a partition of the topic of one kind of records.

    `lost:<kind>:<partition>:<first>-<last>`; `kind`: half, op, schedule or admin.
    """

    kind: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"lost:{self.kind}:{self.partition}:{self.first}-{self.last}"


Target: TypeAlias = RecordTarget | UndeliverableTarget | TopicTarget | ConfigTarget | LostTarget
# The targets that each command can have; the other commands have no target.
TARGET_FORMS: Final = {
    RESUME: ("half:<queue>-<offset>", "undeliverable:<offset>"),
    RESEND: ("half:<queue>-<offset>",),
    CANCEL: ("half:<queue>-<offset>", "schedule:<queue>-<offset>"),
    CREATE_TOPIC: ("topic:<name>:<queue count>",),
    ALTER_TOPIC: ("config:<topic>:retention.ms=<ms>", "config:<topic>:retention.bytes=<bytes>"),
    ACCEPT_LOSS: ("lost:<kind>:<partition>:<first>-<last>",),
}
_TARGET = re.compile(
    rf"(half|schedule):({SMALL_NUMBER_PATTERN})-({NUMBER_PATTERN})"
    rf"|undeliverable:({NUMBER_PATTERN})|topic:({TOPIC_PATTERN}):([0-9]{{1,5}})"
    rf"|config:({TOPIC_PATTERN}):({re.escape(RETENTION_MS)}|{re.escape(RETENTION_BYTES)})=(-1|{NUMBER_PATTERN})"
    rf"|lost:(half|op|schedule|admin):({SMALL_NUMBER_PATTERN}):({NUMBER_PATTERN})-({NUMBER_PATTERN})"
)


def read_target(text: str | None) -> Target | None:
    """Returns the target that a TARGET names, for any command; None if it cannot be read."""
    match = _TARGET.fullmatch(text or "")
    if match is None:
        return None

    kind, queue_id, queue_offset, undeliverable_offset, topic, queue_count, *more = match.groups()
    altered, name, value, lost, partition, first, last = more

    if kind is not None:
        return RecordTarget(kind, int(queue_id), int(queue_offset))
    if undeliverable_offset is not None:
        return UndeliverableTarget(int(undeliverable_offset))
    if topic is not None:
        return TopicTarget(topic, int(queue_count))
    if altered is not None:
        return ConfigTarget(altered, name, int(value))
    if int(first) > int(last):
        return None
    return LostTarget(lost, int(partition), int(first), int(last))


def command_target(command: str, text: str | None) -> Target | None:
    """Returns the target of a command; None if the command cannot have such a target."""
    target = read_target(text)
    kinds = {form.partition(":")[0] for form in TARGET_FORMS.get(command, ())}
    return target if str(target).partition(":")[0] in kinds else None


def floor_id(queue_id: int) -> str:
    """Returns the transaction identifier by which a topic's table says where a queue begins."""
    return f"txlake-floor/{queue_id}"


# The transaction identifier by which a topic's table says up to which epoch messages are deleted.
DELETED_EPOCH_ID: Final = "txlake-floor/epoch"


def deleted_id(lake_id: str) -> str:
    """Returns the transaction identifier by which a table says how many rows were deleted."""
    return f"txlake-deleted/{lake_id}"


def is_own_topic(name: str, own_topics: Iterable[str], check_topic_prefix: str) -> bool:
    """Returns whether a real topic's name is that of one of the project's own topics."""
    return name in set(own_topics) or name.startswith(check_topic_prefix)


def is_property(name: str) -> bool:
    """Returns whether a header of this name is a property of the user's."""
    return name not in RESERVED_HEADERS


def record_bytes(body: bytes | None, headers: Iterable[tuple[str, bytes]]) -> int:
    """Returns the bytes of body, header names and values, which message_bytes_max limits."""
    return len(body or b"") + sum(len(name.encode()) + len(value) for name, value in headers)


def batch_bytes_max(message_bytes_max: int) -> int:
    """Returns the largest batch that topics and clients have to allow.

    A record at the limit goes out in a batch of its own, with Kafka's framing around it.
    """
    return max(message_bytes_max + FRAMING_BYTES_MAX, _TOPIC_BYTES_MAX)


def check_topic(producer_group: str, prefix: str = CHECK_TOPIC_PREFIX) -> str:
    """Returns a producer group's check topic; its Kafka consumer group has the same name."""
    return prefix + producer_group


def check_topic_config(message_bytes_max: int) -> dict[str, str]:
    """Returns the configs of a check topic, so that Kafka's own defaults do not count.

    It takes each check whole, as the job has sent it: uncompressed, for clients that read no codec.
    """
    return {
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(batch_bytes_max(message_bytes_max)),
        "cleanup.policy": "delete",  # checks have no key, and a compacted topic takes none such
        "compression.type": "producer",
    }


def colliding_topic(topic: str, existing: Iterable[str]) -> str | None:
    """Returns the topic beside which Kafka takes none of this name: to it '.' and '_' are one.

    Output: None if there is no such topic; `topic` itself does not count.
    """
    name = _as_kafka_compares(topic)

    for other in existing:
        if other != topic and _as_kafka_compares(other) == name:
            return other
    return None


def _as_kafka_compares(topic: str) -> str:
    return topic.replace(".", "_")


def topics_error(topics: Sequence[str], check_topic_prefix: str) -> str:
    """Returns in a sentence why our topics cannot have these names; empty if they can.

    Input: the names of the half, op, schedule and admin topic, as far as they are known.
    """
    prefix = _as_kafka_compares(check_topic_prefix)
    kafkas = next((name for name in _KAFKAS_OWN if _as_kafka_compares(name).startswith(prefix)), "")
    if kafkas:
        return (
            f"check_topic_prefix = {check_topic_prefix!r}: the check topic of a group could be "
            f"Kafka's own topic {kafkas!r}"
        )

    for name in topics:
        if name in (*NO_TOPICS, *_KAFKAS_OWN) or colliding_topic(name, _KAFKAS_OWN):
            return f"{name!r}: Kafka allows no topic of that name"

        if name.startswith(check_topic_prefix):
            return (
                f"{name!r} begins with check_topic_prefix = {check_topic_prefix!r}: it could be "
                "the check topic of a group"
            )
        if _as_kafka_compares(name).startswith(prefix):
            return (
                f"{name!r} differs from check_topic_prefix = {check_topic_prefix!r} by '.' and "
                "'_' alone: Kafka counts them as one, and it could collide with the check topic "
                "of a group"
            )

        colliding = colliding_topic(name, topics)
        if colliding is not None:
            return (
                f"{name!r} and {colliding!r} differ by '.' and '_' alone: Kafka counts them as "
                "one, and takes no second topic of that name"
            )
        if [*topics, *SYSTEM_REAL_TOPICS].count(name) > 1:
            return f"{name!r} names two topics; each needs a name of its own"

    return ""


def check_id(queue_id: int, queue_offset: int, arm: int, check_times: int) -> str:
    """Returns the id of a check: the same for the same question, however often it is sent."""
    return f"{queue_id}-{queue_offset}-{arm}-{check_times}"


def operation_body(half_offsets: Iterable[int]) -> bytes:
    """Returns the offsets that an operation names, each with a comma after it (RIP-50)."""
    return "".join(f"{offset}," for offset in half_offsets).encode()


def operation_headers(
    producer_group: str,
    decision: str,
    transaction_ids: Sequence[str],
    extra: Iterable[tuple[str, str]] = (),
) -> Headers:
    """Returns an operation's headers in protocol order; `extra` follows UNIQ_KEY.

    Errors: KeyError for a decision other than COMMIT, ROLLBACK, UNKNOWN.
    """
    return [
        (TAGS, OP_TAG.encode()),
        (PGROUP, producer_group.encode()),
        (TRAN_TYPE, DECISION_CODES[decision].encode()),
        (UNIQ_KEY, ",".join(transaction_ids).encode()),
        *((name, value.encode()) for name, value in extra),
    ]


def delay_levels_ms(levels: str = DELAY_LEVELS) -> tuple[int, ...]:
    """Returns delay levels (`1s 5s 1m 2h 1d`) in ms, level 1 first.

    Errors: ValueError naming the level that cannot be read.
    """
    spans = []
    for text in levels.split():
        if not re.fullmatch(r"[1-9][0-9]{0,8}[smhd]", text, flags=re.ASCII):
            raise ValueError(f"delay level {text!r}: a number and one of the units s, m, h, d")
        spans.append(int(text[:-1]) * _UNITS_MS[text[-1]])

    if not spans:
        raise ValueError("delay levels: at least one is needed")
    return tuple(spans)

"""The settings of a job: a class for each section, each value with its default and what is allowed.

The sections and keys are an interface.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from checker.frames import Parameters
from pipelines.settings.allowed import (
    LONG_MAX,
    SPAN_MS_MAX,
    are_servers,
    name,
    not_empty,
    one_of,
    span_ms,
    whole,
    whole_or_forever,
)
from pipelines.settings.bodies import BodySettings
from pipelines.settings.publish import PublisherSettings
from pipelines.settings.security import SecuritySettings
from storage.files.location import LakeLocation, lake_location
from storage.maintenance.limits import MaintenanceLimits, Retention
from storage.wire.record_kinds import ADMIN, HALF, OP, SCHEDULE, WireLimits
from txlake import protocol as p
from txlake._paths import require_meant

_DAY_MS = 86_400_000
# A hundred years: how far ahead a message can be due. From any present the instant fits a column,
# which ends in 2262.
_DELAY_DAYS_MAX = 36_500


@dataclass(frozen=True)
class LakeSettings:
    """The lake's location, and how long it keeps ended transactions.

    `store`: delta-rs's storage options, for a lake on an object store.
    """

    path: str = field(metadata=not_empty())
    retention_ms: int = field(default=604_800_000, metadata=span_ms(1))
    pending_snapshot_epochs: int = field(default=100, metadata=whole(1, 500))
    store: dict[str, str] = field(default_factory=dict, repr=False)

    def location(self) -> LakeLocation:
        """Returns the lake's location. Errors: NotALakeError."""
        return lake_location(self.path, self.store)


@dataclass(frozen=True)
class KafkaSettings:
    """The address of Kafka, and the names of our topics."""

    bootstrap_servers: str = field(
        metadata={"is_allowed": are_servers, "allowed": "host:port, comma separated,"}
    )
    half_topic: str = field(default=p.HALF_TOPIC, metadata=name(p.TOPIC_PATTERN))
    op_topic: str = field(default=p.OP_TOPIC, metadata=name(p.TOPIC_PATTERN))
    schedule_topic: str = field(default=p.SCHEDULE_TOPIC, metadata=name(p.TOPIC_PATTERN))
    check_topic_prefix: str = field(
        default=p.CHECK_TOPIC_PREFIX, metadata=name(p.CHECK_TOPIC_PREFIX_PATTERN)
    )
    admin_topic: str = field(default=p.ADMIN_TOPIC, metadata=name(p.TOPIC_PATTERN))
    queues: int = field(default=4, metadata=whole(1, 10_000))
    client: dict[str, str] = field(default_factory=dict, repr=False)

    def topics(self) -> dict[str, str]:
        """Returns the topics that the job reads, by kind of record."""
        return {
            HALF: self.half_topic,
            OP: self.op_topic,
            SCHEDULE: self.schedule_topic,
            ADMIN: self.admin_topic,
        }


@dataclass(frozen=True)
class TransactionSettings:
    """The rules' parameters (RocketMQ's transactionTimeOut, -CheckInterval, -CheckMax ...)."""

    transaction_timeout_ms: int = field(default=6_000, metadata=whole(1, _DAY_MS))
    check_interval_ms: int = field(default=30_000, metadata=whole(1, _DAY_MS))
    check_max: int = field(default=15, metadata=whole(0, 1_000))
    half_retention_ms: int = field(default=259_200_000, metadata=span_ms(1))
    check_rate_max: int = field(default=50_000, metadata=whole(1))
    ask_timeout_ms: int = field(default=5_000, metadata=whole(1, _DAY_MS))
    message_bytes_max: int = field(
        default=p.MESSAGE_BYTES_MAX, metadata=whole(1, p.MESSAGE_BYTES_LARGEST)
    )
    messages_max: int = field(default=p.MESSAGES_MAX, metadata=whole(1, 1_000_000))
    operation_namings_max: int = field(default=10_000, metadata=whole(1, 1_000_000))
    late_end_policy: str = field(default="apply", metadata=one_of("apply", "reject"))
    orphan_operation_ttl_ms: int = field(default=3_600_000, metadata=span_ms(1_000))
    reject_after_immunity: bool = True


@dataclass(frozen=True)
class TopicSettings:
    """How real topics are created, and how long they keep messages."""

    auto_create_topics: bool = True
    default_queue_count: int = field(default=4, metadata=whole(1, 10_000))
    topics_max: int = field(default=1_000, metadata=whole(1, 1_000_000))
    group_topics_max: int = field(default=32, metadata=whole(1, 1_000_000))
    retention_ms: int = field(default=604_800_000, metadata=whole_or_forever(SPAN_MS_MAX))
    retention_bytes: int = field(default=p.FOREVER, metadata=whole_or_forever(LONG_MAX))


def _are_levels(text: str) -> bool:
    try:
        levels_ms = p.delay_levels_ms(text)
    except ValueError:
        return False
    return len(levels_ms) <= 1_000 and max(levels_ms) <= _DELAY_DAYS_MAX * _DAY_MS


@dataclass(frozen=True)
class DelaySettings:
    """Delay levels, and the longest delay."""

    levels: str = field(
        default=p.DELAY_LEVELS,
        metadata={
            "is_allowed": _are_levels,
            "allowed": f"spans like '1s 5m 2h 1d' up to {_DELAY_DAYS_MAX}d, level 1 first",
        },
    )
    deliver_at_max_ms: int = field(
        default=p.DELIVER_AT_MAX_MS, metadata=whole(1, _DELAY_DAYS_MAX * _DAY_MS)
    )


def _can_be_folder(text: str) -> bool:
    try:
        require_meant(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class StreamSettings:
    """The pace of the stream."""

    trigger_interval_ms: int = field(default=1_000, metadata=whole(1, _DAY_MS))
    cores_percent: int = field(default=80, metadata=whole(1, 100_000))
    max_offsets_per_trigger: int = field(default=200_000, metadata=whole(1))
    deliveries: str = field(default="auto", metadata=one_of("auto", "driver", "executors"))
    checkpoint: str = field(
        default="",
        metadata={
            "is_allowed": _can_be_folder,
            "allowed": "a folder without '~' or a scheme",
        },
    )


@dataclass(frozen=True)
class MaintenanceSettings:
    """How the lake's tables are maintained while the stream runs."""

    merge_files: int = field(default=16, metadata=whole(2, 1_000))
    file_bytes_max: int = field(default=33_554_432, metadata=whole(1_048_576, 2**30))
    slice_ms: int = field(default=250, metadata=whole(0, _DAY_MS))
    checkpoint_commits: int = field(default=32, metadata=whole(1, 10_000))
    log_retention_ms: int = field(default=600_000, metadata=span_ms(60_000))
    file_retention_ms: int = field(default=3_600_000, metadata=span_ms(60_000))
    stream_retention_ms: int = field(default=604_800_000, metadata=span_ms(0))


@dataclass(frozen=True)
class MetricsSettings:
    """The address of the job's metrics and health probes. Port 0: none."""

    host: str = field(default="127.0.0.1", metadata=not_empty())
    port: int = field(default=0, metadata=whole(0, 65_535))
    ready_lag_max_ms: int = field(default=300_000, metadata=span_ms(1))


@dataclass(frozen=True)
class HealthSettings:
    """The limits from which on something is a problem (`pipelines/health/problems.py`)."""

    consumer_lag_ms: int = field(default=300_000, metadata=span_ms(1))
    consumer_gone_ms: int = field(default=60_000, metadata=span_ms(1))
    publisher_lag_ms: int = field(default=300_000, metadata=span_ms(1))
    publisher_gone_ms: int = field(default=60_000, metadata=span_ms(1))


@dataclass(frozen=True)
class LogSettings:
    """The job's log: its format, and the limits of its lines."""

    format: str = field(default="text", metadata=one_of("text", "json"))
    level: str = field(default="info", metadata=one_of("debug", "info", "warning"))
    lines_max: int = field(default=20, metadata=whole(1, 100_000))
    slow_step_ms: int = field(default=10_000, metadata=span_ms(1))


@dataclass(frozen=True)
class Settings:
    """All settings of one job."""

    lake: LakeSettings
    kafka: KafkaSettings
    transaction: TransactionSettings = field(default_factory=TransactionSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    delay: DelaySettings = field(default_factory=DelaySettings)
    stream: StreamSettings = field(default_factory=StreamSettings)
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    log: LogSettings = field(default_factory=LogSettings)
    publish: dict[str, PublisherSettings] = field(default_factory=dict)
    bodies: dict[str, BodySettings] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict, repr=False)

    def parameters(self) -> Parameters:
        """Returns the parameters of the decision; they are recorded in every epoch's plan.

        Some are no settings: a replay of an older epoch finds another value in its plan.
        """
        transaction = self.transaction

        return Parameters(
            transaction_timeout_ms=transaction.transaction_timeout_ms,
            check_interval_ms=transaction.check_interval_ms,
            check_max=transaction.check_max,
            half_retention_ms=transaction.half_retention_ms,
            check_rate_max=transaction.check_rate_max,
            late_end_policy=transaction.late_end_policy,
            orphan_operation_ttl_ms=transaction.orphan_operation_ttl_ms,
            require_transaction_id=self.security.require_transaction_id,
            reject_after_immunity=transaction.reject_after_immunity,
            auto_create_topics=self.topics.auto_create_topics,
            default_queue_count=self.topics.default_queue_count,
            topics_max=self.topics.topics_max,
            group_topics_max=self.topics.group_topics_max,
            delay_levels_ms=p.delay_levels_ms(self.delay.levels),
            deliver_at_max_ms=self.delay.deliver_at_max_ms,
            own_topics=tuple(sorted(self.wire_limits().own_topics())),
            check_topic_prefix=self.kafka.check_topic_prefix,
            # No settings, but rules that older versions did not have.
            deliver_at_goes_first=True,
            due_at_max=p.INSTANT_MS_MAX,
            ages_from_known_at=True,
        )

    def wire_limits(self) -> WireLimits:
        """Returns the limits of decoding."""
        return WireLimits(
            topics=self.kafka.topics(),
            check_topic_prefix=self.kafka.check_topic_prefix,
            message_bytes_max=self.transaction.message_bytes_max,
            messages_max=self.transaction.messages_max,
            operation_namings_max=self.transaction.operation_namings_max,
        )

    def maintenance_limits(self) -> MaintenanceLimits:
        """Returns the limits from which on a table needs a step of maintenance."""
        maintenance = self.maintenance

        return MaintenanceLimits(
            merge_files=maintenance.merge_files,
            file_bytes_max=maintenance.file_bytes_max,
            checkpoint_commits=maintenance.checkpoint_commits,
            log_retention_ms=maintenance.log_retention_ms,
            file_retention_ms=maintenance.file_retention_ms,
            stream_retention_ms=maintenance.stream_retention_ms,
            retention_ms=self.lake.retention_ms,
            topics=Retention(self.topics.retention_ms, self.topics.retention_bytes),
        )

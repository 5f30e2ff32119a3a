"""The job's settings: TOML in, frozen values out, every mistake named.

    SettingsError    file, key, value and what is allowed, in one sentence

The sections and keys are an interface. Secrets come by `<key>_env` or `<key>_file` in
[kafka.client] and are masked in every print.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from checker.frames import Parameters
from storage.kafka_rows import ADMIN, HALF, OP, SCHEDULE, WireLimits
from storage.maintenance import MaintenanceLimits
from txlake import protocol as p

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LONG_MAX = 2**63 - 1
_DAY_MS = 86_400_000
Section = TypeVar("Section")


class SettingsError(Exception):
    """A setting that cannot be used."""


def _whole(low: int, high: int = _LONG_MAX) -> dict[str, Any]:
    limit = f"{low} .. {high}" if high < _LONG_MAX else f">= {low}"
    return {"is_allowed": lambda v: low <= v <= high, "allowed": f"a whole number {limit}"}


def _name(pattern: str) -> dict[str, Any]:
    return {"is_allowed": lambda v: p.matches(pattern, v), "allowed": f"text like {pattern}"}


def _one_of(*values: str) -> dict[str, Any]:
    return {"is_allowed": lambda v: v in values, "allowed": " or ".join(map(repr, values))}


def _not_empty() -> dict[str, Any]:
    return {"is_allowed": bool, "allowed": "text that is not empty"}


@dataclass(frozen=True)
class LakeSettings:
    """Where the lake is and how long it keeps what has ended."""

    path: str = field(metadata=_not_empty())
    retention_ms: int = field(default=604_800_000, metadata=_whole(1))
    pending_snapshot_epochs: int = field(default=100, metadata=_whole(1, 500))


@dataclass(frozen=True)
class KafkaSettings:
    """Where Kafka is, and the names of our topics there."""

    bootstrap_servers: str = field(metadata=_not_empty())
    half_topic: str = field(default=p.HALF_TOPIC, metadata=_name(p.TOPIC_PATTERN))
    op_topic: str = field(default=p.OP_TOPIC, metadata=_name(p.TOPIC_PATTERN))
    schedule_topic: str = field(default=p.SCHEDULE_TOPIC, metadata=_name(p.TOPIC_PATTERN))
    check_topic_prefix: str = field(
        default=p.CHECK_TOPIC_PREFIX, metadata=_name("[A-Za-z0-9._-]{1,100}")
    )
    admin_topic: str = field(default=p.ADMIN_TOPIC, metadata=_name(p.TOPIC_PATTERN))
    queues: int = field(default=4, metadata=_whole(1, 10_000))
    client: dict[str, str] = field(default_factory=dict, repr=False)

    def topics(self) -> dict[str, str]:
        """Return the topics the job reads, by kind of record."""
        return {
            HALF: self.half_topic,
            OP: self.op_topic,
            SCHEDULE: self.schedule_topic,
            ADMIN: self.admin_topic,
        }


@dataclass(frozen=True)
class TransactionSettings:
    """The rules' parameters (RocketMQ's transactionTimeOut, -CheckInterval, -CheckMax ...)."""

    transaction_timeout_ms: int = field(default=6_000, metadata=_whole(1, _DAY_MS))
    check_interval_ms: int = field(default=30_000, metadata=_whole(1, _DAY_MS))
    check_max: int = field(default=15, metadata=_whole(0, 1_000))
    half_retention_ms: int = field(default=259_200_000, metadata=_whole(1))
    check_rate_max: int = field(default=50_000, metadata=_whole(1))
    ask_timeout_ms: int = field(default=5_000, metadata=_whole(1, _DAY_MS))
    message_bytes_max: int = field(
        default=p.MESSAGE_BYTES_MAX, metadata=_whole(1, p.MESSAGE_BYTES_LARGEST)
    )
    messages_max: int = field(default=p.MESSAGES_MAX, metadata=_whole(1, 1_000_000))
    late_end_policy: str = field(default="apply", metadata=_one_of("apply", "reject"))
    orphan_operation_ttl_ms: int = field(default=3_600_000, metadata=_whole(1_000))


@dataclass(frozen=True)
class TopicSettings:
    """How real topics come to be."""

    auto_create_topics: bool = True
    default_queue_count: int = field(default=4, metadata=_whole(1, 10_000))
    topics_max: int = field(default=1_000, metadata=_whole(1, 1_000_000))


def _are_levels(text: str) -> bool:
    try:
        return 1 <= len(p.delay_levels_ms(text)) <= 1_000
    except ValueError:
        return False


@dataclass(frozen=True)
class DelaySettings:
    """Delay levels, and how far ahead a message may be put."""

    levels: str = field(
        default=p.DELAY_LEVELS,
        metadata={"is_allowed": _are_levels, "allowed": "spans like '1s 5m 2h 1d', level 1 first"},
    )
    deliver_at_max_ms: int = field(default=p.DELIVER_AT_MAX_MS, metadata=_whole(1, 10**15))


@dataclass(frozen=True)
class StreamSettings:
    """The pace of the stream."""

    trigger_interval_ms: int = field(default=1_000, metadata=_whole(1, _DAY_MS))
    max_offsets_per_trigger: int = field(default=200_000, metadata=_whole(1))
    deliveries: str = field(default="auto", metadata=_one_of("auto", "driver", "executors"))
    checkpoint: str = ""


@dataclass(frozen=True)
class MaintenanceSettings:
    """How the lake's tables are kept in shape while the stream runs."""

    merge_files: int = field(default=16, metadata=_whole(2, 1_000))
    file_bytes_max: int = field(default=33_554_432, metadata=_whole(1_048_576, 2**30))
    slice_ms: int = field(default=250, metadata=_whole(0, _DAY_MS))
    checkpoint_commits: int = field(default=32, metadata=_whole(1, 10_000))
    log_retention_ms: int = field(default=600_000, metadata=_whole(60_000))
    file_retention_ms: int = field(default=3_600_000, metadata=_whole(60_000))
    stream_retention_ms: int = field(default=604_800_000, metadata=_whole(0))


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
    spark: dict[str, str] = field(default_factory=dict)

    def parameters(self) -> Parameters:
        """Return what the decision depends on; recorded in every epoch's plan."""
        t = self.transaction
        return Parameters(
            transaction_timeout_ms=t.transaction_timeout_ms,
            check_interval_ms=t.check_interval_ms,
            check_max=t.check_max,
            half_retention_ms=t.half_retention_ms,
            check_rate_max=t.check_rate_max,
            late_end_policy=t.late_end_policy,
            orphan_operation_ttl_ms=t.orphan_operation_ttl_ms,
            auto_create_topics=self.topics.auto_create_topics,
            default_queue_count=self.topics.default_queue_count,
            topics_max=self.topics.topics_max,
            delay_levels_ms=p.delay_levels_ms(self.delay.levels),
            deliver_at_max_ms=self.delay.deliver_at_max_ms,
            own_topics=tuple(sorted(self.wire_limits().own_topics())),
            check_topic_prefix=self.kafka.check_topic_prefix,
        )

    def wire_limits(self) -> WireLimits:
        """Return what decoding depends on."""
        return WireLimits(
            topics=self.kafka.topics(),
            check_topic_prefix=self.kafka.check_topic_prefix,
            message_bytes_max=self.transaction.message_bytes_max,
            messages_max=self.transaction.messages_max,
        )

    def maintenance_limits(self) -> MaintenanceLimits:
        """Return what decides when a table needs what."""
        m = self.maintenance
        return MaintenanceLimits(
            m.merge_files,
            m.file_bytes_max,
            m.checkpoint_commits,
            m.log_retention_ms,
            m.file_retention_ms,
            m.stream_retention_ms,
        )


def load(path: str | Path) -> Settings:
    """Read a settings file.

    Errors: SettingsError with file, key, value and what is allowed.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error
    return parse(values, str(path))


def parse(values: dict[str, Any], source: str) -> Settings:
    """Read settings from TOML's values; `source` names them in errors."""
    known = {item.name for item in dataclasses.fields(Settings)}
    for name, section in values.items():
        if name not in known:
            raise SettingsError(
                f"{source}: [{name}] is unknown; the sections are {', '.join(sorted(known))}"
            )
        if not isinstance(section, dict):
            raise SettingsError(f"{source}: {name} = {section!r}: [{name}] is a section")
    kafka = dict(values.get("kafka", {}))
    client = _client(kafka.pop("client", {}), source)
    settings = Settings(
        lake=_section(LakeSettings, "lake", values.get("lake", {}), source),
        kafka=dataclasses.replace(_section(KafkaSettings, "kafka", kafka, source), client=client),
        transaction=_section(
            TransactionSettings, "transaction", values.get("transaction", {}), source
        ),
        topics=_section(TopicSettings, "topics", values.get("topics", {}), source),
        delay=_section(DelaySettings, "delay", values.get("delay", {}), source),
        stream=_section(StreamSettings, "stream", values.get("stream", {}), source),
        maintenance=_section(
            MaintenanceSettings, "maintenance", values.get("maintenance", {}), source
        ),
        spark=_spark(values.get("spark", {}), source),
    )
    _check_together(settings, source)
    return settings


def _section(
    make: Callable[..., Section], name: str, values: dict[str, Any], source: str
) -> Section:
    fields = {item.name: item for item in dataclasses.fields(make)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in fields or key == "client":
            allowed = ", ".join(sorted(set(fields) - {"client"}))
            raise SettingsError(f"{source}: [{name}] {key} is unknown; the keys are {allowed}")
        _check(fields[key], value, f"{source}: [{name}] {key} = {value!r}")
    for key, item in fields.items():
        is_required = (
            item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        )
        if is_required and key not in values:
            raise SettingsError(
                f"{source}: [{name}] {key} is missing; {item.metadata['allowed']} is needed"
            )
    return make(**values)


def _check(item: dataclasses.Field[Any], value: Any, place: str) -> None:
    kinds = {"str": (str, "text"), "int": (int, "a whole number"), "bool": (bool, "true or false")}
    kind, words = kinds[str(item.type)]
    allowed = item.metadata.get("allowed", words)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SettingsError(f"{place}: {allowed} is allowed")
    if "is_allowed" in item.metadata and not item.metadata["is_allowed"](value):
        raise SettingsError(f"{place}: {allowed} is allowed")


def _check_together(settings: Settings, source: str) -> None:
    t = settings.transaction
    if t.half_retention_ms < t.transaction_timeout_ms:
        raise SettingsError(
            f"{source}: [transaction] half_retention_ms = {t.half_retention_ms} is below "
            f"transaction_timeout_ms = {t.transaction_timeout_ms}: a half would be given up before "
            "it may be checked; at least that is allowed"
        )
    if settings.lake.retention_ms < t.half_retention_ms:
        raise SettingsError(
            f"{source}: [lake] retention_ms = {settings.lake.retention_ms} is below [transaction] "
            f"half_retention_ms = {t.half_retention_ms}: a half would be deleted before it ends; "
            "at least that is allowed"
        )
    m = settings.maintenance
    if m.file_retention_ms < m.log_retention_ms:
        raise SettingsError(
            f"{source}: [maintenance] file_retention_ms = {m.file_retention_ms} is below "
            f"log_retention_ms = {m.log_retention_ms}: versions that the log still has would lack "
            "files; at least that is allowed"
        )
    names = [*settings.kafka.topics().values(), *p.SYSTEM_REAL_TOPICS]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(
            f"{source}: [kafka] {twice[0]!r} names two topics; each needs a name of its own"
        )


def _client(values: dict[str, Any], source: str) -> dict[str, str]:
    """Read Kafka client settings; `<key>_env` and `<key>_file` say where a secret is."""
    client: dict[str, str] = {}
    for key, value in values.items():
        place = f"{source}: [kafka.client] {key}"
        if not isinstance(value, str | int | float | bool):
            raise SettingsError(f"{place}: text, a number, true or false is allowed")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if key.endswith("_env"):
            if text not in os.environ:
                raise SettingsError(f"{place} = {text!r}: no such environment variable is set")
            client[key[:-4]] = os.environ[text]
        elif key.endswith("_file"):
            try:
                client[key[:-5]] = Path(text).read_text(encoding="utf-8").rstrip("\n")
            except OSError as error:
                raise SettingsError(f"{place} = {text!r}: {error.strerror}") from error
        elif key.endswith((".password", ".secret")) or key == "sasl.jaas.config":
            raise SettingsError(
                f"{place}: a secret does not stand in a settings file; use {key}_env (a variable) "
                f"or {key}_file (a file)"
            )
        elif key in ("bootstrap.servers", "enable.idempotence", "acks"):
            raise SettingsError(f"{place} is set by txlake; connection settings are allowed")
        else:
            client[key] = text
    return client


def _spark(values: dict[str, Any], source: str) -> dict[str, str]:
    spark: dict[str, str] = {}

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            spark[prefix] = str(value).lower() if isinstance(value, bool) else str(value)

    flatten("", values)
    for key in spark:
        if not key.startswith("spark."):
            raise SettingsError(
                f"{source}: [spark] {key}: settings that begin with spark. are allowed"
            )
    return spark

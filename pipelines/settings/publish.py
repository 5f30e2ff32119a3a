"""[publish.NAME]: a publisher, its topics and its destination."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipelines.amounts import parse_instant
from pipelines.settings.allowed import are_servers, one_of, whole
from pipelines.settings.errors import SettingsError, section_of
from pipelines.settings.library_options import CLIENT, library_options
from pipelines.settings.nearest import did_you_mean
from txlake.protocol import SYSTEM_REAL_TOPICS, TOPIC_PATTERN, matches

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
TOPIC_PLACE: Final = "{topic}"
_NAME_PATTERN: Final = "[A-Za-z0-9_-]{1,60}"  # a part of Kafka's transactional id
_INT_MAX = 2**31 - 1


def _is_begin(value: Any) -> bool:
    if not isinstance(value, str):  # a date of TOML, without quotes
        return False
    return value in (EARLIEST, LATEST) or begin_at(value) is not None


def begin_at(value: str) -> dt.datetime | None:
    """Returns the instant in a text, or None if it has none, or one without a time zone."""
    try:
        at = parse_instant(value)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _are_servers_or_none(value: Any) -> bool:
    return value == "" or (isinstance(value, str) and are_servers(value))


def _are_topics(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(name, str) and matches(TOPIC_PATTERN, name) for name in value
    )


def _is_destination(value: Any) -> bool:
    return (
        isinstance(value, str)
        and value.count(TOPIC_PLACE) == 1
        and matches(TOPIC_PATTERN, value.replace(TOPIC_PLACE, "t"))
    )


@dataclass(frozen=True)
class PublisherSettings:
    """One publisher. Units: ms, bytes.

    `topics`: empty for all of the users' topics; `bootstrap_servers`: empty for the job's own
    Kafka; `record_bytes_max`: 0 for the job's own limit.
    """

    name: str
    topics: tuple[str, ...] = field(
        default=(), metadata={"is_allowed": _are_topics, "allowed": "a list of topics' names"}
    )
    destination: str = field(
        default=TOPIC_PLACE,
        metadata={
            "is_allowed": _is_destination,
            "allowed": f"the name of a Kafka topic with {TOPIC_PLACE} in it",
        },
    )
    bootstrap_servers: str = field(
        default="",
        metadata={"is_allowed": _are_servers_or_none, "allowed": "host:port, or ''"},
    )
    begin: str = field(
        default=EARLIEST,
        metadata={
            "is_allowed": _is_begin,
            "allowed": "'earliest', 'latest' or an instant like '2026-01-31T08:00:00Z'",
        },
    )
    key: str = field(default="keys", metadata=one_of("keys", "none"))
    null_bodies: str = field(default="plain", metadata=one_of("plain", "tombstones"))
    progress_topic: str = field(
        default="TXLAKE_PUBLISHED",
        metadata={
            "is_allowed": lambda v: isinstance(v, str) and matches(TOPIC_PATTERN, v),
            "allowed": f"text like {TOPIC_PATTERN}",
        },
    )
    record_bytes_max: int = field(default=0, metadata=whole(0, 1_000_000_000))
    transaction_messages_max: int = field(default=20_000, metadata=whole(1, _INT_MAX))
    transaction_bytes_max: int = field(default=67_108_864, metadata=whole(1, _INT_MAX))
    transaction_timeout_ms: int = field(default=60_000, metadata=whole(1_000, 900_000))
    client: dict[str, str] = field(default_factory=dict, repr=False)

    def destination_of(self, topic: str) -> str:
        """Returns the Kafka topic that a real topic is published to."""
        return self.destination.replace(TOPIC_PLACE, topic)


def read_publishers(
    values: Mapping[str, Any], source: str, job_servers: str, job_client: Mapping[str, str]
) -> dict[str, PublisherSettings]:
    """Returns the publishers by name, each with the Kafka that it writes to.

    Input: the job's own Kafka. Errors: SettingsError.
    """
    publishers = {}

    for name, section_values in values.items():
        section = f"{source}: [publish.{name}]"
        if not isinstance(section_values, dict):
            raise SettingsError(
                f"{source}: [publish] {name} = {section_values!r}: a publisher is a section, "
                "[publish.main]"
            )
        if not matches(_NAME_PATTERN, name):
            raise SettingsError(f"{section}: a publisher's name like {_NAME_PATTERN} is allowed")

        publishers[name] = _publisher(name, section_values, section, job_servers, job_client)

    return publishers


def same_destination(first: PublisherSettings, second: PublisherSettings) -> str | None:
    """Returns a Kafka topic that two publishers would both write to, as far as settings say it.

    Where both publish all of the users' topics it is a name with `{topic}` in it. The topics that
    are published only where they are named are not among all.
    """
    if first.bootstrap_servers != second.bootstrap_servers:
        return None

    if first.topics and second.topics:
        of_first = set(map(first.destination_of, first.topics))
        common = sorted(of_first & set(map(second.destination_of, second.topics)))
        return common[0] if common else None

    if first.destination != second.destination:
        return None

    named = first.topics + second.topics
    if not named:
        return first.destination

    common = sorted(set(named) - set(SYSTEM_REAL_TOPICS))
    return first.destination_of(common[0]) if common else None


def _publisher(
    name: str,
    section_values: Mapping[str, Any],
    section: str,
    job_servers: str,
    job_client: Mapping[str, str],
) -> PublisherSettings:
    items = {
        key: item
        for key, item in PublisherSettings.__dataclass_fields__.items()
        if key not in ("name", "client")
    }
    values = dict(section_of(section_values, section))
    client_section = section.replace("]", ".client]")
    client = library_options(values.pop("client", {}), client_section, CLIENT)

    for key, value in values.items():
        if key not in items:
            allowed = ", ".join(sorted([*items, "client"]))
            raise SettingsError(
                f"{section} {key} is unknown; the keys are {allowed}"
                f"{did_you_mean(key, [*items, 'client'])}"
            )
        if not items[key].metadata["is_allowed"](value):
            raise SettingsError(
                f"{section} {key} = {value!r}: {items[key].metadata['allowed']} is allowed"
            )

    values["topics"] = tuple(values.get("topics", ()))
    has_own_kafka = bool(values.get("bootstrap_servers"))
    values["bootstrap_servers"] = values.get("bootstrap_servers") or job_servers

    # The job's own credentials are for its own Kafka, and never sent to another cluster.
    if not client and not has_own_kafka:
        client = dict(job_client)
    return PublisherSettings(name=name, **values, client=client)

"""Reading settings: TOML in, frozen values out, every mistake reported with file and key.

Secrets come by `<key>_env` or `<key>_file` in [kafka.client], [lake.store], [spark], [security] and
[publish.NAME.client], and appear in no print and no error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints

from pipelines.settings.bodies import read_bodies
from pipelines.settings.errors import SettingsError
from pipelines.settings.library_options import CLIENT, STORE, library_options, spark_options
from pipelines.settings.nearest import did_you_mean
from pipelines.settings.publish import read_publishers, same_destination
from pipelines.settings.secrets import secret_name, warn_if_others_can_read
from pipelines.settings.security import read_security
from pipelines.settings.values import Settings, TopicSettings
from txlake.protocol import FOREVER, is_own_topic, topics_error

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SECTIONS: Final[dict[str, Any]] = {
    name: kind
    for name, kind in get_type_hints(Settings).items()
    if is_dataclass(kind) and name != "security"
}

# [topics] has these keys; a section of another name is about a topic.
_TOPIC_KEYS: Final = frozenset(item.name for item in fields(TopicSettings))
# Python cannot write one of some thousand digits as text.
_BITS_MAX: Final = 256
_LIBRARY_OPTIONS = ("client", "store")  # of [kafka], of [lake]


def load(path: str | Path) -> Settings:
    """Returns the settings of a file.

    Errors: SettingsError with file, key, value and what is allowed.
    """
    return parse(read_values(path), str(path))


def read_values(path: str | Path) -> dict[str, Any]:
    """Returns the values of a file, unchecked. Errors: SettingsError."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))  # some editors put a BOM
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error

    for place, number in _whole_numbers(values, ""):
        if number.bit_length() > _BITS_MAX:
            raise SettingsError(f"{path}: {place} is a whole number of more than {_BITS_MAX} bits")
    return values


def _whole_numbers(value: Any, place: str) -> Iterator[tuple[str, int]]:
    """Yields the whole numbers in a value, each with its place as `[kafka] queues`."""
    if isinstance(value, dict):
        for name, inner in value.items():
            is_section = isinstance(inner, dict)
            inner_place = f"{place.removesuffix(']')}.{name}]" if place else f"[{name}]"
            yield from _whole_numbers(inner, inner_place if is_section else f"{place} {name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _whole_numbers(inner, place)
    elif isinstance(value, int):
        yield place.strip(), value


def warn_of_open_secrets(path: str | Path) -> None:
    """Logs a warning for each file of a secret that every user of this machine may read.

    For a process that stays, and for `config validate`: a short command would log it at each call.
    Input: a file that `load` has accepted. Errors: SettingsError.
    """
    for section, name, file in _secret_files(read_values(path), ""):
        with suppress(OSError):  # deleted since it was read
            warn_if_others_can_read(file, f"{path}: [{section}] {name}")


def _secret_files(values: Mapping[str, Any], section: str) -> Iterator[tuple[str, str, str]]:
    """Yields section, key and value of each setting that names the file of a secret."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _secret_files(value, f"{section}.{name}" if section else name)
        elif secret_name(name)[1] == "_file":
            yield section, name, value


def parse(values: dict[str, Any], source: str) -> Settings:
    """Returns the settings in TOML's values; `source` names them in errors."""
    known = sorted(item.name for item in fields(Settings) if item.name != "bodies")
    for name, section in values.items():
        if name not in known:
            raise SettingsError(
                f"{source}: [{name}] is unknown; the sections are {', '.join(known)}"
                f"{did_you_mean(name, known)}"
            )
        if not isinstance(section, dict):
            raise SettingsError(f"{source}: {name} has a value: [{name}] is a section")

    kafka = dict(values.get("kafka", {}))
    lake = dict(values.get("lake", {}))
    client = library_options(kafka.pop("client", {}), f"{source}: [kafka.client]", CLIENT)
    store = library_options(lake.pop("store", {}), f"{source}: [lake.store]", STORE)

    topics = dict(values.get("topics", {}))
    of_topics = {
        name: topics.pop(name)
        for name, value in list(topics.items())
        if isinstance(value, dict) and name not in _TOPIC_KEYS
    }

    own_values = {**values, "kafka": kafka, "lake": lake, "topics": topics}
    sections = {
        name: _section(make, name, own_values.get(name, {}), source)
        for name, make in _SECTIONS.items()
    }
    sections["kafka"] = replace(sections["kafka"], client=client)
    sections["lake"] = replace(sections["lake"], store=store)

    settings = Settings(
        **sections,
        security=read_security(values.get("security", {}), source),
        publish=read_publishers(
            values.get("publish", {}), source, sections["kafka"].bootstrap_servers, client
        ),
        bodies=read_bodies(of_topics, source),
        spark=spark_options(values.get("spark", {}), f"{source}: [spark]"),
    )
    _check_together(settings, source)
    return settings


def _section(make: Callable[..., Any], name: str, values: dict[str, Any], source: str) -> Any:
    items = {item.name: item for item in fields(make) if item.name not in _LIBRARY_OPTIONS}  # type: ignore[arg-type]

    for key, value in values.items():
        if key not in items:
            raise SettingsError(
                f"{source}: [{name}] {key} is unknown; the keys are {', '.join(sorted(items))}"
                f"{did_you_mean(key, items)}"
            )
        _check(items[key], value, f"{source}: [{name}] {key} = {value!r}")

    for key, item in items.items():
        if item.default is MISSING and key not in values:
            raise SettingsError(
                f"{source}: [{name}] {key} is missing; {item.metadata['allowed']} is needed"
            )

    return make(**values)


def _check(item: Field[Any], value: Any, place: str) -> None:
    """Checks a value of a key. Errors: SettingsError."""
    kinds = {"str": (str, "text"), "int": (int, "a whole number"), "bool": (bool, "true or false")}
    kind, words = kinds[str(item.type)]

    is_of_kind = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    is_of_kind = is_of_kind and not (kind is str and "\0" in value)
    if not (is_of_kind and item.metadata.get("is_allowed", lambda _: True)(value)):
        raise SettingsError(f"{place}: {item.metadata.get('allowed', words)} is allowed")


class _Bound(NamedTuple):
    """A setting that may not be below another one."""

    key: str
    value: int
    other_key: str
    minimum: int
    reason: str


def _check_together(settings: Settings, source: str) -> None:
    """Checks settings that depend on each other. Errors: SettingsError."""
    for bound in _bounds(settings):
        if bound.value < bound.minimum:
            raise SettingsError(
                f"{source}: {bound.key} = {bound.value} is below {bound.other_key} = "
                f"{bound.minimum}: {bound.reason}; at least that is allowed"
            )

    kafka = settings.kafka
    error_text = topics_error(list(kafka.topics().values()), kafka.check_topic_prefix)
    if error_text:
        raise SettingsError(f"{source}: [kafka] {error_text}")

    for publisher in settings.publish.values():
        topic = publisher.progress_topic
        if is_own_topic(topic, kafka.topics().values(), kafka.check_topic_prefix):
            raise SettingsError(
                f"{source}: [publish.{publisher.name}] progress_topic = {topic!r} is a topic of "
                "the job's own"
            )

    for first, second in combinations(settings.publish.values(), 2):
        destination = same_destination(first, second)
        if destination is not None:
            raise SettingsError(
                f"{source}: [publish.{first.name}] and [publish.{second.name}] both write to the "
                f"Kafka topic {destination}: one publisher a destination"
            )


def _bounds(settings: Settings) -> Iterator[_Bound]:
    transaction = settings.transaction
    maintenance = settings.maintenance

    yield _Bound(
        "[transaction] half_retention_ms",
        transaction.half_retention_ms,
        "transaction_timeout_ms",
        transaction.transaction_timeout_ms,
        "a half would be given up before it can be checked",
    )
    yield _Bound(
        "[transaction] operation_namings_max",
        transaction.operation_namings_max,
        "messages_max",
        transaction.messages_max,
        "no operation could end a transaction of so many messages",
    )
    yield _Bound(
        "[lake] retention_ms",
        settings.lake.retention_ms,
        "[transaction] half_retention_ms",
        transaction.half_retention_ms,
        "a half would be deleted before it ends",
    )
    yield _Bound(
        "[maintenance] file_retention_ms",
        maintenance.file_retention_ms,
        "log_retention_ms",
        maintenance.log_retention_ms,
        "versions that the log still has would lack files",
    )

    if settings.topics.retention_ms != FOREVER:
        yield _Bound(
            "[topics] retention_ms",
            settings.topics.retention_ms,
            "[maintenance] stream_retention_ms",
            maintenance.stream_retention_ms,
            "a Spark stream that is away may read that long",
        )

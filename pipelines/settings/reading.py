"""Reading settings: TOML in, frozen values out, every mistake named.

Secrets come by `<key>_env` or `<key>_file` in [kafka.client], [lake.store] and [security], and are
masked in every print.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

from pipelines.settings.secrets import SettingsError, secret
from pipelines.settings.security import read_security, section_of
from pipelines.settings.values import Settings
from txlake.protocol import FOREVER, SYSTEM_REAL_TOPICS, colliding_topic

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SECTIONS: Final[dict[str, Any]] = {
    name: kind
    for name, kind in get_type_hints(Settings).items()
    if is_dataclass(kind) and name != "security"
}


@dataclass(frozen=True)
class _Rule:
    """Which settings of a library are secrets, and which are not to be set."""

    is_secret: Callable[[str], bool]
    ours: tuple[str, ...]


_CLIENT = _Rule(
    lambda key: key.endswith((".password", ".secret", ".key.pem")) or key == "sasl.jaas.config",
    ("bootstrap.servers", "enable.idempotence", "acks", "transactional.id", "group.id",
     "enable.auto.commit", "auto.offset.reset"),
)  # fmt: skip
_STORE = _Rule(
    lambda key: any(word in key for word in ("secret", "token", "account_key", "sas_key"))
    or key.endswith("storage_key"),
    # Where one key can have two writers, epochs would not be there once.
    ("allow_unsafe_rename", "aws_s3_allow_unsafe_rename", "AWS_S3_ALLOW_UNSAFE_RENAME",
     "conditional_put", "aws_conditional_put"),
)  # fmt: skip
_PASSED_ON = ("client", "store")  # of [kafka], of [lake]


def load(path: str | Path) -> Settings:
    """Returns the settings of a file.

    Errors: SettingsError with file, key, value and what is allowed.
    """
    return parse(read_values(path), str(path))


def read_values(path: str | Path) -> dict[str, Any]:
    """Returns what a file says, unchecked. Errors: SettingsError."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error


def parse(values: dict[str, Any], source: str) -> Settings:
    """Returns the settings that TOML's values say; `source` names them in errors."""
    known = sorted(item.name for item in fields(Settings))
    for name, section in values.items():
        if name not in known:
            raise SettingsError(
                f"{source}: [{name}] is unknown; the sections are {', '.join(known)}"
            )
        if not isinstance(section, dict):
            raise SettingsError(f"{source}: {name} = {section!r}: [{name}] is a section")
    kafka, lake = dict(values.get("kafka", {})), dict(values.get("lake", {}))
    client = _passed_on(kafka.pop("client", {}), f"{source}: [kafka.client]", _CLIENT)
    store = _passed_on(lake.pop("store", {}), f"{source}: [lake.store]", _STORE)
    given = {**values, "kafka": kafka, "lake": lake}
    sections = {
        name: _section(make, name, given.get(name, {}), source) for name, make in _SECTIONS.items()
    }
    sections["kafka"] = replace(sections["kafka"], client=client)
    sections["lake"] = replace(sections["lake"], store=store)
    security = read_security(values.get("security", {}), source)
    settings = Settings(
        **sections, security=security, spark=_spark(values.get("spark", {}), source)
    )
    _check_together(settings, source)
    return settings


def _section(make: Callable[..., Any], name: str, values: dict[str, Any], source: str) -> Any:
    items = {item.name: item for item in fields(make) if item.name not in _PASSED_ON}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in items:
            allowed = ", ".join(sorted(items))
            raise SettingsError(f"{source}: [{name}] {key} is unknown; the keys are {allowed}")
        _check(items[key], value, f"{source}: [{name}] {key} = {value!r}")
    for key, item in items.items():
        if item.default is MISSING and key not in values:
            raise SettingsError(
                f"{source}: [{name}] {key} is missing; {item.metadata['allowed']} is needed"
            )
    return make(**values)


def _check(item: Field[Any], value: Any, place: str) -> None:
    kinds = {"str": (str, "text"), "int": (int, "a whole number"), "bool": (bool, "true or false")}
    kind, words = kinds[str(item.type)]
    is_of_kind = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    is_of_kind = is_of_kind and not (kind is str and "\0" in value)
    if not (is_of_kind and item.metadata.get("is_allowed", lambda _: True)(value)):
        raise SettingsError(f"{place}: {item.metadata.get('allowed', words)} is allowed")


def _check_together(settings: Settings, source: str) -> None:
    lake, t, m = settings.lake, settings.transaction, settings.maintenance
    kept_ms = settings.topics.retention_ms
    for key, value, other, least, why in (
        ("[transaction] half_retention_ms", t.half_retention_ms,
         "transaction_timeout_ms", t.transaction_timeout_ms,
         "a half would be given up before it may be checked"),
        ("[lake] retention_ms", lake.retention_ms,
         "[transaction] half_retention_ms", t.half_retention_ms,
         "a half would be deleted before it ends"),
        ("[maintenance] file_retention_ms", m.file_retention_ms,
         "log_retention_ms", m.log_retention_ms,
         "versions that the log still has would lack files"),
        ("[topics] retention_ms", m.stream_retention_ms if kept_ms == FOREVER else kept_ms,
         "[maintenance] stream_retention_ms", m.stream_retention_ms,
         "a Spark stream that is away may read that long"),
    ):  # fmt: skip
        if value < least:
            raise SettingsError(
                f"{source}: {key} = {value} is below {other} = {least}: {why}; at least that is "
                "allowed"
            )
    prefix = settings.kafka.check_topic_prefix
    for name in settings.kafka.topics().values():
        if name in (".", ".."):
            raise SettingsError(f"{source}: [kafka] {name!r}: Kafka allows no topic of that name")
        if name.startswith(prefix):
            raise SettingsError(
                f"{source}: [kafka] {name!r} begins with check_topic_prefix = {prefix!r}: it could "
                "be the check topic of a group"
            )
        if name.replace(".", "_").startswith(prefix.replace(".", "_")):
            raise SettingsError(
                f"{source}: [kafka] {name!r} differs from check_topic_prefix = {prefix!r} by '.' "
                "and '_' alone: Kafka counts them as one, and it could collide with the check "
                "topic of a group"
            )
        other = colliding_topic(name, settings.kafka.topics().values())
        if other is not None:
            raise SettingsError(
                f"{source}: [kafka] {name!r} and {other!r} differ by '.' and '_' alone: Kafka "
                "counts them as one, and takes no second topic of that name"
            )
    names = [*settings.kafka.topics().values(), *SYSTEM_REAL_TOPICS]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(
            f"{source}: [kafka] {twice[0]!r} names two topics; each needs a name of its own"
        )


def _passed_on(values: Any, section: str, rule: _Rule) -> dict[str, str]:
    """Returns settings of a library; `<key>_env` and `<key>_file` say where a secret is."""
    given: dict[str, str] = {}
    for key, value in section_of(values, section).items():
        place = f"{section} {key}"
        text = _text(value, place)
        if key.endswith(("_env", "_file")):
            given[key.rpartition("_")[0]] = secret(key, text, section)
        elif rule.is_secret(key.lower()):
            raise SettingsError(
                f"{place}: a secret does not stand in a settings file; use {key}_env (a variable) "
                f"or {key}_file (a file)"
            )
        elif key in rule.ours:
            raise SettingsError(f"{place} is set by txlake; connection settings are allowed")
        else:
            given[key] = text
    return given


def _text(value: Any, place: str) -> str:
    """Returns a setting of a library as the text that it reads."""
    if not isinstance(value, str | int | float | bool) or "\0" in str(value):
        raise SettingsError(f"{place}: text without NUL, a number, true or false is allowed")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spark(values: dict[str, Any], source: str) -> dict[str, str]:
    spark = {key: _text(value, f"{source}: [spark] {key}") for key, value in flat(values)}
    for key in spark:
        if not key.startswith("spark.") or "\0" in key:
            raise SettingsError(
                f"{source}: [spark] {key}: settings that begin with spark. are allowed"
            )
    return spark


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings of nested sections, their keys joined by dots."""
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            yield from flat(value, name)
        else:
            yield name, value

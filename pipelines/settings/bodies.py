"""[topics.NAME]: what the bodies of a real topic are, for those who read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pipelines.settings.errors import SettingsError
from pipelines.settings.nearest import did_you_mean
from txlake.protocol import TOPIC_PATTERN, matches

FORMATS: Final = ("json", "avro", "protobuf")


@dataclass(frozen=True)
class BodySettings:
    """The format of a topic's bodies, and the file of their schema.

    `message`: the Protobuf message's full name; `skip_bytes`: of each body, before its record;
    `place`: the section, for errors.
    """

    place: str = field(repr=False, compare=False)
    body: str
    schema: str
    message: str = ""
    skip_bytes: int = 0


_KEYS: Final = ("body", "schema", "message", "skip_bytes")


def read_bodies(values: Mapping[str, Any], source: str) -> dict[str, BodySettings]:
    """Returns what bodies are, by topic. Input: the sections of [topics] by name.

    A schema's path counts from the folder of the settings' file.
    Errors: SettingsError.
    """
    bodies = {}

    for topic, section in values.items():
        place = f"{source}: [topics.{topic}]"
        if not matches(TOPIC_PATTERN, topic):
            raise SettingsError(f"{place}: a topic's name like {TOPIC_PATTERN} is allowed")
        _check(section, place)

        schema = Path(source).parent / section["schema"]
        try:
            is_file = schema.is_file()
        except OSError as error:
            raise SettingsError(
                f"{place} schema = {section['schema']!r}: cannot be read ({error.strerror})"
            ) from error
        if not is_file:
            raise SettingsError(f"{place} schema = {section['schema']!r}: {schema} is no file")

        bodies[topic] = BodySettings(place, **{**section, "schema": str(schema)})

    return bodies


def _check(section: Mapping[str, Any], place: str) -> None:
    """Checks the values of a section. Errors: SettingsError."""
    for key in section:
        if key not in _KEYS:
            raise SettingsError(
                f"{place} {key} is unknown; the keys are {', '.join(sorted(_KEYS))}"
                f"{did_you_mean(key, _KEYS)}"
            )
    for key in ("body", "schema"):
        if key not in section:
            raise SettingsError(f"{place} {key} is missing; {_ALLOWED[key]} is needed")

    body = section["body"]
    message = section.get("message", "")
    for key, is_right in (
        ("body", body in FORMATS),
        ("schema", _is_name(section["schema"])),
        ("message", message == "" or (body == "protobuf" and _is_name(message))),
        ("skip_bytes", type(section.get("skip_bytes", 0)) is int),
    ):
        if not is_right or (key == "skip_bytes" and not 0 <= section.get(key, 0) <= _SKIP_MAX):
            raise SettingsError(f"{place} {key} = {section[key]!r}: {_ALLOWED[key]} is allowed")

    if body == "protobuf" and not message:
        raise SettingsError(f"{place} message is missing; {_ALLOWED['message']} is needed")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


_SKIP_MAX = 1_000
_ALLOWED: Final = {
    "body": "'json' or 'avro' or 'protobuf'",
    "schema": "the file of a JSON Schema, an Avro schema or a Protobuf descriptor set",
    "message": "of protobuf the message's full name, 'shop.Order' say,",
    "skip_bytes": f"a whole number 0 .. {_SKIP_MAX}",
}

"""Settings for people: each value in force, and no secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

from pipelines.settings.bodies import BodySettings
from pipelines.settings.library_options import CLIENT, SPARK, STORE, Library, flatten, redacted
from pipelines.settings.publish import PublisherSettings
from pipelines.settings.reading import load, read_values
from pipelines.settings.values import Settings

# Sections that are shown as in the file: with the names of variables and files, not with the
# secrets.
_LIBRARIES: Final[Mapping[tuple[str, str], Library | None]] = {
    ("kafka", "client"): CLIENT,
    ("lake", "store"): STORE,
    ("security", "keys"): None,
    ("security", "operators"): None,
}


def redacted_settings(path: str | Path) -> list[dict[str, Any]]:
    """Returns every setting of a file, with its default where the file does not name it.

    Output: section, key, value, `is_default`: whether the value is the default, named by the file
    or not; options of a library and required settings have no default. An option of a library is
    hidden unless it is known to be harmless; a secret appears by the name of its variable or file.
    Errors: as `load`.
    """
    sections = asdict(load(path))
    file = read_values(path)
    libraries: dict[str, Library | None] = {"spark": SPARK}
    kinds = get_type_hints(Settings)

    sections["spark"] = dict(flatten(file.get("spark", {})))
    for name, publisher in sections.pop("publish").items():
        del publisher["name"]
        sections[f"publish.{name}"] = publisher
        kinds[f"publish.{name}"] = PublisherSettings
        section = f"publish.{name}.client"
        sections[section] = file["publish"][name].get("client", {})
        libraries[section] = CLIENT
        del publisher["client"]

    for topic, body in sections.pop("bodies").items():
        del body["place"]
        sections[f"topics.{topic}"] = body
        kinds[f"topics.{topic}"] = BodySettings

    for (section, key), library in _LIBRARIES.items():
        sections[section].pop(key)
        sections[f"{section}.{key}"] = file.get(section, {}).get(key, {})
        libraries[f"{section}.{key}"] = library

    defaults = list(_defaults(kinds))
    # Of a publisher without a Kafka of its own it is the job's.
    defaults += [
        (section, "bootstrap_servers", sections["kafka"]["bootstrap_servers"])
        for section, kind in kinds.items()
        if kind is PublisherSettings
    ]
    return [
        {
            "section": section,
            "key": key,
            "value": redacted(libraries.get(section), key, value),
            "is_default": (section, key, value) in defaults,
        }
        for section, values in sections.items()
        for key, value in values.items()
    ]


def _defaults(kinds: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields section, key and value of each setting that has a default.

    Input: what each section is read as.
    """
    for section, kind in kinds.items():
        if not is_dataclass(kind):
            continue
        for item in fields(kind):
            if item.default is not MISSING:
                yield section, item.name, item.default

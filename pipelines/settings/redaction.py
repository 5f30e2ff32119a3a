"""Settings as people may see them: each value in force, and no secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pipelines.settings.library_options import CLIENT, SPARK, STORE, Library, flatten, redacted
from pipelines.settings.reading import load, read_values

# Sections that are shown as the file has them: with the names of variables and files, not with
# the secrets.
_LIBRARIES: Final[Mapping[tuple[str, str], Library | None]] = {
    ("kafka", "client"): CLIENT,
    ("lake", "store"): STORE,
    ("security", "keys"): None,
    ("security", "operators"): None,
}


def redacted_settings(path: str | Path) -> list[dict[str, Any]]:
    """Returns every setting of a file, with its default where the file does not name it.

    Output: section, key, value, `is_default`. What is passed on to a library is hidden unless it is
    known to be harmless; a secret stands here by the name of its variable or file.
    Errors: as `load`.
    """
    sections = asdict(load(path))
    file = read_values(path)
    libraries: dict[str, Library | None] = {"spark": SPARK}

    sections["spark"] = dict(flatten(file.get("spark", {})))
    for name, publisher in sections.pop("publish").items():
        del publisher["name"]
        sections[f"publish.{name}"] = publisher
        section = f"publish.{name}.client"
        sections[section] = file["publish"][name].get("client", {})
        libraries[section] = CLIENT
        del publisher["client"]
    for (section, key), library in _LIBRARIES.items():
        sections[section].pop(key)
        sections[f"{section}.{key}"] = file.get(section, {}).get(key, {})
        libraries[f"{section}.{key}"] = library

    return [
        {
            "section": section,
            "key": key,
            "value": redacted(libraries.get(section), key, value),
            "is_default": key not in _section_of_file(file, section),
        }
        for section, values in sections.items()
        for key, value in values.items()
    ]


def _section_of_file(file: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """Returns what a file says in a section; of [spark] its keys are joined by dots."""
    if section == "spark":
        return dict(flatten(file.get(section, {})))

    for part in section.split("."):
        file = file.get(part, {})
    return file

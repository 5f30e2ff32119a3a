"""Settings as people may see them: each value in force, and no secret."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pipelines.settings.reading import flat, load, read_values

HIDDEN: Final = "***"
# Of [spark], whose keys nobody here knows: too many are hidden rather than too few.
_SECRET_WORDS = ("secret", "password", "token", "credential", "access.key", "account.key", "jaas")
_AS_GIVEN = (
    ("kafka", "client"),
    ("lake", "store"),
    ("security", "keys"),
    ("security", "operators"),
)
# A password in a URI's authority.
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


def shown(path: str | Path) -> list[dict[str, Any]]:
    """Returns every setting of a file, with its default where the file does not name it.

    Output: section, key, value, `is_default`. What is passed on to a library, and keys, stand here
    as the file has them: a secret by the name of its variable or file.
    Errors: as `load`.
    """
    settings = asdict(load(path))
    given = read_values(path)
    for section, key in _AS_GIVEN:
        settings[section].pop(key)
        settings[f"{section}.{key}"] = given.get(section, {}).get(key, {})
    return [
        {"section": section, "key": key, "value": _masked(section, key, value),
         "is_default": key not in _of(given, section)}
        for section, values in settings.items()
        for key, value in values.items()
    ]  # fmt: skip


def _of(given: dict[str, Any], section: str) -> dict[str, Any]:
    """Returns what a file says in a section; of [spark] its keys are joined by dots."""
    if section == "spark":
        return dict(flat(given.get(section, {})))
    for part in section.split("."):
        given = given.get(part, {})
    return given


def _masked(section: str, key: str, value: Any) -> Any:
    if section == "spark" and any(word in key.lower() for word in _SECRET_WORDS):
        return HIDDEN
    return _USER_INFO.sub(f"{HIDDEN}@", value) if isinstance(value, str) else value

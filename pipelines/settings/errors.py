"""Settings that cannot be used: file, key, value and what is allowed, in one sentence.

No secret is in one.
"""

from __future__ import annotations

from typing import Any


class SettingsError(Exception):
    """A setting that cannot be used; one line, whatever the setting holds."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split("\n")))


def section_of(values: Any, section: str) -> dict[str, Any]:
    """Returns the values of a section. Errors: SettingsError if it is no section."""
    if not isinstance(values, dict):
        raise SettingsError(f"{section} has a value: {section.rpartition(' ')[2]} is a section")
    return values

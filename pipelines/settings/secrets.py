"""Secrets by the name of a variable or of a file: they never stand in a settings file.

SettingsError    file, key, value and what is allowed, in one sentence
"""

from __future__ import annotations

import os
from pathlib import Path


class SettingsError(Exception):
    """A setting that cannot be used; one line, whatever the setting holds."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split("\n")))


def secret(key: str, value: str, section: str) -> str:
    """Returns the secret of `<key>_env`, the name of a variable, or of `<key>_file`.

    Errors: SettingsError if there is none.
    """
    place = f"{section} {key} = {value!r}"
    if key.endswith("_env"):
        if value not in os.environ:
            raise SettingsError(f"{place}: no such environment variable is set")
        return os.environ[value]
    try:
        return Path(value).read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise SettingsError(f"{place}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{place}: it is not text in UTF-8") from error
    except ValueError as error:
        raise SettingsError(f"{place}: no file can have this name") from error

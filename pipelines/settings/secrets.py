"""Secrets by the name of a variable or of a file: they never stand in a settings file."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from pipelines.settings.errors import SettingsError

log = logging.getLogger("txlake.settings")

_ENDINGS: Final = ("_env", "_file")

_warned_paths: set[str] = set()  # the files of which this process has warned


def secret_name(name: str) -> tuple[str, str]:
    """Returns the key in a setting's name, and the way to its value.

    Output: for `<key>_env` and `<key>_file` the key and the ending; for another name the name and
    an empty ending.
    """
    ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
    return name.removesuffix(ending), ending


def warn_if_others_can_read(path: str, setting: str) -> None:
    """Logs a warning if every user of this machine may read the file of a secret.

    Input: `setting`: the setting or option with the file's name. Errors: OSError.
    Replay: a process warns once of each file.
    """
    mode = stat.S_IMODE(Path(path).stat().st_mode)

    if mode & stat.S_IROTH and path not in _warned_paths:
        _warned_paths.add(path)
        log.warning(
            "%s: every user of this machine may read %s (mode %o): chmod 600 it",
            setting,
            path,
            mode,
        )


def secret(name: str, value: str, section: str) -> str:
    """Returns the secret of `<key>_env`, the name of a variable, or of `<key>_file`.

    Errors: SettingsError if there is none. It does not have the value: a user who mistakes the
    setting for the secret itself would find the secret in a log.
    """
    setting = f"{section} {name}"

    if name.endswith("_env"):
        if value not in os.environ:
            raise SettingsError(
                f"{setting}: no such environment variable is set; the name of one is allowed, not "
                "the secret"
            )
        return os.environ[value]

    try:
        return Path(value).read_text(encoding="utf-8-sig").rstrip("\r\n")
    except OSError as error:
        raise SettingsError(
            f"{setting}: {error.strerror}; the path of a file is allowed, not the secret"
        ) from None
    except UnicodeDecodeError:
        raise SettingsError(f"{setting}: the file is not text in UTF-8") from None
    except ValueError:
        raise SettingsError(f"{setting}: no file can have this name") from None

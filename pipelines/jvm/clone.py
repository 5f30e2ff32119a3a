"""Whether txlake runs in a clone, whose `make` sets it up, or was installed from its wheels."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_INSTALL_AGAIN: Final = (
    "install the packages of requirements.txt again (docs/production.md, Install)"
)


def is_clone() -> bool:
    """Returns whether the Makefile is there."""
    return (_ROOT / "Makefile").is_file()


def packages_remedy() -> str:
    """Returns what brings a package that is missing."""
    return "run `make setup`" if is_clone() else _INSTALL_AGAIN


def java_remedy() -> str:
    """Returns what brings a Java that is missing."""
    if is_clone():
        return "run `make java`, which installs one into .venv, or set JAVA_HOME"
    return "install one from the system (on Debian: openjdk-17-jre-headless), or set JAVA_HOME"

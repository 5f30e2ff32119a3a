"""What the lock files name: Python packages with their hashes, and the jars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pip_requirements_parser import RequirementsFile

from pipelines.jvm.jars import JAR_SETS, OPTIONAL_SETS, Jar, locked

ROOT: Final = Path(__file__).parent.parent
_OURS: Final = ("txlake", "txlake-pipelines")


@dataclass(frozen=True)
class Package:
    """A Python package of the lock files. `locks`: those that name it; `hashes`: of its files."""

    name: str
    version: str
    locks: tuple[str, ...]
    hashes: tuple[str, ...]


def packages(locks: Iterable[Path] = ()) -> list[Package]:
    """Returns the packages of lock files, by default of all, each version once, by name.

    A package can have two versions: for older and for newer Pythons.
    """
    found: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for path in locks or sorted(ROOT.glob("requirements*.lock")):
        for line in RequirementsFile.from_file(str(path)).requirements:
            pin = str(canonicalize_name(line.name)), str(line.get_pinned_version)
            names, hashes = found.setdefault(pin, (set(), set()))
            names.add(path.name)
            hashes.update(option.partition("sha256:")[2] for option in line.hash_options)
    return [
        Package(*pin, tuple(sorted(names)), tuple(sorted(hashes)))
        for pin, (names, hashes) in sorted(found.items())
    ]


def jars() -> dict[Jar, list[str]]:
    """Returns the jars of the lock, each with the sets that it is in."""
    found: dict[Jar, list[str]] = {}
    for jar_set in (*JAR_SETS, *OPTIONAL_SETS):
        for jar in locked(jar_set):
            found.setdefault(jar, []).append(jar_set)
    return found


def needed_packages() -> set[str]:
    """Returns what our distributions need, with the extras they name, by what is installed.

    What only another Python or another platform needs is among them, without what that needs.
    """
    needed: set[tuple[str, str]] = set()
    remaining = [(name, "") for name in _OURS]

    while remaining:
        name, extra = remaining.pop()
        if (name, extra) in needed:
            continue

        needed.add((name, extra))
        for requirement in map(Requirement, _requirements(name)):
            if _is_asked_for(requirement, extra):
                other = str(canonicalize_name(requirement.name))
                remaining += [(other, named) for named in ("", *requirement.extras)]

    return {name for name, _ in needed} - {*_OURS}


def _requirements(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def _is_asked_for(requirement: Requirement, extra: str) -> bool:
    """Returns whether a package of an extra is asked for; one without an extra always is."""
    marker = requirement.marker
    return marker is None or "extra" not in str(marker) or marker.evaluate({"extra": extra})

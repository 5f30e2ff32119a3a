"""The jars for the JVM, found in the cache; the lock tells if one is missing or broken.

The lock, `jars.lock.toml`, names every jar with its size and SHA-256. The cache is addressed by
content, `<cache>/jars/<sha256>/<artifact>-<version>.jar`, and shared by all clones of a user. A
start looks at names and sizes only and needs no network; `pipelines.jvm.ivy` fetches.

    JarError    a jar is missing, broken, or cannot be had; the text says what to run
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pipelines.jvm.clone import is_clone

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

JAR_SETS = ("spark", "broker")
# Fetched only when they are asked for by name: a local S3 server, and S3 for Spark's readers.
OPTIONAL_SETS = ("store", "s3")
# What a job needs. Of the others only those count that were fetched: a job on a Kafka of its own
# has no use for the local broker.
_NEEDED = "spark"
LOCK_NAME = "jars.lock.toml"


class JarError(Exception):
    """A jar is missing, broken, or cannot be had."""


@dataclass(frozen=True)
class Jar:
    """One jar of the lock: its Maven coordinates, its SHA-256 and its size.

    Input: `coordinates`: organisation:artifact:version, with :classifier if there is one.
    """

    coordinates: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """Returns the name of the file, as Maven makes it."""
        return "-".join(self.coordinates.split(":")[1:]) + ".jar"

    @property
    def path(self) -> Path:
        """Returns the path of the jar in the cache."""
        return cache_folder() / "jars" / self.sha256 / self.file_name


def cache_folder() -> Path:
    """Returns the one folder outside the clone that is written: `TXLAKE_CACHE`, or its default."""
    named = os.environ.get("TXLAKE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    above = os.environ.get("XDG_CACHE_HOME")
    return (Path(above) if above else Path.home() / ".cache") / "txlake"


def packaged_toml(name: str) -> dict[str, Any]:
    """Returns the content of a TOML file that stands beside this module."""
    with files(__package__).joinpath(name).open("rb") as file:
        return tomllib.load(file)


def locked(jar_set: str) -> list[Jar]:
    """Returns the jars of one set, in the order of the lock."""
    return [
        Jar(row["jar"], row["sha256"], row["size_bytes"])
        for row in packaged_toml(LOCK_NAME)[jar_set]
    ]


def jar_paths(jar_set: str) -> list[Path]:
    """Returns the paths of the jars of one set.

    Errors: JarError for the first jar that is missing or has another size.
    """
    jars = locked(jar_set)
    for jar in jars:
        check(jar, jar_set)
    return [jar.path for jar in jars]


def class_path(sets: Iterable[str]) -> str:
    """Returns the class path of some sets.

    Errors: JarError for the first jar that is missing or has another size.
    """
    return os.pathsep.join(str(path) for name in sets for path in jar_paths(name))


def is_fetched(jar_set: str) -> bool:
    """Returns whether every jar of a set is in the cache."""
    return all(jar.path.is_file() for jar in locked(jar_set))


def sets_in_use() -> list[str]:
    """Returns the sets that must be whole: `spark`, and each that has a jar in the cache."""
    return [
        name
        for name in (*JAR_SETS, *OPTIONAL_SETS)
        if name == _NEEDED or any(jar.path.exists() for jar in locked(name))
    ]


def verify() -> int:
    """Compares the SHA-256 of every jar of the sets in use; returns how many there are.

    Errors: JarError for the first jar that is missing or broken.
    """
    jars = {jar.sha256: (jar, name) for name in sets_in_use() for jar in locked(name)}
    for jar, name in jars.values():
        check(jar, name)
        sha256 = sha256_of(jar.path)
        if sha256 != jar.sha256:
            raise JarError(
                f"jar {jar.path} is broken: SHA-256 {sha256}, expected {jar.sha256}; "
                f"run `{fetch_command(name)}`"
            )
    return len(jars)


def fetch_command(jar_set: str) -> str:
    """Returns the command that fetches a set; in a clone the one that fetches all of its set-up."""
    if jar_set in OPTIONAL_SETS or not is_clone():
        return f"txlake jars fetch {jar_set}"
    return "txlake jars fetch"


def check(jar: Jar, jar_set: str) -> None:
    """Checks that a jar of a set exists with its size: quick enough for every start.

    Errors: JarError.
    """
    try:
        size_bytes = jar.path.stat().st_size
    except FileNotFoundError:
        raise JarError(
            f"jar {jar.file_name} is missing from {cache_folder()}: run `{fetch_command(jar_set)}`"
        ) from None
    except OSError as error:
        raise unusable_cache(error) from error
    if size_bytes != jar.size_bytes:
        raise JarError(
            f"jar {jar.path} is broken: {size_bytes} bytes, expected {jar.size_bytes}; "
            f"run `{fetch_command(jar_set)}`"
        )


def unusable_cache(error: OSError) -> JarError:
    """Returns the error of a cache that cannot be read or written."""
    return JarError(
        f"the cache {cache_folder()} cannot be used ({error.strerror}): name a folder in "
        "TXLAKE_CACHE"
    )


def missing_jars(jars: Iterable[Jar]) -> list[Jar]:
    """Returns the jars whose file is missing, or differs from the lock, each once."""
    return [
        jar
        for jar in {jar.sha256: jar for jar in jars}.values()
        if not jar.path.is_file() or sha256_of(jar.path) != jar.sha256
    ]


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, as hexadecimal text."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

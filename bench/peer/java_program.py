"""RocketMQ's jars and our small Java program: fetched by their lock, compiled, ready to be run.

The jars stand in the same cache as the job's, and are checked in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.job_process import BenchError
from pipelines.jvm import ivy
from pipelines.jvm.jars import Jar
from pipelines.jvm.java import java_binary

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

JAR_SETS = ("rocketmq", "compiler")
LOCK = Path(__file__).with_name("jars.lock.toml")
WANTED = Path(__file__).with_name("jars.toml")
SOURCES = Path(__file__).with_name("java")
LOCK_COMMAND = "make bench-peer PEER=--lock"


def locked(jar_set: str) -> list[Jar]:
    """Returns the jars of one set, in the order of the lock."""
    return [Jar(row["jar"], row["sha256"], row["size_bytes"]) for row in _toml(LOCK)[jar_set]]


def wanted() -> dict[str, dict[str, list[str]]]:
    """Returns what the lock is made from: jar set -> wanted, excluded, alone."""
    return _toml(WANTED)


def rocketmq_version() -> str:
    """Returns the version of the broker in the lock."""
    return next(
        jar.coordinates.rpartition(":")[2]
        for jar in locked("rocketmq")
        if ":rocketmq-broker:" in jar.coordinates
    )


def make_lock() -> int:
    """Resolves the jars anew and writes the lock; returns how many jars there are.

    Errors: JarError.
    """
    sections = wanted()
    resolved = {name: ivy.resolve(java_binary(), name, sections[name]) for name in JAR_SETS}
    ivy.write_lock(LOCK, resolved, LOCK_COMMAND)
    return sum(map(len, resolved.values()))


def fetch() -> int:
    """Brings the jars that the cache lacks into it; returns how many were fetched.

    Errors: JarError.
    """
    return sum(ivy.fetch_jars(java_binary(), name, locked(name)) for name in JAR_SETS)


def compile_program(classes: Path) -> str:
    """Compiles the program into a folder; returns the class path of everything.

    Errors: BenchError with what the compiler says.
    """
    jars = os.pathsep.join(str(jar.path) for jar in locked("rocketmq"))
    (compiler,) = locked("compiler")
    command = [str(java_binary()), "-jar", str(compiler.path), "-17", "-nowarn"]
    command += ["-d", str(classes), "-classpath", jars, str(SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{SOURCES} cannot be compiled:\n{done.stdout}{done.stderr}")
    return os.pathsep.join([str(classes), jars])


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))

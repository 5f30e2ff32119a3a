"""The class archive: what the job's JVM loads at its start, ready to be mapped into memory.

A third of a start goes into reading some ten thousand classes from jars and checking them. Java
can keep them in an archive (class-data sharing), which the set-up makes
(`pipelines/make_class_archive.py`); Java 17 alone accepts it. A JVM that finds none, or one of
another Java or other jars, starts without it, and slower; nothing else depends on it.

It lies in the Python environment, as PySpark's jars do, and is about 130 MB large.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from pipelines.java import java_home
from storage.jars import spark_jars

# Spark's launcher names a jar twice in the class path. Java 21 forgets the second when it writes an
# archive and misses it when it reads one: it never accepts its own.
JAVA_VERSION = 17
# Not a word about an archive that does not fit any more: Java does without it.
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def archive_path() -> Path:
    """Name the archive for this Java and these jars, whether it is there or not.

    Errors: JavaError, JarError.
    """
    seen = "\n".join(_seen())
    name = f"classes-{hashlib.sha256(seen.encode()).hexdigest()[:16]}.jsa"
    return Path(sys.prefix) / "share" / "txlake" / name


def archive_options() -> str:
    """Return the JVM's options that use the archive; none where there is none.

    Errors: JavaError, JarError.
    """
    path = archive_path()
    return f"-XX:SharedArchiveFile={path} {QUIET}" if path.is_file() else ""


def _seen() -> Iterator[str]:
    """Return all that the archive depends on: where Java and each jar is, and which."""
    home = java_home()
    release = home / "release"
    yield str(home)
    yield release.read_text("utf-8") if release.is_file() else ""
    # Found, not imported: importing PySpark takes a while.
    spec = importlib.util.find_spec("pyspark")
    folders = (spec and spec.submodule_search_locations) or []
    of_spark = [jar for folder in folders for jar in sorted(Path(folder, "jars").glob("*.jar"))]
    for jar in [*of_spark, *spark_jars()]:
        status = jar.stat()
        yield f"{jar} {status.st_size} {status.st_mtime_ns}"

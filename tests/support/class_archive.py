"""Archives of the classes that a Spark driver, a broker and a store load, for those of the tests.

    python -m tests.support.class_archive    writes them into the cache, if they are not there

They are Java's own (class data sharing): classes that were parsed and checked once. A test run
begins them in the background; a JVM that starts before its archive is there, or has another class
path, starts as the product's do, which have none (DECISIONS.md 17). Java 17 only: 21 refuses what
it has written. With an archive and the quick compiler alone, a broker starts with 2.3 s of
processor instead of 6.3.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.jvm.jars import JarError, cache_folder, jar_paths
from pipelines.jvm.java import JavaError, java_home, java_version
from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

IN_TESTS: Final = "TXLAKE_TESTS_CLASS_ARCHIVE"  # set in a test run; a benchmark measures without
_JAVA = 17
# A JVM of a test lives for seconds: the slow compiler would take more time than its code saves.
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1"
SERVERS: Final[tuple[type[Broker] | type[Store], ...]] = (Broker, Store)
_ROOT = Path(__file__).parents[2]
# Else a JVM that cannot use the archive says so where a program prints its results.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_DEADLINE_S = 300.0


def is_test_run() -> bool:
    """Returns whether a process belongs to a run of the tests."""
    return IN_TESTS in os.environ


def archive_options() -> str:
    """Returns the options of a driver's JVM; empty outside a test run, or without an archive."""
    path = archive_path() if is_test_run() else None
    return f"-XX:SharedArchiveFile={path} {_QUIET} " if path is not None and path.is_file() else ""


def quick_java(temp: Path) -> dict[str, str]:
    """Returns the environment in which the JVMs of a process that a test starts are quick.

    Input: a folder of the test's, where they leave what they cannot delete when they are killed.
    """
    temp.mkdir(exist_ok=True)
    options = f"{archive_options()}{QUICK_JAVA} -Djava.io.tmpdir={temp}"
    return {"JAVA_TOOL_OPTIONS": options, "SPARK_LOCAL_DIRS": str(temp), "TMPDIR": str(temp)}


def make_servers_quick() -> None:
    """Lets this process start its brokers and stores with the quick compiler and an archive.

    Replay: does nothing.
    """
    for server in SERVERS:
        path = archive_path(server.JARS)
        if QUICK_JAVA not in server.JAVA_OPTIONS:
            # An archive that is not there yet is no error, and may be there at the next start.
            archive = () if path is None else (f"-XX:SharedArchiveFile={path}", *_QUIET.split())
            server.JAVA_OPTIONS = (QUICK_JAVA, *archive, *server.JAVA_OPTIONS)


def archive_path(jar_set: str = "spark") -> Path | None:
    """Returns where the archive for this Java, this pyspark and these jars is, or would be.

    Input: the jars of what the JVM runs.
    Output: None if this Java is to have none, or the jars are not in the cache.
    """
    try:
        home = java_home()
        jars = jar_paths(jar_set)
    except (JavaError, JarError):
        return None

    if java_version(home) != _JAVA:
        return None

    release = home / "release"
    parts = [str(home), release.read_text("utf-8", "replace") if release.is_file() else ""]

    if jar_set == "spark":
        spark = importlib.util.find_spec("pyspark")  # found, not imported
        assert spark is not None
        parts += [str(spark.origin), importlib.metadata.version("pyspark")]

    parts += map(str, jars)
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "classes" / f"tests-{digest}.jsa"


@contextmanager
def made_in_background() -> Iterator[None]:
    """Writes the archive while a block runs, in a process of its own."""
    process = None

    if _missing():
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.class_archive"],
            cwd=_ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )

    try:
        yield
    finally:
        if process is not None:
            process.wait()


def make_archives() -> None:
    """Writes the archives that are missing. Replay: does nothing."""
    for jar_set, path in _missing().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder, path.name)
            if jar_set == "spark":
                _run_driver(made, Path(folder))
            else:
                _run_server(jar_set, made, Path(folder, "data"))
            os.replace(made, path)


def _missing() -> dict[str, Path]:
    """Returns where the archives will be that are not there, by the jars."""
    paths = {name: archive_path(name) for name in ("spark", *(one.JARS for one in SERVERS))}
    return {name: path for name, path in paths.items() if path is not None and not path.is_file()}


def _run_server(jar_set: str, made: Path, folder: Path) -> None:
    """Starts a server and stops it in good order."""
    (server,) = [one for one in SERVERS if jar_set == one.JARS]
    server.JAVA_OPTIONS = (
        f"-XX:ArchiveClassesAtExit={made}",
        "-Xlog:disable",
        *server.JAVA_OPTIONS,
    )
    with server(folder):
        pass


def _run_driver(made: Path, folder: Path) -> None:
    """Runs a little of what a job runs."""
    from pipelines.jvm.session import start_session

    options = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
    settings = {"spark.driver.extraJavaOptions": options, "spark.local.dir": str(folder)}
    spark = start_session("classes", settings, is_quiet=True)
    gateway: Any = spark.sparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    try:
        _work(spark, folder)
    finally:
        spark.stop()
        gateway.shutdown()
        assert process.stdin is not None
        process.stdin.close()  # the JVM ends with that, and writes the archive
        process.wait(_DEADLINE_S)


def _work(spark: SparkSession, folder: Path) -> None:
    """Runs a stream whose micro-batches pass through Python, and names the source of Kafka."""

    def on_batch(batch: DataFrame, _: int) -> None:
        batch.selectExpr("value").coalesce(1).mapInArrow(_same, "value long").toArrow()

    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    kafka = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "none"}
    spark.readStream.format("kafka").options(**kafka).load()
    query = (
        ticks.writeStream.foreachBatch(on_batch)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(int(_DEADLINE_S))


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    make_archives()

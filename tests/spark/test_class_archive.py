"""The class archive: the job's JVM takes its classes from it; one that does not fit is no error."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines import class_archive, make_class_archive
from pipelines.class_archive import JAVA_VERSION, archive_options, archive_path
from pipelines.java import java_binary, java_home, java_version

SHOW_CLASSES = "-Xlog:class+load:stdout"
FROM_ARCHIVE = "source: shared objects file (top)"


@pytest.fixture
def no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Look for archives where there is none. Output: where one would be."""
    monkeypatch.setattr(class_archive.sys, "prefix", str(tmp_path))
    path = archive_path()
    path.parent.mkdir(parents=True)
    return path


def say_version(spark: SparkSession, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Spark's start on this run's own class path."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    class_path = jvm.java.lang.System.getProperty("java.class.path")
    command = [str(java_binary()), *options, "-cp", class_path]
    return subprocess.run(
        [*command, "org.apache.spark.deploy.SparkSubmit", "--version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip


def accepts_archives() -> bool:
    """Return whether this run's Java does."""
    return java_version(java_home()) == JAVA_VERSION


def test_the_set_up_made_an_archive_and_spark_is_loaded_from_it(spark: SparkSession) -> None:
    said = say_version(spark, [*archive_options().split(), SHOW_CLASSES]).stdout
    loaded = [line for line in said.splitlines() if "org.apache.spark.deploy.SparkSubmit " in line]
    assert len(loaded) == 1
    assert (FROM_ARCHIVE in loaded[0]) == accepts_archives()


def test_the_jvm_of_a_session_gets_it(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    beans = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    is_given = f"-XX:SharedArchiveFile={archive_path()}" in list(beans.getInputArguments())
    assert is_given == accepts_archives()


def test_for_another_java_none_is_made(no_archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_class_archive, "java_version", lambda _: 21)
    assert make_class_archive.make() is False
    assert not no_archive.exists()


def test_an_archive_that_is_broken_stops_nothing_and_says_nothing(
    spark: SparkSession, no_archive: Path
) -> None:
    no_archive.write_bytes(b"no archive" * 1_000)
    broken = say_version(spark, [*archive_options().split()])
    without = say_version(spark, [])
    assert broken.stdout == without.stdout
    assert len(broken.stderr.splitlines()) == len(without.stderr.splitlines())


def test_without_an_archive_the_jvm_is_told_of_none(no_archive: Path) -> None:
    assert not no_archive.exists()
    assert archive_options() == ""


def test_another_java_or_another_jar_has_another_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "one.jar"
    jar.write_bytes(b"1")
    monkeypatch.setattr(class_archive, "spark_jars", lambda: [jar])
    names = [archive_path()]
    os.utime(jar, (1, 1))
    names.append(archive_path())
    monkeypatch.setattr(class_archive, "java_home", lambda: tmp_path)
    names.append(archive_path())
    (tmp_path / "release").write_text("another")
    names.append(archive_path())
    assert len(set(names)) == len(names)

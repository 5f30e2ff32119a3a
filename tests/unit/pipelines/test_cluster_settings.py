"""What a cluster master needs of Spark's settings, and what is sent to its nodes."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines.cli.main import main
from pipelines.errors import StartError
from pipelines.jvm.arrow_memory import ENVIRONMENT
from pipelines.jvm.cluster import (
    JVM_OPTIONS,
    cluster_conf,
    environment_conf,
    is_local,
    write_environment,
)
from tests.support.cluster import BARE_PYTHON

MASTERS = [
    ("local", True), ("local[2]", True), ("local[*]", True), ("local-cluster[2,1,1024]", False),
    ("spark://h:7077", False), ("yarn", False), ("k8s://https://h:6443", False),
]  # fmt: skip


@pytest.mark.parametrize(("master", "expected"), MASTERS)
def test_local_masters_have_their_executors_in_the_driver(master: str, expected: bool) -> None:
    assert is_local(master) == expected
    assert (cluster_conf(master, "here") == {}) == expected


def test_driver_is_found_where_it_reaches_the_master() -> None:
    assert cluster_conf("spark://127.0.0.1:7077")["spark.driver.host"] == "127.0.0.1"
    assert cluster_conf("spark://127.0.0.1:7077,other:7077")["spark.driver.host"] == "127.0.0.1"
    assert cluster_conf("spark://127.0.0.1:7077", "me")["spark.driver.host"] == "me"
    assert cluster_conf("spark://nobody.invalid:7077", "me")["spark.driver.host"] == "me"


@pytest.mark.parametrize("master", ["spark://nobody.invalid:7077", "spark://127.0.0.1", "spark://"])
def test_master_that_is_not_known_is_one_sentence(master: str) -> None:
    with pytest.raises(StartError, match=r"write spark://HOST:PORT, and --driver-host"):
        cluster_conf(master)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, in a folder that is not there yet."""
    folder = tmp_path_factory.mktemp("environment") / "folder"
    return write_environment(folder / "environment.tar.gz")


def test_archive_has_what_tasks_import_and_nothing_of_ours(archive: Path) -> None:
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    roots = {name.split("/")[0] for name in names}
    assert {"pyarrow", "numpy", "deltalake", "confluent_kafka"} <= roots
    assert roots.isdisjoint({"txlake", "storage", "pipelines", "checker", "pyspark", "duckdb"})
    assert not any("__pycache__" in name or name.startswith(("/", "..")) for name in names)


def test_archive_alone_is_enough_for_what_tasks_import(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "environment", filter="data")
    root = Path(__file__).parents[3]
    paths = [str(tmp_path / "environment"), str(root), str(root / "client")]
    modules = "storage.tasks.in_spark, storage.tasks.probe, deltalake.fs, confluent_kafka"
    code = f"import sys; sys.path[:0] = {paths}; import {modules}"
    # -S: without the packages of the Python itself.
    done = subprocess.run(
        [BARE_PYTHON, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_an_archive_can_be_left_uncompressed(archive: Path, tmp_path: Path) -> None:
    plain = write_environment(tmp_path / "environment.tar")
    with tarfile.open(plain, "r:") as whole, tarfile.open(archive, "r:gz") as packed:
        assert whole.getnames() == packed.getnames()


def test_an_archive_that_spark_would_not_unpack_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "environment.zip"
    done = CliRunner().invoke(main, ["environment", str(path)])
    assert done.exit_code == 1
    assert "environment.zip: Spark knows an archive by its name" in done.stderr
    assert "must end in .tar.gz, .tgz or .tar" in done.stderr
    assert not path.exists()


def submit_line(*options: str) -> str:
    words = ["spark-submit", "--print", "--conf", "conf/local.toml", *options]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_options_go_to_spark_submit(tmp_path: Path) -> None:
    archive = tmp_path / "e.tar.gz"
    archive.write_bytes(b"")
    line = submit_line(
        "--master",
        "spark://127.0.0.1:7077",
        "--environment",
        str(archive),
        "--python",
        "py",
        "--driver-host",
        "me",
        "--spark",
        "spark.a=b=c",
        "--submit-options",
        "--executor-memory 2g",
    )
    for part in (
        "--master spark://127.0.0.1:7077",
        "--conf spark.driver.host=me",
        "--conf spark.a=b=c",
        "--executor-memory 2g",
        "--conf spark.pyspark.python=py",
        "PYSPARK_PYTHON=py",
        f"spark.archives={archive}#environment",
        "--conf spark.jars=",
        f"--conf 'spark.executor.defaultJavaOptions={JVM_OPTIONS}'",
        *(f"--conf spark.executorEnv.{name}={value}" for name, value in ENVIRONMENT.items()),
    ):
        assert part in line, part
    assert environment_conf("x")["spark.executorEnv.PYTHONPATH"] == "environment"
    assert "spark.driver.host" not in submit_line()
    assert "spark.jars" not in submit_line()


def test_setting_that_is_none_of_spark_is_refused() -> None:
    done = CliRunner().invoke(main, ["spark-submit", "--conf", "conf/local.toml", "--spark", "x=y"])
    assert (done.exit_code, "'x': write spark.NAME=VALUE" in done.stderr) == (2, True)

"""A cluster: the needs of executors, the driver's address for them, and a check of the lake.

On a local master executors are the driver's own JVM, and none of this applies.
"""

from __future__ import annotations

import importlib.metadata
import socket
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.fs as pa_fs

from pipelines.errors import OperatorError, StartError
from pipelines.jvm.arrow_memory import ENVIRONMENT
from pipelines.jvm.jars import jar_paths
from storage.files.location import LakeLocation
from storage.tasks.probe import answer_probe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The imports of our tasks, on a store deltalake too, and their own needs; ours go by --py-files.
_DISTRIBUTIONS: Final = (
    "pyarrow",
    "numpy",
    "deltalake",
    "arro3-core",
    "typing-extensions",
    "confluent-kafka",
)
# For every JVM that Spark starts, the driver's too: C2 begins later (DECISIONS.md 3).
JVM_OPTIONS: Final = (
    "-XX:MetaspaceSize=256m -XX:Tier4InvocationThreshold=100000 -XX:Tier4CompileThreshold=300000 "
    "-XX:Tier4MinInvocationThreshold=12000 -XX:Tier4BackEdgeThreshold=800000"
)
_TASK_FAILURES = "8"  # kills can hit one task several times; Spark's own 4 end the job sooner
_PROBES = 8  # tasks an executor, so that each executor gets some
ARCHIVE_SUFFIXES: Final = (".tar.gz", ".tgz", ".tar")
_ENVIRONMENT = "environment"  # the folder of the archive on a node


def is_local(master: str) -> bool:
    """Returns whether executors run in the driver's JVM; false for a `local-cluster`."""
    return master == "local" or master.startswith("local[")


def cluster_conf(master: str, driver_host: str | None = None) -> dict[str, str]:
    """Returns Spark's settings that a cluster master needs; none for a local one.

    Input: the address at which executors reach the driver; None for the one that reaches the
    master. Errors: StartError if the master's host is not known here; JarError.
    """
    if is_local(master):
        return {}
    return {
        "spark.driver.host": driver_host or _local_address_for(master),
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104
        "spark.jars": ",".join(map(str, jar_paths("spark"))),
        "spark.task.maxFailures": _TASK_FAILURES,
        "spark.executor.defaultJavaOptions": JVM_OPTIONS,  # `extraJavaOptions` stands behind it
        **{f"spark.executorEnv.{name}": value for name, value in ENVIRONMENT.items()},
    }


def environment_conf(archive: str) -> dict[str, str]:
    """Returns Spark's settings for executors that take their packages from an archive."""
    return {
        "spark.archives": f"{archive}#{_ENVIRONMENT}",
        "spark.executorEnv.PYTHONPATH": _ENVIRONMENT,
    }


def _local_address_for(master: str) -> str:
    if not master.startswith("spark://"):
        return socket.getfqdn()
    host, _, port = master.removeprefix("spark://").split(",")[0].rpartition(":")

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # sends nothing
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise StartError(
            f"the master {master}: {error}; write spark://HOST:PORT, and --driver-host where "
            "executors reach this machine"
        ) from error


def write_environment(path: Path) -> Path:
    """Writes the native packages that executors need into an archive for `spark.archives`.

    Its nodes need the same platform and the same minor version of Python as this machine.
    Input: a file whose name ends as Spark expects (ARCHIVE_SUFFIXES); a `.tar` is not compressed.
    Errors: OperatorError for another name, or a place where no file can be made.
    """
    if not path.name.endswith(ARCHIVE_SUFFIXES):
        raise OperatorError(
            f"{path.name}: Spark knows an archive by its name, which must end in "
            f"{', '.join(ARCHIVE_SUFFIXES[:-1])} or {ARCHIVE_SUFFIXES[-1]}"
        )

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = _open_archive(path)
    except OSError as error:
        raise OperatorError(f"{path} cannot be written ({error.strerror})") from error

    with opened as archive:
        for file, name in sorted(_files()):
            archive.add(file, name, recursive=False)
    return path


def _open_archive(path: Path) -> tarfile.TarFile:
    if path.suffix == ".tar":
        return tarfile.open(path, "w")
    return tarfile.open(path, "w:gz", compresslevel=1)


def _files() -> Iterator[tuple[str, str]]:
    for distribution in _DISTRIBUTIONS:
        for file in importlib.metadata.distribution(distribution).files or ():
            is_code = ".." not in file.parts and "__pycache__" not in file.parts
            if is_code and not {"tests", "include"} & set(file.parts):
                yield str(file.locate()), str(file)


def require_shared_lake(spark: SparkSession, location: LakeLocation) -> None:
    """Checks that executors and the driver see one lake: each finds what the other has written.

    Errors: StartError with the executor's host.
    """
    context = spark.sparkContext
    if is_local(str(context.master)):
        return

    filesystem: pa_fs.FileSystem = location.filesystem("")
    word = uuid.uuid4().hex
    folder = f"_probe-{word}"
    filesystem.create_dir(folder)

    try:
        with filesystem.open_output_stream(f"{folder}/driver") as stream:
            stream.write(word.encode())

        task_count = max(2, context.defaultParallelism) * _PROBES
        probes = [(location, folder, word)] * task_count
        answers = context.parallelize(probes, task_count).map(answer_probe).collect()
        for answer in answers:
            _check_answer(location, filesystem, answer)
    finally:
        filesystem.delete_dir(folder)


def _check_answer(
    location: LakeLocation, filesystem: pa_fs.FileSystem, answer: Mapping[str, str]
) -> None:
    is_found = filesystem.get_file_info(answer["path"]).type == pa_fs.FileType.File
    if answer["problem"] or not is_found:
        problem = answer["problem"] or "the driver does not find what it writes there"
        raise StartError(
            f"the lake {location.path} is not the same place for the executor on {answer['host']}: "
            f"{problem}; name a lake that all nodes see"
        )

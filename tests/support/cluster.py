"""A Spark standalone cluster of this machine's: a real master, two real workers.

The workers run in folders of their own, with an empty environment: no checkout on their path, and
executors in a Python that has none of our packages.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from pipelines.jvm.java import java_home
from pipelines.local_server.ports import Reservation, is_listening
from tests.support.class_archive import QUICK_JAVA
from tests.support.processes import kill_children
from tests.support.wait import DEADLINE_S, wait_until

_PYSPARK = importlib.util.find_spec("pyspark")
assert _PYSPARK is not None
CLUSTER_VARIABLE = "TXLAKE_TESTS_SPARK"  # settings of the tests' Spark session, as JSON
HOST = "127.0.0.1"
WORKERS = 2
_HOME = Path(str(_PYSPARK.origin)).parent
# Without the packages of this environment.
BARE_PYTHON = os.path.realpath(sys.executable)


class Cluster:
    """Started by `with`; ended, with all executors, at its end. Input: `cores` of each worker."""

    def __init__(self, folder: Path, cores: int = 1) -> None:
        self.folder = folder
        self._cores = cores
        # Of all its JVMs: what those that a test kills cannot delete is in the cluster's folder.
        self.java_options = f"{QUICK_JAVA} -Djava.io.tmpdir={folder}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._held = Reservation(HOST, 0)
        self.port = self._held.ports[0]

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def __enter__(self) -> Cluster:
        ui = ("--webui-port", "0")
        self._start("master", "master.Master", "--host", HOST, "--port", str(self.port), *ui)
        self._wait("the master", lambda: is_listening(HOST, self.port))

        for number in range(WORKERS):
            name = f"worker-{number}"
            self._start(
                name,
                "worker.Worker",
                self.master,
                "--host",
                HOST,
                "--cores",
                str(self._cores),
                "--memory",
                f"{self._cores}g",
                "--work-dir",
                str(self.folder / name / "apps"),
                *ui,
            )

        log = self.folder / "master" / "log"
        self._wait("the workers", lambda: log.read_text().count("Registering worker") >= WORKERS)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            kill_children(process.pid)
            process.kill()
            process.wait(DEADLINE_S)
        self._held.release()

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True)
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_JAVA_OPTS": self.java_options,
        }

        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with (folder / "log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, *arguments],
                    cwd=folder,
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait(self, what: str, is_met: Callable[[], Any]) -> None:
        wait_until(is_met, f"{what} starts", seen=self._logs)

    def _logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*/log"))

    def executors(self) -> list[psutil.Process]:
        """Return the executors' JVMs."""
        return self._children("CoarseGrainedExecutorBackend")

    def daemons(self) -> list[psutil.Process]:
        """Return the executors' daemons of Python workers."""
        found = self._children("pyspark.daemon")
        return [process for process in found if _parent(process) not in {p.pid for p in found}]

    def python_workers(self) -> list[psutil.Process]:
        """Return the Python workers, which the daemons have forked."""
        found = self._children("pyspark.daemon")
        return [process for process in found if _parent(process) in {p.pid for p in found}]

    def executor_logs(self) -> str:
        """Return what all executors have written, those that are gone, too."""
        logs = sorted(self.folder.glob("worker-*/apps/*/*/stderr"))
        return "".join(path.read_text(errors="replace") for path in logs)

    def _children(self, word: str) -> list[psutil.Process]:
        found = []
        for process in self._processes[1:]:
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    if word in " ".join(child.cmdline()):
                        found.append(child)
                except psutil.Error:
                    continue
        return found


def _parent(process: psutil.Process) -> int | None:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return None

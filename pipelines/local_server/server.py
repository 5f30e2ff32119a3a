"""A server on loopback, in a process of its own: its start, its probe, its end.

A start: 1. its ports are reserved, 2. its files are written, 3. the process is started, 4. the
server is probed until it answers. The reservations are kept until `stop`: no other process gets the
ports while the server restarts.

If this process dies, even by kill -9, the server is killed
(`pipelines/local_server/parent_watch.py`).

    ServerError    the server did not start, or does not answer; the text has the end of its log
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from pipelines.jvm.jars import class_path
from pipelines.jvm.java import java_binary
from pipelines.local_server import ports
from pipelines.local_server.parent_watch import stop_parent_watch, with_parent_watch

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
# Kafka flushes its logs before it ends: 1 to 2 s, more on a busy machine.
STOP_TIMEOUT_S = 30.0

_Server = TypeVar("_Server", bound="LocalServer")


class ServerError(Exception):
    """The server did not start, or does not answer."""


class LocalServer(ABC):
    """A server on loopback, started by `start` or `with`, ended by `stop` or `kill`.

    `data_folder` keeps its data, settings, log and temporary files; an old one is used again.
    `port` 0 means a free one, chosen once.
    """

    NAME: ClassVar[str]
    ERROR: ClassVar[type[ServerError]]
    JARS: ClassVar[str]  # the set of the lock that it runs from
    JAVA_OPTIONS: ClassVar[tuple[str, ...]]
    PORTS: ClassVar[int] = 1

    def __init__(self, data_folder: Path | str, *, port: int, start_timeout_s: float) -> None:
        self.data_folder = Path(data_folder).absolute()
        self.log_path = self.data_folder / f"{self.NAME}.log"
        # A start deletes it: its name is ours alone, whatever else the folder has.
        self.temp_folder = self.data_folder / f"txlake-{self.NAME}-temp"
        self._ports = [port, *[0] * (self.PORTS - 1)]
        self._start_timeout_s = start_timeout_s
        self._reserved: ports.Reservation | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock_fd: int | None = None

    @property
    def port(self) -> int:
        """Returns the port; 0 before the first start if a free one is to be chosen."""
        return self._ports[0]

    @property
    def pid(self) -> int:
        """Returns the process id of the running server.

        Errors: ServerError if it does not run.
        """
        if self._process is None:
            raise self.ERROR(f"the {self.NAME} of {self.data_folder} was not started")
        return self._process.pid

    def is_running(self) -> bool:
        """Returns whether the server's process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self: _Server) -> _Server:
        """Starts the server and waits until it answers.

        Errors: ServerError, JarError, JavaError.
        Replay: a running server stays as it is.
        """
        if self.is_running():
            return self

        java = [
            str(java_binary()),
            *self.JAVA_OPTIONS,
            f"-Djava.io.tmpdir={self.temp_folder}",
            "-cp",
            class_path([self.JARS]),
        ]
        if self._reserved is None:
            self._reserve()

        try:
            self._lock()
            self._empty_temp()
            self._spawn(self._prepare(java))
            self._wait_until_it_answers()
        except BaseException:
            self.kill()
            self._release()
            raise

        return self

    def stop(self) -> None:
        """Ends the server in good order, with its data on disk; kills it if that takes too long.

        Replay: the second time does nothing.
        """
        self._end(signal.SIGTERM)
        self._release()

    def kill(self) -> None:
        """Ends the server as kill -9 does; its ports stay reserved for `start` or `restart`."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Ends the server in good order if it runs, and starts it on the same data and port."""
        self._end(signal.SIGTERM)
        self.start()

    def __enter__(self: _Server) -> _Server:
        """Starts the server."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stops the server."""
        self.stop()

    @abstractmethod
    def _prepare(self, java_command: list[str]) -> list[str]:
        """Writes the server's files; returns the command that starts it.

        Input: Java with its options and the class path.
        """

    @abstractmethod
    def _probe(self) -> str | None:
        """Probes the server once. Output: None if it is ready, else its reply or error."""

    def _lock(self) -> None:
        """Lets no other server start in the data folder: both would write the same files.

        Errors: ServerError if one has it.
        """
        self._make_folder(self.data_folder)
        fd = os.open(self.data_folder / f"txlake-{self.NAME}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise self.ERROR(
                f"another {self.NAME} has the data folder {self.data_folder}: end it, or name "
                "another folder"
            ) from None
        self._lock_fd = fd

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _empty_temp(self) -> None:
        """Makes the folder for temporary files; deletes those that a killed server has left."""
        shutil.rmtree(self.temp_folder, ignore_errors=True)
        self._make_folder(self.temp_folder)

    def _make_folder(self, path: Path) -> None:
        """Makes a folder within the data folder.

        Errors: ServerError for a data folder that cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self.ERROR(
                f"the data folder {self.data_folder} cannot be written ({error.strerror}): name "
                "another"
            ) from None

    def _reserve(self) -> None:
        try:
            self._reserved = ports.Reservation(HOST, *self._ports)
        except OverflowError:
            raise self.ERROR(f"port {self.port}: a number 0 .. 65535 is allowed") from None
        except OSError as error:
            raise self.ERROR(
                f"port {self.port} on {HOST} cannot be used ({error.strerror}): stop what "
                "uses it, or give another port"
            ) from None
        self._ports = self._reserved.ports

    def _release(self) -> None:
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    def _spawn(self, command: Sequence[str]) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                with_parent_watch(command),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_folder,
                start_new_session=True,  # Ctrl-C reaches us alone; we end the server in order
            )

    def _end(self, sent: signal.Signals) -> None:
        process = self._process
        self._process = None
        if process is None:
            self._unlock()
            return

        process.send_signal(sent)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

        stop_parent_watch(process)
        self._unlock()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        last_seen: str | None = "nothing yet"

        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                code = self._process.returncode
                raise self.ERROR(
                    f"the {self.NAME} ended with code {code}; {_log_tail(self.log_path)}"
                )

            if ports.is_listening(HOST, self.port):
                last_seen = self._probe()
                if last_seen is None:
                    return

            time.sleep(0.02)
        raise self.ERROR(
            f"the {self.NAME} at {HOST}:{self.port} did not answer within "
            f"{self._start_timeout_s:g} s; seen last: {last_seen}; {_log_tail(self.log_path)}"
        )


def property_lines(settings: Mapping[str, str | int]) -> str:
    """Returns the text of a properties file, with backslashes and line ends escaped."""
    escaped = {
        key: str(value).replace("\\", "\\\\").replace("\n", "\\n")
        for key, value in settings.items()
    }
    return "".join(f"{key}={text}\n" for key, text in escaped.items())


def _log_tail(log_path: Path) -> str:
    try:
        lines = log_path.read_text("utf-8", "replace").splitlines()[-20:]
    except FileNotFoundError:
        lines = []
    return f"the end of {log_path}:\n" + "\n".join(lines)

"""A real Apache Kafka on loopback: one process, KRaft, broker and controller in one.

It is for the demo, the tests and trying things out; a production lake names its own brokers.

A start: 1. two ports are reserved, 2. the data folder is formatted, if it is new, 3. the broker is
started on its own class path, 4. we ask it for its metadata until it answers. The reservations are
kept until `stop`: no other process gets the ports while the broker restarts.

If this process dies, even by kill -9, the broker is killed (`pipelines/local_broker/guarded.py`).

    BrokerError    the broker did not start, or does not answer; the text has the end of its log
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from pipelines.jvm.jars import broker_jars
from pipelines.jvm.java import java_binary
from pipelines.local_broker import files as broker_files
from pipelines.local_broker import ports
from pipelines.local_broker.guarded import dismiss_guard, guarded

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
# Kafka flushes its logs before it ends: 1 to 2 s, more on a busy machine.
STOP_TIMEOUT_S = 30.0
HEAP_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto")


class BrokerError(Exception):
    """The broker did not start, or does not answer."""


class Broker:
    """A Kafka broker on loopback, started by `start` or `with`, ended by `stop` or `kill`.

    `data_folder` keeps logs, settings and log files; an old one is used again. `port` 0 means a
    free one, chosen once. `properties` are added to the server's own, and win.

    Units: message_bytes_max in bytes, of a record with its key and headers.
    Errors: BrokerError, JarError, JavaError.
    """

    def __init__(
        self,
        data_folder: Path | str,
        *,
        port: int = 0,
        message_bytes_max: int = 4 << 20,
        properties: Mapping[str, str | int] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.data_folder = Path(data_folder).absolute()
        self.log_path = self.data_folder / "broker.log"
        self._port = port
        self._message_bytes_max = message_bytes_max
        self._properties = dict(properties or {})
        self._start_timeout_s = start_timeout_s
        self._reserved: ports.Reservation | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Returns the port; 0 before the first start if a free one was asked for."""
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """Returns the address at which clients connect."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """Returns the process id of the running broker.

        Errors: BrokerError if it does not run.
        """
        if self._process is None:
            raise BrokerError(f"the broker of {self.data_folder} was not started")
        return self._process.pid

    def is_running(self) -> bool:
        """Returns whether the broker's process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Broker:
        """Starts the broker and waits until it answers.

        Replay: a running broker is left as it is.
        """
        if self.is_running():
            return self
        jars = broker_jars()
        java = str(java_binary())
        if self._reserved is None:
            try:
                self._reserved = ports.Reservation(HOST, self._port, 0)
            except OSError as error:
                raise BrokerError(
                    f"port {self._port} on {HOST} cannot be had ({error.strerror}): stop what "
                    "uses it, or give another port"
                ) from None
        self._port, controller_port = self._reserved.ports
        settings = broker_files.write(
            self.data_folder,
            listeners=f"BROKER://{self.bootstrap_servers},CONTROLLER://{HOST}:{controller_port}",
            message_bytes_max=self._message_bytes_max,
            properties=self._properties,
        )
        command = [java, *HEAP_OPTIONS, *settings.java_options]
        command += ["-cp", os.pathsep.join(map(str, jars))]
        try:
            self._format(command, settings.server_properties)
            self._spawn([*command, "kafka.Kafka", str(settings.server_properties)])
            self._wait_until_it_answers()
        except BaseException:
            self.kill()
            self._release()
            raise
        return self

    def stop(self) -> None:
        """Ends the broker in good order, with its data on disk; kills it if that takes too long.

        Replay: the second time does nothing.
        """
        if self._process is not None:
            self._end(signal.SIGTERM)
        self._release()

    def kill(self) -> None:
        """Ends the broker as kill -9 does; its ports stay reserved for `start` or `restart`."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Ends the broker in good order if it runs, and starts it on the same data and port."""
        if self._process is not None:
            self._end(signal.SIGTERM)
        self.start()

    def __enter__(self) -> Broker:
        """Starts the broker."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops the broker."""
        self.stop()

    def _release(self) -> None:
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    def _format(self, command: list[str], server_properties: Path) -> None:
        if (self.data_folder / "logs" / "meta.properties").exists():
            return
        tool = ["kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted"]
        tool += ["--cluster-id", broker_files.new_cluster_id(), "--config", str(server_properties)]
        # It runs for a second: Java's quick compiler is the faster one.
        done = subprocess.run(
            [*command[:1], "-XX:TieredStopAtLevel=1", *command[1:], *tool],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BrokerError(
                f"the data folder {self.data_folder} cannot be formatted: "
                f"{(done.stdout + done.stderr).strip()[-2000:]}"
            )

    def _spawn(self, command: list[str]) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_folder,
                start_new_session=True,  # Ctrl-C reaches us alone; we end the broker in order
            )

    def _end(self, sent: signal.Signals) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(sent)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        dismiss_guard(process)

    def _wait_until_it_answers(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        deadline = time.monotonic() + self._start_timeout_s
        seen = "nothing yet"
        # The client would log every refused connection while the broker starts.
        conf: dict[str, str | int | float | bool] = {"log_level": 0}
        conf["bootstrap.servers"] = self.bootstrap_servers
        admin: AdminClient | None = None
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                code = self._process.returncode
                raise BrokerError(f"the broker ended with code {code}; {_end_of(self.log_path)}")
            if admin is None and ports.listens(HOST, self._port):
                admin = AdminClient(conf)
            if admin is not None:
                try:
                    if admin.list_topics(timeout=1.0).brokers:
                        return
                    seen = "an answer that names no broker"
                except KafkaException as error:
                    seen = str(error)
            time.sleep(0.02)
        raise BrokerError(
            f"the broker at {self.bootstrap_servers} did not answer within "
            f"{self._start_timeout_s:g} s; seen last: {seen}; {_end_of(self.log_path)}"
        )


def _end_of(log_path: Path) -> str:
    try:
        lines = log_path.read_text("utf-8", "replace").splitlines()[-20:]
    except FileNotFoundError:
        lines = []
    return f"the end of {log_path}:\n" + "\n".join(lines)

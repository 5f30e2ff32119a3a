"""A RocketMQ on loopback: name server and broker, each a process of its own, all data in a folder.

The broker has RocketMQ's defaults (ASYNC_FLUSH, ASYNC_MASTER among them) but for ports, folders, a
heap of 1 GiB in place of 8, and a log of warnings only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.job_process import BenchError
from pipelines.local_server import ports
from pipelines.local_server.server import HOST
from tests.support.processes import Process

CLUSTER, BROKER = "bench-peer", "broker-a"
BROKER_JAVA = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")  # the collector of RocketMQ's own script
SMALL_JAVA = ("-Xms128m", "-Xmx256m", "-XX:+UseSerialGC")
CLIENT_JAVA = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC")
_STARTED = "boot success"
_START_TIMEOUT_S = 60.0
_POLL_S = 0.05
_TRIES = 100
# The broker listens at this distance from its port, too.
_FAST_PORT = -2
_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %c - %m%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""


class RocketMQ:
    """Name server, broker and their clients, in a block; at its end all are killed.

    Input: `class_path`: RocketMQ's jars and our program; `broker_options`: over its defaults.
    """

    def __init__(
        self, folder: Path, class_path: str, broker_options: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder.absolute()
        self._class_path = class_path
        self._broker_options = dict(broker_options or {})
        self._reserved: list[ports.Reservation] = []
        self.processes: dict[str, Process] = {}
        self.name_server = ""

    def __enter__(self) -> RocketMQ:
        (self.folder / "home").mkdir(parents=True)
        (self.folder / "logback.xml").write_text(_LOGBACK, "utf-8")
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def start_java(self, name: str, options: Sequence[str], arguments: Sequence[str]) -> Process:
        """Starts and returns a Java process; what it says is in `<name>.log`."""
        home = self.folder / "home"
        java = [
            *options,
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            f"-Drmq.logback.configurationFile={self.folder / 'logback.xml'}",
            # RocketMQ's own script has it, for direct buffers that it frees itself.
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
            "-cp",
            self._class_path,
            *arguments,
        ]

        log = self.folder / f"{name}.log"
        process = Process("bench.peer.run_java", java, log, home, is_short_lived=False)
        self.processes[name] = process
        return process

    def wait_for(
        self, is_met: Callable[[], bool], what: str, timeout_s: float = _START_TIMEOUT_S
    ) -> None:
        """Waits for something that the processes do.

        Errors: BenchError: one of them ended, or the time is up.
        """
        deadline = time.monotonic() + timeout_s
        while not is_met():
            self.check_alive()
            if time.monotonic() > deadline:
                said = {name: process.last_line() for name, process in self.processes.items()}
                raise BenchError(f"not within {timeout_s:.0f} s: {what}; said last: {said}")
            time.sleep(_POLL_S)

    def check_alive(self) -> None:
        """Raises a BenchError if one of the processes has ended."""
        for name, process in self.processes.items():
            if process.code is not None:
                raise BenchError(f"the {name} ended, code {process.code}: {process.last_line()}")

    def topics(self) -> set[str]:
        """Returns the topics that have messages, RocketMQ's own among them."""
        return {path.name for path in (self.folder / "store" / "consumequeue").iterdir()}

    def _start(self) -> None:
        name_port, port, replica_port = self._reserve()
        self.name_server = f"{HOST}:{name_port}"
        name_server = {
            "bindAddress": HOST,
            "listenPort": name_port,
            "kvConfigPath": self.folder / "home" / "kv.json",
        }
        broker = {
            "brokerClusterName": CLUSTER,
            "brokerName": BROKER,
            "brokerId": 0,
            "namesrvAddr": self.name_server,
            "bindAddress": HOST,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": port,
            "haListenPort": replica_port,
            "storePathRootDir": self.folder / "store",
            "storePathCommitLog": self.folder / "store" / "commitlog",
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "ASYNC_FLUSH",
            "diskMaxUsedSpaceRatio": 99,  # a disk that others fill
            **self._broker_options,
        }

        package = "org.apache.rocketmq"
        self._start_server(
            "nameserver", SMALL_JAVA, f"{package}.namesrv.NamesrvStartup", name_server
        )
        self._start_server("broker", BROKER_JAVA, f"{package}.broker.BrokerStartup", broker)

    def _start_server(
        self, name: str, java: Sequence[str], main: str, conf: Mapping[str, object]
    ) -> None:
        path = self.folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in conf.items()), "utf-8")
        process = self.start_java(name, java, [main, "-c", str(path)])
        self.wait_for(lambda: process.has_said(_STARTED), f"the {name} answers")

    def _reserve(self) -> tuple[int, int, int]:
        """Returns free ports: of the name server, the broker, and the broker for replicas."""
        for _ in range(_TRIES):
            reserved = ports.Reservation(HOST, 0, 0, 0)
            self._reserved.append(reserved)
            name_port, port, replica_port = reserved.ports
            try:
                self._reserved.append(ports.Reservation(HOST, port + _FAST_PORT))
            except OSError:
                continue  # what was taken for nothing is given back at the end
            return name_port, port, replica_port
        raise BenchError(f"no free ports for RocketMQ on {HOST} after {_TRIES} tries")

    def _stop(self) -> None:
        for process in self.processes.values():
            process.end()
        for reserved in self._reserved:
            reserved.release()

"""A real Apache Kafka on loopback: one process, KRaft, broker and controller in one.

It is for the demo, the tests and trying things out; a production lake names its own brokers. How it
is started and ended: `pipelines/local_server/server.py`. The data folder is formatted, if it is
new, before the first start.

    BrokerError    the broker did not start, or does not answer; the text has the end of its log
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.local_broker import files as broker_files
from pipelines.local_server.server import HOST, START_TIMEOUT_S, LocalServer, ServerError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class BrokerError(ServerError):
    """The broker did not start, or does not answer."""


class Broker(LocalServer):
    """A Kafka broker on loopback, started by `start` or `with`, ended by `stop` or `kill`.

    `data_folder` keeps logs, settings and log files; an old one is used again. `port` 0 means a
    free one, chosen once. `properties` are added to the server's own, and win.

    Units: message_bytes_max in bytes, of a record with its key and headers.
    Errors: BrokerError, JarError, JavaError.
    """

    NAME = "broker"
    ERROR = BrokerError
    JARS = "broker"
    JAVA_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto")
    PORTS = 2  # the broker's, the controller's

    def __init__(
        self,
        data_folder: Path | str,
        *,
        port: int = 0,
        message_bytes_max: int = 4 << 20,
        properties: Mapping[str, str | int] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        super().__init__(data_folder, port=port, start_timeout_s=start_timeout_s)
        self._message_bytes_max = message_bytes_max
        self._properties = dict(properties or {})
        self._admin: AdminClient | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Returns the address at which clients connect."""
        return f"{HOST}:{self.port}"

    def start(self) -> Broker:
        """Starts the broker and waits until it answers.

        Replay: a running broker is left as it is.
        """
        try:
            return super().start()
        finally:
            self._admin = None

    def _prepared(self, java_command: list[str]) -> list[str]:
        server_properties, java_options = broker_files.write(
            self.data_folder,
            listeners=f"BROKER://{self.bootstrap_servers},CONTROLLER://{HOST}:{self._ports[1]}",
            message_bytes_max=self._message_bytes_max,
            properties=self._properties,
        )
        java, *options = java_command
        command = [java, *java_options, *options]
        self._format(command, server_properties)
        return [*command, "kafka.Kafka", str(server_properties)]

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

    def _answer(self) -> str | None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            # The client would log every refused connection while the broker starts.
            conf: dict[str, str | int | float | bool] = {"log_level": 0}
            conf["bootstrap.servers"] = self.bootstrap_servers
            self._admin = AdminClient(conf)
        try:
            return None if self._admin.list_topics(timeout=1.0).brokers else "no broker is named"
        except KafkaException as error:
            return str(error)

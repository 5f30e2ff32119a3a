"""A real Apache Kafka on loopback: one process, KRaft, broker and controller in one.

It is for the demo, the tests and trying things out; a production lake names its own brokers.
`pipelines/local_server/server.py` starts and ends it. A new data folder is formatted before the
first start.

    BrokerError    the broker did not start, or does not answer; the text has the end of its log
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pipelines.local_server.server import (
    HOST,
    START_TIMEOUT_S,
    LocalServer,
    ServerError,
    property_lines,
)

_LOG4J2 = """# Written at each start, by pipelines/local_broker/broker.py: change it there.
Configuration:
  status: warn
  Appenders:
    Console:
      name: out
      PatternLayout:
        pattern: "%d{ISO8601} %-5p %c{1} %m%n"
  Loggers:
    Root:
      level: warn
      AppenderRef:
        ref: out
    Logger:
      - name: kafka.server.KafkaRaftServer
        level: info
      - name: org.apache.kafka.common.utils.AppInfoParser
        level: error
"""
# One broker keeps the only copy of everything. The inner topics have few partitions: each costs a
# folder and open files, and a start reads them all.
_SERVER: dict[str, str | int] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "BROKER",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "log.message.timestamp.type": "LogAppendTime",
    "num.partitions": 4,
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    # A consumer group of one process has no others to wait for.
    "group.initial.rebalance.delay.ms": 0,
    # After kill -9 the controller waits this long for the dead broker before it accepts the new
    # one: 9 s by default.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    # 128 MB by default, a quarter of our heap.
    "log.cleaner.dedupe.buffer.size": 16 << 20,
}


class BrokerError(ServerError):
    """The broker did not start, or does not answer."""


class Broker(LocalServer):
    """A Kafka broker on loopback, started by `start` or `with`, ended by `stop` or `kill`.

    `data_folder` keeps Kafka's logs, the broker's settings and its log file; an old one is used
    again. `port` 0 means a free one, chosen once. `properties` go before the broker's own.

    Units: message_bytes_max in bytes, of a record with its key and headers.
    Errors: BrokerError, JarError, JavaError.
    """

    NAME = "broker"
    ERROR = BrokerError
    JARS = "broker"
    JAVA_OPTIONS = (
        "-Xms128m",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-Xshare:auto",
        "-Djava.awt.headless=true",
        # Keeps two brokers on a machine from meeting over a name in the network.
        "-Djava.net.preferIPv4Stack=true",
    )
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

    @property
    def bootstrap_servers(self) -> str:
        """Returns the address at which clients connect."""
        return f"{HOST}:{self.port}"

    def _prepare(self, java_command: list[str]) -> list[str]:
        self.data_folder.mkdir(parents=True, exist_ok=True)
        broker = f"BROKER://{self.bootstrap_servers}"
        controller = f"{HOST}:{self._ports[1]}"

        settings = {
            **_SERVER,
            "listeners": f"{broker},CONTROLLER://{controller}",
            "advertised.listeners": broker,
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": str(self.data_folder / "logs"),
            "message.max.bytes": self._message_bytes_max,
            "replica.fetch.max.bytes": self._message_bytes_max,
            **self._properties,
        }

        server_properties = self.data_folder / "server.properties"
        server_properties.write_text(property_lines(settings), "utf-8")
        log4j2 = self.data_folder / "log4j2.yaml"
        log4j2.write_text(_LOG4J2, "utf-8")

        java, *options = java_command
        command = [java, f"-Dlog4j2.configurationFile={log4j2.as_uri()}", *options]

        self._format(command, server_properties)
        return [*command, "kafka.Kafka", str(server_properties)]

    def _format(self, command: list[str], server_properties: Path) -> None:
        if (self.data_folder / "logs" / "meta.properties").exists():
            return

        tool = [
            "kafka.tools.StorageTool",
            "format",
            "--standalone",
            "--ignore-formatted",
            "--cluster-id",
            _new_cluster_id(),
            "--config",
            str(server_properties),
        ]

        # The tool runs for a second: Java's quick compiler alone (C1) ends sooner.
        java, *options = command
        result = subprocess.run(
            [java, "-XX:TieredStopAtLevel=1", *options, *tool],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

        if result.returncode != 0:
            raise BrokerError(
                f"the data folder {self.data_folder} cannot be formatted: "
                f"{(result.stdout + result.stderr).strip()[-2000:]}"
            )

    def _probe(self) -> str | None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        # The client would log every refused connection while the broker starts.
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            return None if admin.list_topics(timeout=1.0).brokers else "no broker is named"
        except KafkaException as error:
            return str(error)


def _new_cluster_id() -> str:
    """Returns a cluster id like Kafka's: 16 random bytes, URL-safe base 64, no dash in front."""
    while True:
        text = secrets.token_urlsafe(16)
        if not text.startswith("-"):
            return text

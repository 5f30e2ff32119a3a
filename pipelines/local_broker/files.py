"""The settings of the local Kafka broker, written into its data folder."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from pathlib import Path

from pipelines.local_server.server import property_lines

_LOG4J2 = """# Written at each start, by pipelines/local_broker/files.py: change it there.
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
    # After kill -9 the controller waits this long for the dead broker before it takes the new one
    # in: 9 s by default.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    # 128 MB by default, a quarter of our heap.
    "log.cleaner.dedupe.buffer.size": 16 << 20,
}


def write(
    data_folder: Path,
    *,
    listeners: str,
    message_bytes_max: int,
    properties: Mapping[str, str | int],
) -> tuple[Path, tuple[str, ...]]:
    """Writes `server.properties` and `log4j2.yaml`, over those of an earlier start.

    Output: the path of the first, and Java's options for the broker.
    """
    data_folder.mkdir(parents=True, exist_ok=True)
    broker, controller = listeners.split(",")
    settings = {
        **_SERVER,
        "listeners": listeners,
        "advertised.listeners": broker,
        "controller.quorum.bootstrap.servers": controller.partition("//")[2],
        "log.dirs": str(data_folder / "logs"),
        "message.max.bytes": message_bytes_max,
        "replica.fetch.max.bytes": message_bytes_max,
        **properties,
    }
    server_properties = data_folder / "server.properties"
    server_properties.write_text(property_lines(settings), "utf-8")
    log4j2 = data_folder / "log4j2.yaml"
    log4j2.write_text(_LOG4J2, "utf-8")
    options = (
        f"-Dlog4j2.configurationFile={log4j2.as_uri()}",
        "-Djava.awt.headless=true",
        # Keeps two brokers on a machine from meeting over a name in the network.
        "-Djava.net.preferIPv4Stack=true",
    )
    return server_properties, options


def new_cluster_id() -> str:
    """Returns a cluster id like Kafka's: 16 random bytes, URL-safe base 64, no dash in front."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text

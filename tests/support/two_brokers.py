"""A Kafka cluster of two brokers on loopback: the second one joins the first one's controller."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.local_broker.broker import Broker, BrokerError
from pipelines.local_server.server import HOST


class SecondBroker(Broker):
    """A broker without a controller of its own. Input: the first one, which must run."""

    def __init__(self, folder: Path, first: Broker) -> None:
        self._first = first
        super().__init__(
            folder,
            properties={
                "process.roles": "broker",
                "node.id": 2,
                "controller.quorum.bootstrap.servers": f"{HOST}:{first._ports[1]}",
            },
        )

    def _prepare(self, java_command: list[str]) -> list[str]:
        self._properties["listeners"] = f"BROKER://{self.bootstrap_servers}"
        return super()._prepare(java_command)

    def _format(self, command: list[str], server_properties: Path) -> None:
        if (self.data_folder / "logs" / "meta.properties").exists():
            return

        meta = (self._first.data_folder / "logs" / "meta.properties").read_text()
        (cluster_id,) = (
            line.partition("=")[2] for line in meta.splitlines() if line.startswith("cluster.id=")
        )
        tool = ["kafka.tools.StorageTool", "format", "--no-initial-controllers", "--cluster-id"]
        result = subprocess.run(
            [*command, *tool, cluster_id, "--config", str(server_properties)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise BrokerError(result.stdout + result.stderr)


@contextmanager
def two_brokers(folder: Path) -> Iterator[tuple[Broker, Broker]]:
    """Yields the brokers of a cluster; ends both."""
    with Broker(folder / "first") as first, SecondBroker(folder / "second", first) as second:
        yield first, second

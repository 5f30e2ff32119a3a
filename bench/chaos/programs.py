"""The programs of a chaos run: how each is started, with which settings and where it logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.chaos import consumer, kafka_consumer, producer, raw
from bench.chaos.names import (
    CONSUMED,
    CONSUMER,
    DRIVERS,
    KAFKA_CONSUMER,
    PUBLISHERS,
    RAW,
    TOPIC_QUEUES,
)
from bench.chaos.settings import PUBLISHING, dealt, of_cluster, settings_text
from bench.chaos.stage import Stage
from pipelines.operate.records import command, write
from pipelines.settings import load
from tests.support.processes import Process
from txlake.protocol import CREATE_TOPIC


class Programs:
    """Starts the programs of one run; each start has a number, and a log of its own."""

    def __init__(self, stage: Stage, master: str | None) -> None:
        self._stage, self._master = stage, master
        self._starts: Counter[str] = Counter()
        self.settings_dealt: dict[str, int] = {}  # the number of each driver's settings

    def deal_settings(self, name: str, *, is_last: bool) -> None:
        """Writes other settings for the next start of a driver."""
        number = max(self.settings_dealt.values(), default=0) + 1
        self.settings_dealt[name] = number
        spark = {} if self._master is None else of_cluster(self._master)
        self._write(self._conf_of(name), dealt(self._stage.seed, number, is_last), spark)

    def write_conf(self) -> None:
        """Writes the settings of those that only read the lake."""
        self._write(self._stage.conf, {}, {})

    def make_topics(self) -> None:
        """Asks for the topics whose messages have to arrive, also where none is made on its own."""
        kafka = load(self._stage.conf).kafka
        for topic in CONSUMED:
            target = f"topic:{topic}:{TOPIC_QUEUES}"
            write(kafka, command(CREATE_TOPIC, target, "chaos", "before all messages"), "")

    def _write(self, path: Path, values: Mapping[str, Any], spark: Mapping[str, str]) -> None:
        stage = self._stage
        servers = stage.broker.bootstrap_servers
        values = {**values, **(PUBLISHING if stage.is_published else {})}
        path.write_text(settings_text(values, stage.lake_section, servers, spark), "utf-8")

    def _conf_of(self, driver: str) -> Path:
        return self._stage.folder / f"{driver}.toml"

    def start(self, name: str) -> Process:
        """Starts a program."""
        self._starts[name] += 1
        number = self._starts[name]
        module, arguments = self._command(name, f"{name}-{number}")
        log = self._stage.folder / "logs" / f"{name}-{number:03}.log"
        return Process(module, arguments, log, self._stage.folder / "temp")

    def _command(self, name: str, name_of_start: str) -> tuple[str, list[str]]:
        stage = self._stage
        of_start = ["--name", name_of_start, "--seed", str(stage.seed)]
        of_lake = ["--conf", str(stage.conf)]

        if name in DRIVERS:
            standby = ["--standby"] if len(stage.drivers.names) > 1 else []
            return "pipelines", ["run", "--conf", str(self._conf_of(name)), *standby]

        if name == CONSUMER:
            seen = ["--seen", str(stage.seen.path)]
            return consumer.__name__, [*of_lake, *seen, *of_start]

        if name in PUBLISHERS:
            return "pipelines", ["publish", *of_lake]

        servers = ["--bootstrap-servers", stage.broker.bootstrap_servers]
        if name == KAFKA_CONSUMER:
            seen = ["--seen", str(stage.seen_in_kafka.path)]
            return kafka_consumer.__name__, [*servers, *seen, *of_start]

        is_raw = name == RAW
        journal = (stage.raw_journal if is_raw else stage.journal).path
        arguments = [*servers, "--journal", str(journal), *of_start, *(of_lake if is_raw else [])]
        return (raw if is_raw else producer).__name__, arguments

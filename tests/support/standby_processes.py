"""Drivers of one lake as processes: one active, one that stands by, and what they delivered."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.verify.run import verify
from tests.support.kafka_writer import KafkaWriter
from tests.support.processes import ROOT, Process
from tests.support.wait import DEADLINE_S, wait_until
from txlake.protocol import COMMIT

ACTIVE, READY = "running; owner", "standby: ready"


def conf_of(settings: Settings, store: Mapping[str, str] | None = None) -> str:
    """Returns settings as the file of a job: where the lake is, the topics, the pace.

    Input: `store`: the section [lake.store], as it is written in a file.
    """
    kafka = settings.kafka
    topics = {f"{kind}_topic": name for kind, name in kafka.topics().items()}

    sections: dict[str, Mapping[str, Any]] = {
        "lake": {"path": settings.lake.path},
        "lake.store": store or {},
        "kafka": {
            "bootstrap_servers": kafka.bootstrap_servers,
            "check_topic_prefix": kafka.check_topic_prefix,
            "queues": kafka.queues,
            **topics,
        },
        "stream": {"trigger_interval_ms": settings.stream.trigger_interval_ms},
        "metrics": asdict(settings.metrics),
        "log": asdict(settings.log),
        "spark": settings.spark,
    }

    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


class Drivers:
    """The drivers of one lake, and what was sent to it: the bodies of committed transactions."""

    def __init__(
        self, settings: Settings, folder: Path, store: Mapping[str, str] | None = None
    ) -> None:
        self.settings = settings
        self.conf = folder / "job.toml"
        self.conf.write_text(conf_of(settings, store))
        self.sent: list[str] = []
        self._folder = folder
        self._numbers = itertools.count(1)
        self._processes: list[Process] = []
        self._wire = KafkaWriter(settings)
        self._lake = Lake(settings.lake.location())

    def start(self, *options: str) -> Process:
        """Starts a driver. Input: options of `txlake run`."""
        folder = self._folder / f"driver-{next(self._numbers)}"
        folder.mkdir()
        process = Process(
            "pipelines", ["run", "--conf", str(self.conf), *options], folder / "log", folder
        )
        self._processes.append(process)
        return process

    def start_active(self) -> Process:
        """Starts a driver and waits until it runs."""
        return self.wait_for(ACTIVE, self.start("--standby"))

    def start_standby(self) -> Process:
        """Starts a driver and waits until it stands by."""
        return self.wait_for(READY, self.start("--standby"))

    def living(self) -> list[Process]:
        """Returns the drivers that have not ended, the oldest first."""
        return [process for process in self._processes if process.code is None]

    def wait_for(self, text: str, process: Process) -> Process:
        """Waits until a driver has said something; fails at once when it has ended."""

        def look() -> bool:
            assert process.code is None, process.log.read_text()
            return process.has_said(text)

        wait_until(look, text, seen=process.log.read_text)
        return process

    def send(self, *bodies: str) -> None:
        """Sends a committed transaction for each body."""
        for body in bodies:
            half = self._wire.half(f"tx-{len(self.sent)}", body=body.encode())
            self._wire.end(COMMIT, half)
            self.sent.append(body)

    def delivered(self) -> list[str]:
        """Returns the bodies in the topic's table, of committed epochs alone."""
        lake = self._lake
        if not lake.exists():
            return []

        ids = lake.read("catalog", ["table_id"])["table_id"].to_pylist()
        tables = [f"topics/{table_id}" for table_id in ids]

        states = lake.read("epochs", ["epoch", "state"]).to_pylist()
        committed = {row["epoch"] for row in states if row["state"] == "committed"}

        return [
            row["body"].decode()
            for table in filter(lake.is_table, tables)
            for row in lake.read(table, ["epoch", "body"]).to_pylist()
            if row["epoch"] in committed
        ]

    def wait_for_sent(self, deadline_s: float = DEADLINE_S) -> None:
        """Waits until all that was sent is delivered; fails if a message is there twice."""
        wait_until(
            lambda: len(self.delivered()) >= len(self.sent),
            "all that was sent",
            deadline_s,
            seen=lambda: [self.delivered(), self._processes[-1].log.read_text()[-2_000:]],
        )
        assert sorted(self.delivered()) == sorted(self.sent)

    def owners(self) -> list[str]:
        """Returns who has planned each epoch, from the first on."""
        rows = Lake(self.settings.lake.location()).read("epochs", ["epoch", "state", "owner"])
        planned = [row for row in rows.to_pylist() if row["state"] == "planned"]
        return [row["owner"] for row in sorted(planned, key=lambda row: int(row["epoch"]))]

    def doctor(self) -> str:
        """Returns what `txlake doctor` says."""
        command = [sys.executable, "-m", "pipelines", "doctor", "--conf", str(self.conf)]
        wide = {**os.environ, "COLUMNS": "200"}
        said = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=wide, check=True
        )
        return said.stdout

    def check(self) -> None:
        """Checks that each message is there once, and the invariants of the lake."""
        assert sorted(self.delivered()) == sorted(self.sent)
        report = verify(Lake(self.settings.lake.location()))
        assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}

    def end(self) -> None:
        """Kills what still runs."""
        for process in self._processes:
            process.signal(signal.SIGCONT)
            process.end()


@contextlib.contextmanager
def drivers_of(
    settings: Settings, folder: Path, store: Mapping[str, str] | None = None
) -> Iterator[Drivers]:
    """Yields the drivers of one lake; kills them at the end."""
    drivers = Drivers(settings, folder, store)
    try:
        yield drivers
    finally:
        drivers.end()

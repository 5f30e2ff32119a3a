"""The programs of a chaos run: how each is started, with which settings and where it logs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from bench.chaos import consumer, producer, raw
from bench.chaos.names import CONSUMER, JOB, RAW
from bench.chaos.settings import dealt, of_cluster, settings_text
from tests.support.processes import Process

if TYPE_CHECKING:
    from bench.chaos.run import Chaos


class Programs:
    """Starts the programs of one run; each start has a number, and a log of its own."""

    def __init__(self, chaos: Chaos, master: str | None) -> None:
        self._chaos, self._master = chaos, master
        self._starts: Counter[str] = Counter()
        self.settings = chaos.folder / "job.toml"
        self.settings_dealt = 0

    def deal_settings(self, *, is_last: bool) -> None:
        """Writes other settings for the job's next start."""
        self.settings_dealt += 1
        chaos = self._chaos
        values = dealt(chaos.seed, self.settings_dealt, is_last)
        spark = {} if self._master is None else of_cluster(self._master)
        text = settings_text(values, chaos.lake, chaos.broker.bootstrap_servers, spark)
        self.settings.write_text(text, "utf-8")

    def start(self, name: str) -> Process:
        """Starts a program."""
        self._starts[name] += 1
        number = self._starts[name]
        module, arguments = self._command(name, f"{name}-{number}")
        log = self._chaos.folder / "logs" / f"{name}-{number:03}.log"
        return Process(module, arguments, log, self._chaos.folder / "temp")

    def _command(self, name: str, name_of_start: str) -> tuple[str, list[str]]:
        chaos = self._chaos
        of_start = ["--name", name_of_start, "--seed", str(chaos.seed)]
        of_lake = ["--lake", str(chaos.lake)]
        if name == JOB:
            return "pipelines", ["run", "--conf", str(self.settings)]
        if name == CONSUMER:
            seen = ["--seen", str(chaos.seen.path)]
            return consumer.__name__, [*of_lake, *seen, *of_start]
        is_raw = name == RAW
        journal = (chaos.raw_journal if is_raw else chaos.journal).path
        servers = ["--bootstrap-servers", chaos.broker.bootstrap_servers]
        arguments = [*servers, "--journal", str(journal), *of_start, *(of_lake if is_raw else [])]
        return (raw if is_raw else producer).__name__, arguments

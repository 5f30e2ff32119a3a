"""What a chaos run is made of: its folder, its broker, its drivers, and what was sent and seen."""

from __future__ import annotations

from pathlib import Path

from bench.chaos.drivers import Drivers
from bench.chaos.journal import Journal, Seen
from bench.chaos.kafka_consumer import SeenInKafka
from bench.chaos.names import DRIVERS
from bench.chaos.raw_journal import RawJournal
from bench.lake_store import LakeStore
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings, load
from storage.files.location import LakeLocation


class Stage:
    """The folder of one run, and all that its programs share."""

    def __init__(
        self,
        lake: Path,
        folder: Path,
        seed: int,
        store: LakeStore | None,
        drivers: int,
        *,
        is_published: bool,
    ) -> None:
        self.folder = folder.absolute()
        self.seed = seed
        self.is_published = is_published
        self.lake_section = {"path": str(lake.absolute())}
        if store is not None:
            self.lake_section = store.section(lake.name)

        for name in ("logs", "temp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

        self.conf = self.folder / "lake.toml"  # of all but the drivers: where the lake is
        self.journal = Journal(self.folder / "journal.sqlite")
        self.raw_journal = RawJournal(self.folder / "raw.sqlite")
        self.seen = Seen(self.folder / "seen.sqlite")
        self.seen_in_kafka = SeenInKafka(self.folder / "seen-in-kafka.sqlite")
        self.broker = Broker(self.folder / "kafka")
        self.drivers = Drivers(DRIVERS[:drivers])

    @property
    def location(self) -> LakeLocation:
        """Returns where the lake is; the run has to have begun."""
        return self.settings.lake.location()

    @property
    def settings(self) -> Settings:
        """Returns the settings of those that only read the lake; the run has to have begun."""
        return load(self.conf)

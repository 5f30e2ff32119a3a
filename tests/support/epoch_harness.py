"""Run epochs one by one over real Kafka and a real lake, at instants handed in.

What the job does, without its stream: a test says when an epoch begins and what the clock says.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pipelines.epoch.checks import KafkaCheckSender
from pipelines.epoch.land import Lander, SparkLander
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.runner import EpochRunner
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import Partition
from pipelines.settings import Settings
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from tests.support.job import plain_state
from tests.support.local_landing import LocalLander

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWNER = "rig"
# What differs between two runs of one epoch: who ran it, and how long it took.
UNLIKE = {
    "lake": {"lake_id", "created_at"},
    "epochs": {"step_ms", "work", "written_at", "digest"},
}


class EpochHarness:
    """The epochs of one lake. A new one is a new process: it knows what the lake says.

    Input: a Spark session, or None: this process lands by itself; a `lake` and an `asker` that a
    test watches, else the job's own.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        settings: Settings,
        lake: Lake | None = None,
        asker: Callable[..., KafkaCheckSender] = KafkaCheckSender,
        owner: str = OWNER,
    ) -> None:
        self.now_ms = 0
        self.owner = owner
        self.lake = lake or Lake(settings.lake.path, is_driver=True)

        self._lander: Lander = SparkLander(spark) if spark else LocalLander()
        self._kafka = KafkaAdmin(settings, settings.kafka.topics())
        self._asker = asker(
            settings.kafka.bootstrap_servers,
            settings.kafka.client,
            settings.kafka.check_topic_prefix,
            settings.transaction.ask_timeout_ms,
            settings.transaction.message_bytes_max,
        )

        self.epochs = EpochRunner(
            self._lander,
            self.lake,
            self._kafka,
            self._asker,
            EpochSettings.of(settings, owner, self._lander.parallelism),
            lambda: self.now_ms,
        )

    def __enter__(self) -> EpochHarness:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.epochs.close()
        self._asker.close()

    def start(self) -> Plan | None:
        """Do what a start does. Output: the plan of the epoch that was finished, if any."""
        if not self.lake.exists():
            self._kafka.create_missing()
            self.lake.create(dt.datetime.now(dt.timezone.utc))
        progress = self.epochs.resume()
        self.epochs.check_identity(progress.newest)
        return self.epochs.recover()

    def run(self, at_ms: int, held_back: Collection[str] = ()) -> Plan | None:
        """Run one epoch over all that Kafka has, but for what is new in the topics held back."""
        self.now_ms = at_ms
        return self.epochs.run(self.waiting(held_back))

    def run_to(self, at_ms: int, ends: Mapping[Partition, int]) -> None:
        """Run one epoch over what Kafka has up to some offsets."""
        self.now_ms = at_ms
        self.epochs.run(ends)

    def waiting(self, held_back: Collection[str] = ()) -> dict[Partition, int]:
        """Return where the records of the next epoch end."""
        starts = self.epochs.start_offsets()
        ends = self._kafka.end_offsets(self._kafka.partitions())
        return {
            place: starts[place] if place[0] in held_back else end for place, end in ends.items()
        }

    def state(self) -> dict[str, list[Any]]:
        """Return the state in memory as sorted rows."""
        return plain_state(self.epochs.state)


def tables_of(path: Path) -> list[str]:
    """Name all tables of a lake."""
    logs = path.glob("**/_delta_log")
    return sorted(str(log.parent.relative_to(path)) for log in logs)


def rows_of(path: Path) -> dict[str, list[str]]:
    """Return all rows of all tables of a lake, sorted; without what may differ between two runs."""
    lake = Lake(str(path))
    found = {}
    for table in tables_of(path):
        rows = lake.read(table)
        kept = [name for name in rows.column_names if name not in UNLIKE.get(table, set())]
        plain = rows.select(kept).to_pylist()
        for reached in (one for row in plain for one in row.get("tables") or ()):
            del reached["version"]  # a rebuilt lake has the same rows in fewer Delta commits
        found[table] = sorted(map(repr, plain))
    return found


def decided_rows_of(path: Path) -> dict[str, list[str]]:
    """Return all rows of a lake but those of its epochs and of consumers."""
    kept = ("epochs", "lake", "consumer_offsets")
    return {table: rows for table, rows in rows_of(path).items() if table not in kept}

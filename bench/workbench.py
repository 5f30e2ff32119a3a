"""What the figures share: a broker, jobs and epochs on lakes of their own, records that wait.

Everything is in one folder, which is removed at the end. A figure names its lakes and topics; the
same name is the same lake.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.job_process import JobProcess, toml
from bench.lake_store import LakeStore
from bench.sample_data import GROUP, Mix, Writer, Written
from bench.sizes import Size
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings, parse
from storage.lake.lake import Lake
from txlake import protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = 4


@dataclasses.dataclass
class Workbench:
    """One benchmark run.

    Input: `profile_folder`: jobs run under the profiler and write there; `store`: where its lakes
    are, if not on disk.
    """

    size: Size
    folder: Path
    broker: Broker
    say: Callable[[str], None]
    profile_folder: Path | None = None
    measured: dict[Any, Any] = dataclasses.field(default_factory=dict)  # what figures share
    _writers: dict[str, Writer] = dataclasses.field(default_factory=dict)
    _waiting: dict[tuple[int, Mix], tuple[str, Written]] = dataclasses.field(default_factory=dict)
    _numbers: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))
    store: LakeStore | None = None
    own_spark: SparkSession | None = None  # for epochs that run in this process, without a stream

    def settings(
        self, lake: str, topics: str | None = None, **sections: dict[str, Any]
    ) -> Settings:
        """Return the default settings on a lake and Kafka topics of these names."""
        return parse(self._sections(lake, topics or lake, sections), "bench")

    def conf_text(self, lake: str) -> str:
        """Return the same settings as a file of `txlake run`."""
        return toml(self._sections(lake, lake, {}))

    def _sections(
        self, lake: str, topics: str, sections: dict[str, dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        values: dict[str, dict[str, Any]] = {
            "lake": self._lake_section(lake),
            "kafka": {
                "bootstrap_servers": self.broker.bootstrap_servers,
                "half_topic": f"{topics}-half",
                "op_topic": f"{topics}-op",
                "schedule_topic": f"{topics}-schedule",
                "admin_topic": f"{topics}-admin",
                "check_topic_prefix": f"{topics}-check-",
                "queues": QUEUES,
            },
        }

        for section, extra in sections.items():
            values[section] = {**values.get(section, {}), **extra}
        return values

    def _lake_section(self, lake: str) -> dict[str, Any]:
        if self.store is not None:
            return self.store.section(lake)
        return {"path": str(self.folder / "lakes" / lake)}

    def files_of(self, lake: Lake) -> Path:
        """Return where a lake's files are on this machine, also those of its S3 server."""
        return Path(lake.path) if self.store is None else self.store.folder(lake.path)

    def job(self, lake: str, topics: str | None = None, **sections: dict[str, Any]) -> JobProcess:
        """Return the job as a process, not started yet; under the profiler where that was asked."""
        values = self._sections(lake, topics or lake, sections)
        folder, temp = self.folder / "jobs", self.folder / "temp"
        folder.mkdir(exist_ok=True)
        temp.mkdir(exist_ok=True)

        conf = folder / f"{lake}.toml"

        if self.profile_folder is None:
            conf.write_text(toml(values), "utf-8")
            return JobProcess(parse(values, "bench"), conf, temp)

        into = self.profile_folder / lake
        events = into / "spark-events"
        events.mkdir(parents=True, exist_ok=True)
        values.setdefault("spark", {}).update(
            {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": events.as_uri(),
                "spark.eventLog.rolling.enabled": "false",
                "spark.eventLog.compress": "false",
            }
        )

        conf.write_text(toml(values), "utf-8")
        return JobProcess(
            parse(values, "bench"),
            conf,
            temp,
            module="bench.profiled_job",
            arguments=("--into", str(into)),
        )

    def writer(self, topics: str) -> Writer:
        """Return the one writer into topics of this name; they are made."""
        if topics not in self._writers:
            settings = self.settings(topics)
            names = settings.kafka.topics()
            KafkaAdmin(settings, names).create_missing()
            self._make_check_topic(settings)
            self._writers[topics] = Writer(self.broker.bootstrap_servers, names, QUEUES)
        return self._writers[topics]

    def waiting(self, count: int, mix: Mix | None = None) -> tuple[str, Written]:
        """Return topics in which so many transactions wait; written once, read by many jobs."""
        mix = mix or Mix()
        known = self._waiting.get((count, mix))
        if known is None:
            topics = f"waiting-{len(self._waiting) + 1}"
            self.say(f"writing {count} transactions into Kafka")
            known = topics, self.writer(topics).transactions(count, mix)
            self._waiting[count, mix] = known
        return known

    def new_name(self, name: str) -> str:
        """Return a name for a lake and topics that nothing has yet."""
        return f"{name}-{next(self._numbers)}"

    def forget(self, lake: str | Lake) -> None:
        """Delete a lake that is no longer needed: a full run writes many gigabytes."""
        known = lake if isinstance(lake, Lake) else Lake(self.settings(lake).lake.location())
        shutil.rmtree(self.files_of(known), ignore_errors=True)

    def _make_check_topic(self, settings: Settings) -> None:
        """Make the topic on which the sample data's group is asked, as its producers would."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        name = protocol.check_topic(GROUP, settings.kafka.check_topic_prefix)
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        for made in admin.create_topics([NewTopic(name, 1)]).values():
            made.result(timeout=10)

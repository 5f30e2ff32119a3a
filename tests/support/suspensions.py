"""A driver suspends itself at a write of an epoch, another commits ten epochs, the first goes on.

The epoch is the third of `tests/support/crash_scenario.py`, which writes into every table. The
drivers are real processes that stop themselves by SIGSTOP; they land without Spark. Tests take
some of the writes, `python -m bench.suspensions` all.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka.cimpl import NewTopic

from pipelines.job.election import Election
from pipelines.job.leadership import Leadership
from pipelines.job.maintenance import MaintenanceScheduler
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.connection import Partition
from pipelines.settings import Settings
from storage.files.data_files import DataFile
from storage.files.location import lake_location
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.maintenance import merge as merging
from storage.maintenance.maintenance import Maintenance
from storage.verify.run import verify
from tests.support.crash_scenario import ANSWERING, WRITES, CrashScenario
from tests.support.driver_processes import driver, stop_here
from tests.support.epoch_harness import EpochHarness, decided_rows_of
from tests.support.fault_points import FaultPoints
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.maintenance_rounds import NOW_GONE, parquet_files
from tests.support.wait import DEADLINE_S
from txlake.protocol import COMMIT

BEFORE, WITHIN, AFTER = "about to be done", "drafted", "just done"
CASES: Final = [(write, mode) for write in WRITES for mode in (BEFORE, AFTER)]
# On a disk an entry of a log is drafted first, and then gets its name.
DISK_CASES: Final = [(write, WITHIN) for write in WRITES if write.startswith("append ")]
IN_A_MERGE, BEFORE_A_DELETION = "in a merge", "before a deletion"
MAINTENANCE: Final = (IN_A_MERGE, BEFORE_A_DELETION)
EPOCHS: Final = 10  # that another driver commits meanwhile
LAST: Final = 3 + EPOCHS
Rows = dict[str, list[str]]


@dataclass
class Suspension(FaultPoints):
    """A watch whose process suspends itself once, before or after a write."""

    def around(self, name: str, write: Callable[[], Any]) -> Any:
        """Does a write; the process stops around the one that it watches for."""
        if name != self.at:
            return write()
        self.at = ""
        if self.mode == BEFORE:
            stop_here()
            return write()
        if self.mode == WITHIN:
            _stop_before_a_link()
            return write()
        done = write()
        stop_here()
        return done


def _stop_before_a_link() -> None:
    """The process stops once, when it has drafted an entry of a log and has not yet named it."""
    link = os.link
    first = threading.Lock()  # tables are written side by side

    def stop_and_link(*names: Any, **options: Any) -> None:
        if first.acquire(blocking=False):
            stop_here()
        link(*names, **options)

    os.link = stop_and_link


@dataclass
class LightStory(CrashScenario):
    """The story, with ten epochs more, for processes without Spark.

    `uri` and `options`: of a store, where the folder is a server's; `ends`: where epochs end.
    """

    uri: str = ""
    options: dict[str, str] = field(default_factory=dict)
    ends: dict[int, dict[Partition, int]] = field(default_factory=dict)

    def of(self, folder: Path) -> Settings:
        """Returns the settings of a lake in a folder of the story's."""
        path = f"{self.uri}/{folder.relative_to(self.folder)}" if self.uri else str(folder)
        lake = replace(self.settings.lake, path=path, store=self.options)
        return replace(self.settings, lake=lake)

    def rig(self, folder: Path, watch: FaultPoints | None = None, **stream: Any) -> EpochHarness:
        """Returns the epochs of a lake, for a process that lands without Spark."""
        assert not stream
        settings = self.of(folder)
        watch = watch or FaultPoints()
        lake = watch.lake(settings.lake.location())
        return EpochHarness(None, settings, lake, watch.asker, f"process-{os.getpid()}")

    def send_more(self) -> None:
        """Sends what the last ten epochs land, and remembers where each epoch ends."""
        wire = KafkaWriter(self.settings)
        kafka = KafkaAdmin(self.settings, self.settings.kafka.topics())
        for number in range(3, LAST + 1):
            if number > 3:
                wire.end(COMMIT, wire.half(f"more{number}", body=b"more"))
            self.ends[number] = kafka.end_offsets(kafka.partitions())

    def go_on(self, rig: EpochHarness, to_epoch: int) -> None:
        """Runs what is left of the story, from wherever the lake is."""
        last = rig.epochs.last
        assert last is not None
        for number in range(3, to_epoch + 1):
            if last.epoch_at < self.at(number):
                rig.run_to(self.at(number), self.ends[number])

    def log(self, name: str) -> Path:
        """Returns where a process writes what it says."""
        return self.folder / f"{name}.log"

    def copied(self, name: str) -> Path:
        """Returns a copy of the lake in which the third epoch is still to come."""
        shutil.copytree(self.folder / "before", self.folder / name)
        return self.folder / name


def story_of(
    settings: Settings, folder: Path, uri: str = "", options: dict[str, str] | None = None
) -> LightStory:
    """Returns a story whose first two epochs are run, in the folder `before`."""
    admin = admin_client(settings.kafka.bootstrap_servers)
    check_topic = f"{settings.kafka.check_topic_prefix}{ANSWERING}"
    for future in admin.create_topics([NewTopic(check_topic, 1)]).values():
        future.result(DEADLINE_S)
    story = LightStory(None, settings, folder, int(time.time() * 1000), uri, options or {})
    with driver(story.log("begin"), _begin, story) as first:
        first.require_end(0)
    story.send_more()
    return story


def reference_of(story: LightStory) -> Rows:
    """Returns the rows of a sound lake whose driver was never suspended."""
    folder = story.copied("reference")
    with driver(story.log("reference"), _run_all, story, folder) as alone:
        alone.require_end(0)
    _require_sound(story, folder)
    return decided_rows_of(folder)


def require_no_more_writes(story: LightStory, reference: Rows, write: str, mode: str) -> str:
    """Suspends a driver at a write, and checks what it does when it goes on.

    Output: what the driver said in the end.
    """
    name = f"{write} {mode}".replace("/", "-").replace(" ", "-")
    folder = story.copied(name)
    watch = Suspension(write, mode)

    with driver(story.log(f"{name}-1"), _run_all, story, folder, watch) as first:
        first.wait_until_stopped()
        with driver(story.log(f"{name}-2"), _run_all, story, folder) as second:
            second.require_end(0)

        logs = _logs(folder)
        first.go_on()
        first.require_end(1)
        said = first.said().strip()

    _require_same_logs(folder, logs)
    _require_same(folder, reference)
    shutil.rmtree(folder)

    return said


def require_no_maintenance(story: LightStory, reference: Rows, step: str) -> str:
    """Suspends a driver in a step of maintenance that another then takes, too.

    Checks that the first replaces and deletes no file when it goes on.
    Output: what the driver said in the end.
    """
    name = step.replace(" ", "-")
    folder = story.copied(name)

    with driver(story.log(f"{name}-1"), _maintain, story, folder, step) as first:
        first.wait_until_stopped()
        with driver(story.log(f"{name}-2"), _run_all_and_maintain, story, folder) as second:
            second.require_end(0)

        logs = _logs(folder)
        files = parquet_files(folder)

        first.go_on()
        first.require_end(1)
        said = first.said().strip()

    assert parquet_files(folder) == files
    _require_same_logs(folder, logs)
    _require_same(folder, reference)
    _require_sound(story, folder)

    shutil.rmtree(folder)
    return said


def _require_same(folder: Path, reference: Rows) -> None:
    rows = decided_rows_of(folder)
    assert rows.keys() == reference.keys()
    for table, expected in reference.items():
        assert rows[table] == expected, table
    epochs = Lake(str(folder)).read("epochs", ["epoch", "state"]).to_pylist()
    states = [(row["epoch"], row["state"]) for row in epochs]
    both = ("planned", "committed")
    assert sorted(states) == sorted((n, state) for n in range(1, LAST + 1) for state in both)


def _require_sound(story: LightStory, folder: Path) -> None:
    lake = story.of(folder).lake
    report = verify(Lake(lake_location(lake.path, lake.store)))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}


def _logs(folder: Path) -> dict[str, bytes]:
    """Returns the logs of all tables: each commit, and so each version and each row.

    Drafts of entries are left out, which no reader sees: a suspended driver's threads are within
    their own writes, and remove their drafts when they go on, or leave them when it ends first.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("_delta_log/*")
        if path.is_file() and not path.name.startswith("_commit_")
    }


def _require_same_logs(folder: Path, logs: dict[str, bytes]) -> None:
    now = _logs(folder)
    changed = sorted(name for name in now.keys() | logs if now.get(name) != logs.get(name))
    assert not changed, f"the first driver wrote on: {changed}"


def require_is_stopped(said: str) -> None:
    """Checks that a driver's last words are the one sentence of one that lost an epoch."""
    who = r"epoch \d+ was (planned|committed) by (another process|\S+)"
    assert re.fullmatch(f"Error: {who}: another driver writes this lake.*", said), said


def require_is_inactive(said: str) -> None:
    """Checks that a driver's last words are the one sentence of one that lost the lake."""
    assert re.fullmatch(r"Error: \S+ is the active driver of the lake \S+ now: .*", said), said


def _begin(story: LightStory) -> None:
    story.begin(KafkaWriter(story.settings), story.base_ms)


def _run_all(story: LightStory, folder: Path, watch: FaultPoints | None = None) -> None:
    """Runs the story to its end; finishes what another has planned, as a start does."""
    with story.rig(folder, watch) as rig:
        rig.start()
        story.go_on(rig, LAST)


def _run_all_and_maintain(story: LightStory, folder: Path) -> None:
    """Runs the story to its end, and maintains the lake after it."""
    with story.rig(folder) as rig:
        rig.start()
        story.go_on(rig, LAST)
        _keep_in_shape(story.of(folder), rig.owner)


def _maintain(story: LightStory, folder: Path, step: str) -> None:
    """Runs the third epoch and maintains the lake after it; stops in a step of that."""
    if step == IN_A_MERGE:
        write = merging._write

        def write_and_stop(lake: Lake, table: str, name: str, rows: Any) -> DataFile:
            merged = write(lake, table, name, rows)
            stop_here()
            return merged

        merging._write = write_and_stop
    else:
        delete = Maintenance._delete

        def stop_and_delete(self: Maintenance, folder: Any, paths: list[str]) -> None:
            if paths:
                stop_here()
            delete(self, folder, paths)

        Maintenance._delete = stop_and_delete  # type: ignore[method-assign]

    with story.rig(folder) as rig:
        rig.start()
        story.go_on(rig, 3)
        _keep_in_shape(story.of(folder), rig.owner)


def _keep_in_shape(settings: Settings, owner: str) -> None:
    lake = Lake(settings.lake.location(), is_driver=True)
    election = Election(settings.kafka, lake.path, owner)  # the lake alone is asked
    owned = Leadership(lake, owner, election, threading.Event()).require_newest_plan_is_ours
    plan = read_progress(lake).last
    assert plan is not None

    keeper = MaintenanceScheduler(
        lake, NOW_GONE, 0, settings.kafka.admin_topic, lambda: False, owned
    )
    keeper.after_batch(plan, 600.0)

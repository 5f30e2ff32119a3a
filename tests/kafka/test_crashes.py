"""A crash at every write of an epoch: the next start makes the lake of a run that did not crash."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from pipelines.ask import Asker
from pipelines.broker import Broker
from pipelines.settings import Settings
from storage.errors import OwnerError
from storage.lake import Lake
from storage.schemas import TABLES
from storage.verify.run import verify
from tests.job import settings_for
from tests.rig import Rig, rows_of, tables_of
from tests.wire import Wire, half_headers
from txlake.protocol import CANCEL, COMMIT, CREATE_TOPIC, ROLLBACK, UNKNOWN

Unique = Callable[[str], str]
ANSWERING, SILENT = "answering", "silent"  # a producer group with a check topic, one without

# Every write of the epoch that `Story` crashes; a test holds the list against what really happens.
WRITES = (
    "append epochs planned",
    "append half",
    "append schedule",
    "append catalog",
    "create topics/2",
    "create topics/4",
    "append op",
    "append admin",
    "append outcomes",
    "append conflicts",
    "append delayed",
    "append deliveries",
    "append topics/1",
    "append topics/2",
    "append topics/3",
    "append topics/4",
    "send checks",
    "append checks",
    "append waiting",
    "append pending",
    "append epochs committed",
)
MODES = ("crash before", "crash after", "error after")
CASES = [(write, mode) for write in WRITES for mode in MODES]

# Writes that come one after the other; the others go on beside them.
IN_ORDER = (
    "append epochs planned",
    "append catalog",
    "append op",
    "append outcomes",
    "append deliveries",
    "append checks",
    "append epochs committed",
)


def committed(epoch: int) -> pc.Expression:
    return (pc.field("epoch") == epoch) & (pc.field("state") == "committed")


class Crash(BaseException):
    """What a test raises in place of a crash."""


class SeenError(Exception):
    """The write happened, but its caller saw an error."""


@dataclass
class Watch:
    """Sees every write; raises at one of them when told to."""

    at: str = ""
    mode: str = ""
    seen: list[str] = field(default_factory=list)
    take_over: Callable[[], None] | None = None

    def around(self, name: str, write: Callable[[], Any]) -> Any:
        self.seen.append(name)
        if name != self.at:
            return write()
        if self.take_over is not None:
            self.at = ""
            self.take_over()
            return write()
        if self.mode == "crash before":
            raise Crash(name)
        write()
        raise SeenError(name) if self.mode == "error after" else Crash(name)

    @contextmanager
    def watching(self, patch: pytest.MonkeyPatch) -> Iterator[Watch]:
        """Wrap all that writes."""
        append, create, add, ask = Lake.append, Lake.create_table, Lake.add_files, Asker.ask

        def watched_append(lake: Lake, table: str, rows: Any, epoch: int | None = None) -> Any:
            if rows.num_rows == 0:
                return append(lake, table, rows, epoch)
            state = f" {rows['state'][0].as_py()}" if table == "epochs" else ""
            return self.around(f"append {table}{state}", lambda: append(lake, table, rows, epoch))

        def watched_add(lake: Lake, table: str, files: Any, epoch: int) -> Any:
            return self.around(f"append {table}", lambda: add(lake, table, files, epoch))

        with patch.context() as patched:
            patched.setattr(Lake, "append", watched_append)
            patched.setattr(
                Lake,
                "create_table",
                lambda lake, table: self.around(f"create {table}", lambda: create(lake, table)),
            )
            patched.setattr(Lake, "add_files", watched_add)
            patched.setattr(
                Asker,
                "ask",
                lambda asker, lake, due: self.around("send checks", lambda: ask(asker, lake, due)),
            )
            yield self


@dataclass
class Story:
    """Two epochs that went well, and one over whose every write a test may stumble."""

    spark: SparkSession
    settings: Settings
    folder: Path
    base_ms: int = 0

    def at(self, epoch: int) -> int:
        """Return the T of an epoch."""
        return self.base_ms + 600_000 * epoch  # ahead of when the broker stores, however slow

    def rig(self, folder: Path) -> Rig:
        return Rig(self.spark, self.of(folder))

    def of(self, folder: Path) -> Settings:
        return replace(self.settings, lake=replace(self.settings.lake, path=str(folder)))

    def begin(self, wire: Wire, base_ms: int) -> None:
        """Run the first two epochs."""
        self.base_ms = base_ms
        with self.rig(self.folder / "before") as rig:
            rig.start()
            for n in range(4):  # all but 2 stay open: asked in epoch 1, given up in epoch 2
                wire.half(f"first{n}", 0, b"%d" % n, group=ANSWERING)
            wire.end(COMMIT, 2, group=ANSWERING)
            wire.end(COMMIT, wire.half("odd", 1, topic="odd", REAL_QID="77"), queue=1)
            rig.run(self.at(1))
            late = wire.half("late", 1, b"late", group=ANSWERING, DELAY="2")
            wire.end(COMMIT, late, queue=1, group=ANSWERING)
            soon = wire.half("soon", 1, b"soon", group=ANSWERING, DELAY="3")
            wire.end(COMMIT, soon, queue=1, group=ANSWERING)
            cancelled = wire.half("cancelled", 1, b"no", group=ANSWERING, DELAY="18")
            wire.end(COMMIT, cancelled, queue=1, group=ANSWERING)
            for n in range(3):  # asked in epoch 2; nobody hears the silent group's: again in 3
                wire.half(f"second{n}", 0, b"2%d" % n, group=SILENT if n else ANSWERING)
            rig.run(self.at(2))
        self._third_epoch(wire, cancelled)

    def _third_epoch(self, wire: Wire, cancelled: int) -> None:
        """Send what fills every table in the epoch that is to crash."""
        kafka = self.settings.kafka
        wire.end(UNKNOWN, 3, group=ANSWERING)
        wire.end(COMMIT, 2, group=ANSWERING)  # again: a conflict
        for n in range(6):
            offset = wire.half(f"third{n}", n % 2, b"3%d" % n, topic="third")
            wire.end(ROLLBACK if n == 5 else COMMIT, offset, queue=n % 2)
        wire.end(COMMIT, wire.half("odd2", 1, topic="odd", REAL_QID="88"), queue=1)
        wire.end(COMMIT, wire.half("held", 1, DELAY="9"), queue=1)
        wire.end(COMMIT, 1_000_000)  # names a half still to come: it waits
        wire.send(kafka.half_topic, 0, b"raw", [("x", b"y")], key=b"k")
        wire.send(kafka.schedule_topic, 0, b"plain", half_headers("s1")[3:])
        wire.send(kafka.schedule_topic, 1, b"timed", [*half_headers("s2")[3:], ("DELAY", b"18")])
        wire.command(CANCEL, f"half:1-{cancelled}")
        wire.command(CREATE_TOPIC, "topic:orders:9")

    def go_on(self, rig: Rig, to_epoch: int) -> None:
        """Run what is left of the story, from wherever the lake is."""
        last = rig.epochs.last
        assert last is not None
        for number in range(3, to_epoch + 1):
            if last.epoch_at < self.at(number):
                rig.run(self.at(number))


@pytest.fixture(scope="module")
def story(
    broker: Broker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    import time

    folder = tmp_path_factory.mktemp("crashes")
    settings = settings_for(
        broker,
        folder / "before",
        f"crashes-{time.time_ns()}",
        transaction={"check_max": 1},
        lake={"pending_snapshot_epochs": 3},
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    check_topic = f"{settings.kafka.check_topic_prefix}{ANSWERING}"
    for future in admin.create_topics([NewTopic(check_topic, 1)]).values():
        future.result(10)
    story = Story(spark, settings, folder)
    story.begin(Wire(settings), int(time.time() * 1000))
    yield story
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Reference:
    """The lake of a run without a crash, after the epoch in question and after the next one."""

    rows: dict[str, list[str]]
    later_rows: dict[str, list[str]]
    writes: list[str]


@pytest.fixture(scope="module")
def reference(story: Story) -> Reference:
    folder = story.folder / "reference"
    shutil.copytree(story.folder / "before", folder)
    watch = Watch()
    with pytest.MonkeyPatch.context() as patch, story.rig(folder) as rig, watch.watching(patch):
        rig.start()
        rig.run(story.at(3))
        writes, rows = list(watch.seen), rows_of(folder)
        story.go_on(rig, 4)
    return Reference(rows, rows_of(folder), writes)


def test_every_write_of_the_epoch_has_its_crash(reference: Reference) -> None:
    assert sorted(reference.writes) == sorted(WRITES)


def test_the_lake_that_all_others_must_equal_is_sound(story: Story, reference: Reference) -> None:
    report = verify(Lake(str(story.folder / "reference")))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}


def test_the_story_fills_every_table(reference: Reference) -> None:
    empty = {table for table, rows in reference.rows.items() if not rows}
    assert empty == set()


@pytest.mark.parametrize(("write", "mode"), CASES)
def test_a_crash_at_a_write_changes_no_row(
    story: Story,
    reference: Reference,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: str,
    mode: str,
) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(story.folder / "before", folder)
    with story.rig(folder) as crashed:
        crashed.start()
        watch = Watch(write, mode)
        with watch.watching(monkeypatch), pytest.raises((Crash, SeenError), match=write):
            crashed.run(story.at(3))
        if mode == "error after":  # the same process goes on
            crashed.start()
            story.go_on(crashed, 3)
            state = crashed.state()
    if mode != "error after":
        with story.rig(folder) as restarted:
            restarted.start()
            story.go_on(restarted, 3)
            state = restarted.state()
    found = rows_of(folder)
    assert found.keys() == reference.rows.keys()
    for table, rows in reference.rows.items():
        assert found[table] == rows, table
    with story.rig(folder) as rebuilt:
        assert rebuilt.start() is None
        assert rebuilt.state() == state


@pytest.mark.parametrize("write", WRITES)
def test_a_driver_that_another_has_overtaken_writes_nothing_and_stops(
    story: Story, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """Suspended at a write, while another driver, without a lock, finishes the epoch."""
    folder = tmp_path / "lake"
    shutil.copytree(story.folder / "before", folder)

    def take_over() -> None:
        with story.rig(folder) as other:
            other.start()
            story.go_on(other, 3)

    with story.rig(folder) as asleep:
        asleep.start()
        watch = Watch(write, take_over=take_over)
        with watch.watching(monkeypatch), pytest.raises(OwnerError, match=r"^epoch 3 was "):
            asleep.run(story.at(3))
    found = rows_of(folder)
    for table, rows in reference.rows.items():
        assert found[table] == rows, table
    with story.rig(folder) as rig:
        assert rig.start() is None
        story.go_on(rig, 4)
    assert rows_of(folder) == reference.later_rows


@pytest.mark.parametrize("at", ["", "append half", "append topics/2", "append topics/4"])
def test_deliveries_by_tasks_of_spark_give_the_same_rows(
    story: Story, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    folder = tmp_path / "lake"
    shutil.copytree(story.folder / "before", folder)
    settings = story.of(folder)
    by_tasks = replace(settings, stream=replace(settings.stream, deliveries="executors"))
    with Rig(story.spark, by_tasks) as rig:
        rig.start()
        with (
            Watch(at, "crash after").watching(monkeypatch),
            pytest.raises(Crash) if at else nullcontext(),
        ):
            rig.run(story.at(3))
    with Rig(story.spark, by_tasks) as rig:
        rig.start()
        assert rows_of(folder) == reference.rows
        (row,) = Lake(str(folder)).read("epochs", where=committed(3)).to_pylist()
        assert at or dict(row["work"])["delivered_tasks"] >= 1


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_while_the_lake_is_made_is_made_good(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    writes = [*(f"create {table}" for table in TABLES), "append lake"]
    for number, write in enumerate(writes):
        folder = tmp_path / str(number)
        with story.rig(folder) as crashed:
            with Watch(write, mode).watching(monkeypatch), pytest.raises((Crash, SeenError)):
                crashed.start()
            if mode == "error after":
                crashed.start()
        if mode != "error after":
            with story.rig(folder) as restarted:
                restarted.start()
        assert tables_of(folder) == sorted(TABLES), write
        assert len(Lake(str(folder)).read("lake")) == 1, write


def test_a_crash_of_the_epoch_that_finishes_another_changes_no_row(
    story: Story, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crashes in the epoch, then in its recovery, again and again, one step further each time."""
    folder = tmp_path / "lake"
    shutil.copytree(story.folder / "before", folder)
    crashes = 0
    for write in IN_ORDER:
        with story.rig(folder) as rig, Watch(write, "crash after").watching(monkeypatch):
            try:
                rig.start()
                story.go_on(rig, 4)
            except Crash:
                crashes += 1
    assert crashes == len(IN_ORDER)
    with story.rig(folder) as rig:
        rig.start()
        story.go_on(rig, 4)
    assert rows_of(folder) == reference.later_rows

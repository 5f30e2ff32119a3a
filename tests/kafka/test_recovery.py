"""A driver that dies between two writes: the next one finishes the epoch, nothing twice.

test_crashes.py has every write; here the whole job starts again, its stream too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.epoch import runner as epoch
from pipelines.epoch import write
from pipelines.local_broker.broker import Broker
from storage.lake import epoch_log
from tests.support.job import Job, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from txlake.protocol import COMMIT, ROLLBACK

Unique = Callable[[str], str]


class Crash(Exception):
    """What a test raises in place of a crash."""


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """The job uses the run's one Spark session."""


def _dies(original: Callable[..., Any], when: str, is_it: Callable[..., bool]) -> Any:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not is_it(*args, **kwargs):
            return original(*args, **kwargs)
        if when == "after":
            original(*args, **kwargs)
        raise Crash(f"{when} {original.__qualname__}")

    return wrapped


POINTS: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "planned row": (epoch.Lake, "append", lambda lake, table, *_: table == "epochs"),
    "topic table": (write.EpochWriter, "deliver", lambda *_: True),
    "committed row": (epoch_log, "committed_row", lambda *_: True),
}


@pytest.mark.parametrize(
    ("point", "when"),
    [("planned row", "after"), ("topic table", "after"), ("committed row", "before")],
)
def test_an_epoch_that_died_is_finished_by_the_next_start(
    broker: Broker,
    tmp_path: Path,
    unique: Unique,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    when: str,
) -> None:
    settings = settings_for(broker, tmp_path / "lake", unique("crash"))
    wire = KafkaWriter(settings)
    job = Job(settings)
    owner, name, is_it = POINTS[point]
    with monkeypatch.context() as patch:
        job.prepare_topics()
        for n in range(6):
            offset = wire.half(f"tx{n}", n % 2, b"%d" % n, topic=f"t{n % 3}")
            wire.end(ROLLBACK if n == 5 else COMMIT, offset, queue=n % 2)
        patch.setattr(owner, name, _dies(getattr(owner, name), when, is_it))
        job.start()
        job.wait_until_dead()
        assert isinstance(job.error, Crash), job.error
    with running(settings) as job:
        job.wait_for(lambda: job.plans or job.driver.epochs.last, "an epoch")  # type: ignore[union-attr]
        wire.end(COMMIT, wire.half("later", 0, b"later", topic="t0"))
        job.wait_for(lambda: len(job.messages("t0")) == 3, "the message sent after the crash")
    bodies = {topic: [row["body"] for row in job.messages(topic)] for topic in ("t0", "t1", "t2")}
    assert {topic: sorted(found) for topic, found in bodies.items()} == {
        "t0": [b"0", b"3", b"later"],
        "t1": [b"1", b"4"],
        "t2": [b"2"],
    }
    for table, count in (("half", 7), ("op", 7), ("outcomes", 7), ("catalog", 3)):
        assert len(job.rows(table)) == count, table
    states = [(row["epoch"], row["state"]) for row in job.rows("epochs")]
    assert len(states) == len(set(states)), "an epoch is planned once and committed once"

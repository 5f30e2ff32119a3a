"""`txlake run` and spark-submit as processes of their own, and what other readers see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import duckdb
import polars as pl
import psutil
import pytest
from deltalake import DeltaTable

from pipelines.local_broker.broker import Broker
from storage.errors import LakeLockedError
from storage.files.location import lake_location
from storage.lake.lock import LakeLock
from tests.support.class_archive import quick_java
from tests.support.job import Job, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.wait import DEADLINE_S, wait_until
from txlake.protocol import COMMIT

Unique = Callable[[str], str]
ROOT = Path(__file__).parent.parent.parent
TXLAKE = [sys.executable, "-m", "pipelines"]


def write_conf(broker: Broker, folder: Path, name: str) -> Path:
    path = folder / "job.toml"
    path.write_text(
        f"""
[lake]
path = "{folder / "lake"}"
[kafka]
bootstrap_servers = "{broker.bootstrap_servers}"
half_topic = "{name}-half"
op_topic = "{name}-op"
schedule_topic = "{name}-schedule"
admin_topic = "{name}-admin"
check_topic_prefix = "{name}-check-"
queues = 2
[stream]
trigger_interval_ms = 200
"""
    )
    return path


def lock_is_free(lake: str) -> bool:
    try:
        LakeLock(lake_location(lake), "test").release()
    except LakeLockedError:
        return False
    return True


@contextmanager
def process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= quick_java(log.parent / "temp")
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()
            started.wait(DEADLINE_S)


# Of spark-submit the signal goes to the JVM, which waits for Python.
@pytest.mark.parametrize("command", ["run", "spark-submit"])
def test_the_job_runs_from_the_command_line_until_sigterm(
    broker: Broker, tmp_path: Path, unique: Unique, command: str
) -> None:
    name = unique("cli")
    conf = write_conf(broker, tmp_path, name)
    settings = settings_for(broker, tmp_path / "lake", name)
    job = Job(settings)
    job.prepare_topics()
    wire = KafkaWriter(settings)
    for n in range(3):
        wire.end(COMMIT, wire.half(f"tx{n}", body=b"%d" % n))
    log = tmp_path / "job.log"
    with process([*TXLAKE, command, "--conf", str(conf)], log) as running:

        def messages() -> bool:
            assert running.poll() is None, log.read_text()
            return len(job.messages("orders")) == 3

        wait_until(messages, "three messages", seen=log.read_text)
        running.send_signal(signal.SIGTERM)
        assert running.wait(DEADLINE_S) == 0, log.read_text()
    assert "stopped" in log.read_text()
    wait_until(lambda: lock_is_free(job.lake.path), "the end of all its processes")
    path = str(tmp_path / "lake" / "topics" / "1")
    bodies = {b"0", b"1", b"2"}
    table = DeltaTable(path)
    assert set(table.to_pyarrow_table()["body"].to_pylist()) == bodies
    assert table.protocol().min_reader_version == 1
    assert table.protocol().min_writer_version <= 4
    assert set(pl.read_delta(path)["body"].to_list()) == bodies
    rows = table.to_pyarrow_dataset()
    found = duckdb.sql("SELECT body FROM rows ORDER BY queue_id, queue_offset").fetchall()
    assert rows is not None and {row[0] for row in found} == bodies


def test_a_stop_is_obeyed_where_spark_does_not_answer_any_more(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    name = unique("cli")
    conf = write_conf(broker, tmp_path, name)
    settings = settings_for(broker, tmp_path / "lake", name)
    job, wire = Job(settings), KafkaWriter(settings)
    job.prepare_topics()
    wire.end(COMMIT, wire.half("first", body=b"first"))
    log, again = tmp_path / "job.log", tmp_path / "again.log"
    command = [*TXLAKE, "run", "--conf", str(conf)]
    with process(command, log) as running, ExitStack() as left:
        wait_until(lambda: job.messages("orders"), "the first message", seen=log.read_text)
        for child in psutil.Process(running.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # some are short: what Spark asks the shell
                if child.name() == "java":
                    child.suspend()
                    left.callback(kill_if_there, child)
        wire.end(COMMIT, wire.half("second", body=b"second"))
        running.send_signal(signal.SIGTERM)
        assert running.wait(DEADLINE_S) == 0, log.read_text()
    said = log.read_text()
    assert "what is running is given up, and nothing is lost" in said
    assert "Traceback" not in said
    wait_until(lambda: lock_is_free(job.lake.path), "the end of all its processes")
    with process(command, again) as running:
        wait_until(lambda: len(job.messages("orders")) == 2, "both messages", seen=again.read_text)
        running.send_signal(signal.SIGTERM)
        assert running.wait(DEADLINE_S) == 0, again.read_text()
    assert "what is running is given up" not in again.read_text()
    assert sorted(row["body"] for row in job.messages("orders")) == [b"first", b"second"]


def kill_if_there(chosen: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        chosen.kill()


def test_spark_reads_the_lake(broker: Broker, tmp_path: Path, unique: Unique, spark) -> None:  # type: ignore[no-untyped-def]
    from tests.support.job import running

    settings = settings_for(broker, tmp_path / "lake", unique("read"))
    with running(settings, verifies=False) as job:
        wire = KafkaWriter(settings)
        wire.end(COMMIT, wire.half("a"))
        job.wait_for(lambda: job.messages("orders"), "a message")
        for table in ("half", "op", "outcomes", "epochs", "topics/1", "catalog"):
            assert spark.read.format("delta").load(job.lake.table_path(table)).count() >= 1, table


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("queues = -3", "{conf}: [kafka] queues = -3: a whole number 1 .. 10000 is allowed"),
        (
            '[kafka.client]\n"no.such" = 1',
            '[kafka.client]: No such configuration property: "no.such"',
        ),
        (
            '[spark]\n"spark.driver.memory" = "much"',
            "[spark] spark.driver.memory = 'much': a size like '2g' is allowed",
        ),
    ],
)
def test_a_bad_setting_is_one_sentence_with_key_and_value_before_java_starts(
    tmp_path: Path, text: str, expected: str
) -> None:
    conf = tmp_path / "bad.toml"
    conf.write_text(
        f'[lake]\npath = "{tmp_path / "lake"}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n{text}'
    )
    done = subprocess.run(
        [*TXLAKE, "run", "--conf", str(conf)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert done.stderr == f"Error: {expected.format(conf=conf)}\n"

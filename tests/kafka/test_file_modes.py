"""With umask 027 nobody else can read or write what a job and its consumers make; the group can."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pipelines.local_broker.broker import Broker
from tests.kafka.test_cli import TXLAKE, process, write_conf
from tests.support.job import Job, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.wait import DEADLINE_S, wait_until
from txlake import Consumer
from txlake.protocol import COMMIT, ROLLBACK

Unique = Callable[[str], str]
_UMASK = 0o027
# Who writes -> a file of the lake that shows it.
_WRITTEN = {
    "a task of Spark": "half/*.parquet",
    "a task that delivers": "topics/1/*.parquet",
    "the driver": "outcomes/*.parquet",
    "delta-rs": "epochs/_delta_log/*.json",
    "a checkpoint of a log": "epochs/_delta_log/*.checkpoint.parquet",
    "the state of the stream": "_checkpoint/run-*/offsets/*",
    "the lock of the driver": "_driver.lock",
    "a consumer": "consumer_offsets/_delta_log/*.json",
}


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(_UMASK)
    yield
    os.umask(before)


def test_what_a_job_makes_is_read_by_its_group_and_by_nobody_else(
    broker: Broker, tmp_path: Path, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, lake, temp = unique("modes"), tmp_path / "lake", tmp_path / "temp"
    temp.mkdir()
    monkeypatch.setenv("TMPDIR", str(temp))
    conf = write_conf(broker, tmp_path, name)
    conf.write_text(
        conf.read_text() + f"[maintenance]\nmerge_files = 2\ncheckpoint_commits = 2\n"
        f'[spark]\n"spark.local.dir" = "{temp / "spark"}"\n'
    )
    settings = settings_for(broker, lake, name)
    job, log = Job(settings), tmp_path / "job.log"
    job.prepare_topics()
    wire = KafkaWriter(settings)
    with process([*TXLAKE, "run", "--conf", str(conf)], log) as running:
        for number in range(6):
            wire.end(COMMIT, wire.half(f"tx{number}"))
            wire.end(ROLLBACK, wire.half(f"no{number}"))

            def is_there(wanted: int = number + 1) -> bool:
                assert running.poll() is None, log.read_text()
                return len(job.messages("orders")) == wanted

            wait_until(is_there, f"message {number}", seen=log.read_text)
        with Consumer(str(lake), "readers", ["orders"]) as consumer:
            assert consumer.poll(timeout_s=DEADLINE_S)
            consumer.commit()
        wait_until(lambda: not missing(lake), "all kinds of files", seen=lambda: missing(lake))
        in_use = modes(temp)
        running.send_signal(signal.SIGTERM)
        assert running.wait(DEADLINE_S) == 0, log.read_text()
    assert in_use
    assert {path: mode for path, mode in in_use.items() if mode[7:] != "---"} == {}
    assert {path: mode for path, mode in modes(lake).items() if not _is_right(mode)} == {}


def missing(lake: Path) -> list[str]:
    """Return which of those that write have not written yet."""
    return [who for who, pattern in _WRITTEN.items() if not any(lake.glob(pattern))]


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of a folder and of all in it, as `ls` shows them.

    What is deleted meanwhile is left out.
    """
    found = {}
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent), *(Path(parent, name) for name in (*folders, *files))):
            with suppress(FileNotFoundError):
                found[str(path.relative_to(folder))] = stat.filemode(path.lstat().st_mode)
    return found


def _is_right(mode: str) -> bool:
    """Return whether the group can read, and others nothing."""
    return mode[7:] == "---" and mode[4] == "r" and (mode[0] != "d" or mode[6] == "x")

"""Make the class archive (`pipelines/class_archive.py`): a real job lands one transaction and ends.

Its JVM writes the classes that it has loaded when it ends. The broker and the lake are in a
temporary folder beside the archive.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipelines import session
from pipelines.broker import Broker
from pipelines.class_archive import JAVA_VERSION, QUIET, archive_path
from pipelines.guarded import guarded
from pipelines.java import java_home, java_version
from pipelines.kafka_topics import KafkaTopics
from pipelines.settings import load
from storage.errors import LakeLockedError
from storage.lake import Lake
from storage.lock import LakeLock
from txlake import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
)

_CONF = """\
[lake]
path = {lake}
[kafka]
bootstrap_servers = {servers}
queues = 1
[stream]
trigger_interval_ms = 200
[spark]
"spark.driver.extraJavaOptions" = {options}
"""
_LOG = "job.log"
_SAID_MAX = 2_000
_DEADLINE_S = 300.0
_POLL_S = 0.2


class ArchiveError(Exception):
    """The archive could not be made; the text says why. Everything works without it."""


def make() -> bool:
    """Make the archive, unless it is there or Java would not accept it.

    Output: whether it was made now. Archives of other jars or another Java are deleted.
    Errors: ArchiveError, BrokerError, JavaError, JarError.
    """
    target = archive_path()
    if target.is_file() or java_version(java_home()) != JAVA_VERSION:
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            _run_job(Path(scratch), made)
            if not made.is_file():
                raise ArchiveError(f"Java wrote no class archive: {_tail(Path(scratch) / _LOG)}")
            for old in target.parent.glob("classes-*.jsa"):
                old.unlink(missing_ok=True)
            os.replace(made, target)
    except OSError as error:
        raise ArchiveError(f"no class archive could be made in {target.parent}: {error}") from error
    return True


def _run_job(scratch: Path, made: Path) -> None:
    """Let a real job land a transaction and end; its JVM writes the archive when it ends."""
    lake = Lake(str(scratch / "lake"))
    options = f"{session.java_options()} -XX:ArchiveClassesAtExit={made} {QUIET}"
    with Broker(scratch / "broker") as broker:
        conf = scratch / "job.toml"
        conf.write_text(_CONF.format(
            lake=json.dumps(lake.path), servers=json.dumps(broker.bootstrap_servers),
            options=json.dumps(options),
        ), "utf-8")  # fmt: skip
        settings = load(conf)
        KafkaTopics(settings, settings.kafka.topics()).create_missing()
        with _job(conf, scratch / _LOG) as job:
            _wait(job, lake.exists, "a lake")
            with TransactionProducer(
                broker.bootstrap_servers, "archive", _Commits(), client={"log_level": 0}
            ) as producer:
                producer.send_message_in_transaction(Message("archive", b""))
                _wait(job, lambda: _has_ended(lake), "an outcome")
            job.terminate()
            # Python ends first, then its JVM, which writes before it ends.
            job.wait(_DEADLINE_S)
            _wait(None, lambda: _is_free(lake), "the end of the JVM")


class _Commits(TransactionListener):
    """Commit everything."""

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


def _has_ended(lake: Lake) -> bool:
    return bool(lake.read("outcomes").num_rows)


@contextlib.contextmanager
def _job(conf: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job in a process group of its own; nothing of it is left at the end."""
    command = [sys.executable, "-m", "pipelines", "run", "--conf", str(conf)]
    with log.open("wb") as output:
        job = subprocess.Popen(
            guarded(command, with_group=True),
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, "TMPDIR": str(conf.parent)},
        )  # fmt: skip
    try:
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _wait(job: subprocess.Popen[bytes] | None, is_met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not is_met():
        if (job is not None and job.poll() is not None) or time.monotonic() > deadline:
            raise ArchiveError(f"no class archive could be made: there was not {what}")
        time.sleep(_POLL_S)


def _is_free(lake: Lake) -> bool:
    """Return whether Python and JVM, which share the lake's lock, have both ended."""
    try:
        LakeLock(lake.path, "class archive").release()
    except LakeLockedError:
        return False
    return True


def _tail(file: Path) -> str:
    return file.read_text("utf-8", "replace")[-_SAID_MAX:]

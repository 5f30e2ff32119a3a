"""README's programs run as they stand there, against a broker and a running job."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.local_broker.broker import Broker
from tests.support.job import Job, running, settings_for
from tests.support.wait import wait_until
from txlake import protocol as p

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
PRODUCER, CONSUMER = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
DEADLINE_S = 240.0
# README speaks of the default names, which no test may use on the broker that tests share.
DEFAULT_NAMES: dict[str, Any] = {
    "half_topic": p.HALF_TOPIC,
    "op_topic": p.OP_TOPIC,
    "schedule_topic": p.SCHEDULE_TOPIC,
    "admin_topic": p.ADMIN_TOPIC,
    "check_topic_prefix": p.CHECK_TOPIC_PREFIX,
}


@pytest.fixture(scope="module")
def job(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("readme")
    with Broker(folder / "broker") as broker:
        settings = settings_for(broker, folder / "lake", "readme", kafka=DEFAULT_NAMES)
        with running(settings) as job:
            yield job


def run_program(text: str, job: Job, folder: Path) -> str:
    """Run one of README's programs; only its two placeholders are replaced."""
    for placeholder, value in (
        ('"127.0.0.1:9092"', repr(job.settings.kafka.bootstrap_servers)),
        ('"lake"', repr(job.settings.lake.path)),
    ):
        text = text.replace(placeholder, value)
    program = folder / "program.py"
    program.write_text(text, "utf-8")
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as db:
        return db.execute(query).fetchall()


def test_the_programs_have_the_placeholders() -> None:
    assert PRODUCER.count('"127.0.0.1:9092"') == 1
    assert CONSUMER.count('"lake"') == 1


def test_what_the_producer_sends_the_consumer_reads_once(job: Job, tmp_path: Path) -> None:
    printed = run_program(PRODUCER, job, tmp_path)
    assert "COMMIT_MESSAGE" in printed
    assert "operation_sent=True" in printed
    ((transaction_id, item),) = rows(tmp_path / "orders.sqlite", "SELECT * FROM orders")
    assert item == "coffee"
    (message,) = job.wait_for(lambda: job.messages("orders"), "the message in its topic")
    assert (message["transaction_id"], message["body"]) == (transaction_id, b"one coffee")

    # It ends after 3 s without a message, as when a busy machine has no time for it.
    read = wait_until(lambda: run_program(CONSUMER, job, tmp_path), "the consumer reads it")
    assert "b'one coffee'" in read
    place = f"half:{message['half_queue_id']}-{message['half_queue_offset']}", b"one coffee"
    assert rows(tmp_path / "points.sqlite", "SELECT * FROM points") == [place]
    assert run_program(CONSUMER, job, tmp_path) == ""  # the group is past it
    assert rows(tmp_path / "points.sqlite", "SELECT * FROM points") == [place]

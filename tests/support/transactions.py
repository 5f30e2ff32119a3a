"""Committed transactions by name: the name is the body."""

from __future__ import annotations

from tests.support.job import Job
from tests.support.kafka_writer import KafkaWriter
from tests.support.wait import wait_until
from txlake.protocol import COMMIT


def commit(wire: KafkaWriter, *names: str) -> None:
    """Send a committed transaction for each name; the name is the body."""
    for name in names:
        wire.end(COMMIT, wire.half(name[:40].replace(" ", "-"), body=name.encode()))


def bodies(job: Job) -> list[str]:
    return sorted(row["body"].decode() for row in job.messages("orders"))


def wait_for_bodies(job: Job, *names: str) -> None:
    """Wait until exactly these messages are there, each once."""
    job.wait_for(lambda: len(job.messages("orders")) >= len(names), f"{len(names)} messages")
    assert bodies(job) == sorted(names)


def wait_for_the_end(job: Job) -> BaseException:
    """Wait until the job has stopped by itself, and give why."""
    try:
        wait_until(lambda: not job.is_running(), "the job stops")
    finally:
        job.driver.stop()
    job.wait_until_dead()
    assert job.error is not None
    return job.error

"""What the job's own process logs: an epoch is a line, and so is a Kafka that goes away."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from tests.support.job import settings_for
from tests.support.kafka_writer import half_headers
from tests.support.standby_processes import Drivers, drivers_of
from tests.support.wait import DEADLINE_S, wait_until

Unique = Callable[[str], str]
_LINE = r"\d{4}-\d\d-\d\d [\d:,]+ (INFO|WARNING) .+"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that goes away."""
    with Broker(tmp_path_factory.mktemp("own")) as running:
        yield running


@pytest.fixture(scope="module")
def drivers(own: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """The drivers of a lake of its, of which one is active; the stories share it."""
    folder = tmp_path_factory.mktemp("away")
    with drivers_of(settings_for(own, folder / "lake", "log"), folder) as lake:
        lake.start_active()
        yield lake


@pytest.mark.parametrize("burst", [0, 20_000], ids=["little is read", "tasks are reading"])
def test_a_kafka_that_goes_away_is_one_line_and_one_when_it_is_back(
    own: Broker, drivers: Drivers, burst: int
) -> None:
    (job,) = drivers.living()
    drivers.send("before")
    drivers.wait_for_sent()
    begins = len(job.log.read_text().splitlines())

    def new_lines() -> list[str]:
        return job.log.read_text().splitlines()[begins:]

    drivers.send(*map(str, range(20)))
    send_halves(drivers.settings, burst)
    own.kill()
    wait_until(lambda: "is away" in "".join(new_lines()), "the job says so")
    own.restart()
    wait_until(lambda: "is back" in "".join(new_lines()), "and when it is back")
    drivers.send("after")
    drivers.wait_for_sent()

    def epochs_of(lines: list[str]) -> list[str]:
        return [line for line in lines if re.search(r"INFO epoch \d+: .* records behind", line)]

    # An epoch's line comes after the commit that was waited for.
    wait_until(lambda: epochs_of(new_lines()), "an epoch's line")
    lines = new_lines()

    assert [line for line in lines if not re.fullmatch(_LINE, line)] == []
    warnings = [line.partition("WARNING ")[2] for line in lines if "WARNING" in line]
    first, *more, last = [line for line in warnings if not line.startswith("slow step: ")]
    kafka = f"Kafka at {own.bootstrap_servers}"
    assert first.startswith(f"{kafka} is away, for 0 s so far;")
    assert [line for line in more if not line.startswith(f"{kafka} is away, for ")] == []
    assert all(int(line.split(" is away, for ")[1].split()[0]) >= 60 for line in more), more
    assert last.startswith(f"{kafka} is back after ")
    assert len(lines) - len(warnings) - len(epochs_of(lines)) <= 3  # running, finished


def test_a_job_whose_kafka_was_away_is_stopped_in_two_lines(drivers: Drivers) -> None:
    (job,) = drivers.living()
    job.terminate()
    assert job.wait(DEADLINE_S) == 0
    _, _, last = job.log.read_text().rpartition("INFO stopping after the running epoch\n")
    *epochs, stopped = last.splitlines()
    assert stopped.endswith("INFO stopped")
    epochs = [line for line in epochs if "WARNING slow step: " not in line]
    assert [line for line in epochs if "INFO epoch " not in line] == []


def send_halves(settings: Settings, count: int) -> None:
    """Send so many halves that a job reads them for a while."""
    producer = Producer(
        {
            "bootstrap.servers": settings.kafka.bootstrap_servers,
            "log_level": 0,
            "error_cb": lambda _: None,
            "queue.buffering.max.messages": count + 1,
        }
    )
    for number in range(count):
        headers = half_headers(f"burst-{number}")
        producer.produce(settings.kafka.half_topic, b"x" * 4_000, headers=headers)
    assert producer.flush(DEADLINE_S) == 0


def test_the_log_is_one_json_object_a_line(broker: Broker, tmp_path: Path, unique: Unique) -> None:
    settings = settings_for(
        broker, tmp_path / "lake", unique("json"), log={"format": "json", "level": "debug"}
    )
    with drivers_of(settings, tmp_path) as drivers:
        job = drivers.start_active()
        drivers.send("one")
        drivers.wait_for_sent()
        job.terminate()
        assert job.wait(DEADLINE_S) == 0
        text = job.log.read_text()
    found = [json.loads(line) for line in text.splitlines()]  # the JVM's lines, too
    epochs = [line for line in found if line.get("records")]  # two if one was cut between both
    assert sum(epoch["committed"] for epoch in epochs) == 1
    assert sum(epoch["delivered"] for epoch in epochs) == 1
    assert epochs[-1]["lag_records"] == 0
    assert all({"gather", "plan", "decide", "apply"} <= set(epoch["step_ms"]) for epoch in epochs)
    assert {line["message"] for line in found} >= {"stopping after the running epoch", "stopped"}

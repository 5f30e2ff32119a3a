"""A JVM that dies: the driver ends at once, and the next start takes smaller steps."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from storage.lake.lake import Lake
from tests.support.job import Job, settings_for
from tests.support.kafka_writer import half_headers
from tests.support.processes import ROOT
from tests.support.standby_processes import drivers_of
from tests.support.wait import DEADLINE_S, wait_until

Unique = Callable[[str], str]
HALVES = 3_000
DEATHS_MAX = 5
SMALLER = (
    "the last run died while it landed records: until they are landed, 1/4 of the usual steps, "
    "up to 4096 bytes a fetch of Kafka and 50000 records an epoch"
)
USUAL = "landed what needed smaller steps: the usual steps again"
ENDED = "the driver's JVM has ended"
# A JVM that ends by itself, as one does that is out of memory.
PROGRAM = """
from pipelines.jvm.session import (
    JVM_LOST, jvm_error, jvm_has_ended, listen_for_callbacks, start_session,
)
from pipelines.jvm.shutdown import JvmShutdown

spark = start_session("ends", is_quiet=True)
listen_for_callbacks(spark)
shutdown = JvmShutdown(spark, lambda: print("asked to stop"))
try:
    spark._jvm.java.lang.System.exit(52)
except JVM_LOST:
    print("lost")
spark.sparkContext._gateway.proc.wait()
print(jvm_has_ended(spark), jvm_error(spark))
"""


def send_halves(settings: Settings) -> None:
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers, "linger.ms": 5})
    for number in range(HALVES):
        headers = half_headers(f"tx-{number}")
        producer.produce(settings.kafka.half_topic, b"x" * 4_000, headers=headers)
    assert producer.flush(DEADLINE_S) == 0


def has_landed(settings: Settings, count: int) -> bool:
    lake = Lake(settings.lake.location())
    return lake.is_table("half") and lake.read("half", ["epoch"]).num_rows >= count


def test_a_start_after_a_death_in_a_landing_takes_smaller_steps_until_that_is_landed(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    settings = settings_for(
        broker, tmp_path / "lake", unique("deaths"), stream={"deliveries": "executors"}
    )
    Job(settings).prepare_topics()
    mark = tmp_path / "lake" / "_checkpoint" / "landing.json"
    deaths = 0

    with drivers_of(settings, tmp_path) as drivers:
        while not mark.exists():  # a landing can end before its JVM is dead
            deaths += 1
            assert deaths <= DEATHS_MAX, "no JVM died within a landing"
            send_halves(settings)
            first = drivers.start()

            def has_begun(count: int = deaths * HALVES) -> bool:  # it can be over when it is seen
                return mark.exists() or has_landed(settings, count)

            wait_until(has_begun, "a landing", seen=first.log.read_text)
            first.kill("jvm")
            killed_at = time.monotonic()
            assert first.wait(DEADLINE_S) == 1
            print(f"the driver ended {time.monotonic() - killed_at:.1f} s after its JVM")
            assert ENDED in first.last_line()
            assert not first.has_said("last run")

        second = drivers.start()
        drivers.wait_for(SMALLER, second)
        wait_until(
            lambda: second.has_said(SMALLER, USUAL, "running; owner"),
            "usual steps again",
            seen=second.log.read_text,
        )
        second.terminate()
        assert second.wait(DEADLINE_S) == 0

    assert Lake(settings.lake.location()).read("half", ["epoch"]).num_rows == deaths * HALVES
    assert not mark.exists()


def test_a_jvm_that_ends_by_itself_is_no_stop_of_the_driver() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr
    lost, ended = ran.stdout.splitlines()
    assert lost == "lost"
    assert ended.startswith(f"True {ENDED}")

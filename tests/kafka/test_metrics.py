"""A real job's metrics and health: they agree with its lake, and follow Kafka and the election."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

from pipelines.health.groups import ANSWER_MS, NEWEST_CHECKS
from pipelines.local_broker.broker import Broker
from pipelines.local_server.ports import is_listening
from tests.support.http_client import free_port, get
from tests.support.job import Job, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter
from tests.support.metrics_client import Samples, samples_of
from tests.support.operator import said
from tests.support.standby_processes import drivers_of
from tests.support.wait import DEADLINE_S, wait_until
from txlake import Consumer
from txlake.protocol import COMMIT, REAL_QID, ROLLBACK

pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session

Unique = Callable[[str], str]


def scrape(port: int) -> Samples:
    """Return what a job says of itself."""
    return samples_of(get(port, "/metrics").text)


def by_label(samples: Samples, name: str) -> dict[str, float]:
    """Return the samples of a metric with one label, by its value; those of 0 left out."""
    found = {key: value for key, value in samples.items() if key.startswith(name + "{")}
    return {key.split('"')[1]: value for key, value in found.items() if value}


def make_topic(broker: Broker, name: str) -> None:
    """Make a topic, as a producer of a group makes its check topic."""
    admin = admin_client(broker.bootstrap_servers)
    admin.create_topics([NewTopic(name, 1)])[name].result(DEADLINE_S)


def test_metrics_agree_with_the_tables_of_the_lake_and_are_true_from_the_start(
    broker: Broker, tmp_path: Path, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    quick = {"check_max": 1, "check_interval_ms": 500, "transaction_timeout_ms": 500}
    settings = settings_for(
        broker, tmp_path / "lake", unique("metrics"), transaction=quick, metrics={"port": port}
    )
    wire, job = KafkaWriter(settings), Job(settings).start()
    make_topic(broker, f"{settings.kafka.check_topic_prefix}shop")  # else no check counts
    try:
        for number in range(6):
            half = wire.half(f"tx{number}", topic="orders" if number % 2 else "bills")
            wire.end(ROLLBACK if number == 5 else COMMIT, half)
        wire.end(COMMIT, wire.half("stuck", **{REAL_QID: "9"}))
        for number in range(NEWEST_CHECKS):
            wire.half(f"lost{number}", queue=1, group="shop")
        wire.half("waits", queue=1, group="shop", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        wire.end(COMMIT, half)  # changes nothing
        ended = 7 + NEWEST_CHECKS
        for table, count in (("half", ended + 1), ("op", 8), ("outcomes", ended)):
            job.wait_for_rows(table, count)
        # Perhaps not committed yet; its metrics are told before its plan.
        last = max(row["epoch"] for name in ("half", "op", "outcomes") for row in job.rows(name))
        job.wait_for(lambda: scrape(port).get("txlake_last_epoch", 0) >= last, "the last epoch")
        job.wait_for(lambda: job.plans[-1].epoch >= last, "its plan")
        samples = scrape(port)
        outcomes, checks = job.rows("outcomes"), job.rows("checks")
        for outcome, name in (("COMMITTED", "commit"), ("ROLLED_BACK", "rollback")):
            counted = Counter(r["real_topic"] for r in outcomes if r["outcome"] == outcome)
            assert by_label(samples, f"rocketmq_{name}_messages_total") == dict(counted)
        waited = by_label(samples, "rocketmq_transaction_finish_latency_count")
        assert waited == {"bills": 3.0, "orders": 4.0}
        assert by_label(samples, "txlake_given_up_total") == {"check_max": NEWEST_CHECKS}
        assert by_label(samples, "txlake_delivered_messages_total") == {
            topic: len(job.messages(topic)) for topic in ("orders", "bills")
        }
        assert by_label(samples, "rocketmq_half_messages") == {"orders": 1}
        assert sum(by_label(samples, "txlake_checks_total").values()) == len(checks)
        assert by_label(samples, "txlake_conflicts_total") == dict(
            Counter(row["reason"] for row in job.rows("conflicts"))
        )
        landed = by_label(samples, "txlake_landed_records_total")
        assert landed["half"] == len(job.rows("half"))
        assert landed["op"] == len(job.rows("op"))
        assert samples["txlake_last_epoch"] == job.plans[-1].epoch
        assert samples["txlake_epochs_total"] == len(job.plans)
        assert samples["txlake_waiting_records"] == 0
        assert samples["txlake_lag_seconds"] == 0
        gauges = {
            "txlake_undeliverable_messages": 1.0,
            "txlake_given_up_messages": NEWEST_CHECKS,
        }
        assert gauges.items() <= samples.items()
    finally:
        job.stop()
    assert job.error is None
    assert not is_listening("127.0.0.1", port)
    with monkeypatch.context() as later:
        now = time.time_ns()
        later.setattr("time.time_ns", lambda: now + ANSWER_MS * 1_000_000)
        told = json.loads(said("status", "--lake", job.lake.path, "-o", "json"))
    assert {problem["name"]: problem["words"] for problem in told["problems"]} == {
        "group_silent": "group shop has not answered its newest 5 checks, with 1 half pending",
        "given_up": "halves that are given up and can still be ended or resumed: 5",
        "undeliverable": "committed messages that wait for an operator: 1",
    }
    # A consumer that dies: it never gives its queues back.
    Consumer(job.lake.path, "points", ["orders"], session_timeout_ms=1)
    again = Job(settings).start()
    try:
        again.wait_for(lambda: get(port, "/readyz").status == 200, "the job is ready")
        again.wait_for(
            lambda: by_label(scrape(port), "txlake_consumer_gone_seconds").keys() == {"points"},
            "the metrics tell of the consumer that is gone",
        )
        samples = scrape(port)
        assert gauges.items() <= samples.items()
        assert by_label(samples, "rocketmq_half_messages") == {"orders": 1}
        assert by_label(samples, "rocketmq_commit_messages_total") == {}
    finally:
        again.stop()
    assert again.error is None


def test_a_job_is_not_ready_while_kafka_is_away(tmp_path: Path, unique: Unique) -> None:
    port, own = free_port(), Broker(tmp_path / "broker")
    own.start()
    settings = settings_for(own, tmp_path / "lake", unique("away"), metrics={"port": port})
    job = Job(settings).start()
    try:
        wait_until(lambda: get(port, "/readyz").status == 200, "the job is ready")
        own.kill()
        wait_until(lambda: get(port, "/readyz").status == 503, "the job is not ready")
        wait_until(lambda: scrape(port)["txlake_kafka_up"] == 0, "Kafka is down")
        assert get(port, "/healthz").status == 200
        own.restart()
        wait_until(
            lambda: get(port, "/readyz").status == 200,
            "the job is ready again",
            seen=lambda: get(port, "/readyz").text,
        )
    finally:
        job.driver.stop()
        job.wait_until_dead()
        own.stop()
    assert job.error is None
    assert not is_listening("127.0.0.1", port)


def test_a_standby_is_healthy_and_not_ready_until_it_takes_over(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    ports = free_port(), free_port()
    settings = settings_for(broker, tmp_path / "lake", unique("ready"), metrics={"port": ports[0]})
    with drivers_of(settings, tmp_path) as drivers:
        first = drivers.start_active()
        text = drivers.conf.read_text()
        line = f'"port" = {ports[0]}'
        assert line in text
        drivers.conf.write_text(text.replace(line, f'"port" = {ports[1]}'))
        drivers.start_standby()
        wait_until(lambda: get(ports[0], "/readyz").status == 200, "the first is ready")
        assert get(ports[1], "/healthz").status == 200
        answer = get(ports[1], "/readyz")
        assert answer.status == 503
        assert answer.text == "it stands by: another driver has the lake\n"
        assert [scrape(port)["txlake_active"] for port in ports] == [1, 0]
        first.kill()
        wait_until(
            lambda: get(ports[1], "/readyz").status == 200,
            "the standby is ready",
            seen=lambda: get(ports[1], "/readyz").text,
        )
        drivers.send("after")
        drivers.wait_for_sent()

        def delivered() -> dict[str, float]:
            return by_label(scrape(ports[1]), "txlake_delivered_messages_total")

        # A message is counted behind the commit that was waited for.
        wait_until(lambda: delivered() == {"orders": 1}, "it is counted once", seen=delivered)


def test_a_port_that_is_taken_ends_the_start_with_one_sentence(
    broker: Broker, tmp_path: Path, unique: Unique
) -> None:
    taken = broker.bootstrap_servers.rpartition(":")[2]
    settings = settings_for(
        broker, tmp_path / "lake", unique("taken"), metrics={"port": int(taken)}
    )
    with drivers_of(settings, tmp_path) as drivers:
        driver = drivers.start()
        assert driver.wait(DEADLINE_S) == 1
        (said,) = [line for line in driver.log.read_text().splitlines() if "Picked up" not in line]
        assert said.startswith(f"Error: [metrics] host = '127.0.0.1', port = {taken}: ")

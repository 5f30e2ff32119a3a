"""Metrics of epochs that are made by hand, against counts made by hand."""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
import time
from operator import add
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from checker.frames import HALVES, State
from pipelines.job.refused_retention import RefusedRetention
from pipelines.metrics import collector as collectors
from pipelines.metrics import probe
from pipelines.metrics.catalog import COUNTER, GAUGE, HISTOGRAM, LABELS_MAX, METRICS, OTHER
from pipelines.metrics.collector import Collector
from pipelines.metrics.epoch_counts import EpochCounts
from pipelines.metrics.labels import Labels
from pipelines.metrics.lag import Lag
from pipelines.operate.consumer_retries import find_dead, write_drop, write_resume
from pipelines.settings import load
from storage.lake.epochs import Plan, Range
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from tests.support.history import SILENT, START_AT, History
from tests.support.in_memory_job import InMemoryJob
from tests.support.listeners import run_until
from tests.support.metrics_client import ReportedHistory, Samples, reporter_of, samples_of
from tests.support.operator import write_conf
from tests.support.wait import DEADLINE_S
from txlake import Consumer, ConsumeStatus
from txlake.protocol import COMMIT, CREATE_TOPIC, RESUME, ROLLBACK

ROOT = Path(__file__).parents[3]


def now_is(monkeypatch: pytest.MonkeyPatch, at_ms: int) -> None:
    """Set the clock of a scrape."""
    monkeypatch.setattr(time, "time_ns", lambda: at_ms * 1_000_000)


def some(samples: Samples, name: str) -> Samples:
    """Return the samples of one name by the rest of theirs; those of 0 left out."""
    return {
        key.removeprefix(name): value
        for key, value in samples.items()
        if re.fullmatch(rf"{name}(\{{.*\}})?", key, re.DOTALL) and value
    }


def test_ends_are_counted_by_topic_and_their_waits_in_buckets() -> None:
    history = History()
    history.epoch(0)
    for topic in ("orders", "orders", "bills", "orders"):
        history.half(real_topic=topic)  # stored 500 ms before
    history.epoch(1)  # waits of 1.5 s
    history.end(COMMIT, 0)
    history.end(ROLLBACK, 1)
    history.end(COMMIT, 2, producer_group="another")  # ends nothing
    history.half(real_topic="orders", age_ms=300)  # lands and ends at once: a wait of 0.3 s
    history.end(COMMIT, 4)
    samples = ReportedHistory().tell(history).samples()
    assert some(samples, "rocketmq_commit_messages_total") == {'{topic="orders"}': 2}
    assert some(samples, "rocketmq_rollback_messages_total") == {'{topic="orders"}': 1}
    assert some(samples, "txlake_delivered_messages_total") == {'{topic="orders"}': 2}
    assert some(samples, "rocketmq_half_messages") == {'{topic="bills"}': 1, '{topic="orders"}': 1}
    assert some(samples, "txlake_conflicts_total") == {'{reason="wrong_producer_group"}': 1}
    latency = some(samples, "rocketmq_transaction_finish_latency_bucket")
    assert latency['{le="0.5",topic="orders"}'] == 1
    assert latency['{le="1.0",topic="orders"}'] == 1
    assert latency['{le="2.0",topic="orders"}'] == latency['{le="+Inf",topic="orders"}'] == 3
    total = samples['rocketmq_transaction_finish_latency_sum{topic="orders"}']
    assert total == pytest.approx(1.5 + 1.5 + 0.3)
    assert samples["txlake_epochs_total"] == 2
    assert samples["txlake_last_epoch"] == 2
    assert samples["txlake_last_epoch_timestamp_seconds"] == (START_AT + 1_000) / 1000
    assert some(samples, "txlake_landed_records_total") == {'{kind="half"}': 5, '{kind="op"}': 4}
    assert samples['txlake_step_seconds_total{step="wait"}'] == 40
    assert samples["txlake_epoch_seconds_count"] == 2


def test_a_half_is_pending_then_given_up_then_ended_late(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(transaction_timeout_ms=1_000, check_interval_ms=1_000, check_max=1)
    told = ReportedHistory()
    history.epoch(0)
    history.half()
    history.half(group=SILENT)
    history.epoch(2)  # asked; the silent group has no check topic
    history.epoch(2)  # given up, the one that was asked
    samples = told.tell(history).samples()
    assert some(samples, "txlake_checks_total") == {
        '{acknowledged="true"}': 1,
        '{acknowledged="false"}': 2,
    }
    assert some(samples, "txlake_given_up_total") == {'{cause="check_max"}': 1}
    assert samples['txlake_given_up_total{cause="expired"}'] == 0
    assert samples["txlake_given_up_messages"] == 1
    assert samples["txlake_undeliverable_messages"] == 0
    assert some(samples, "rocketmq_half_messages") == {'{topic="orders"}': 1}
    now_is(monkeypatch, START_AT + 9_500)
    assert told.samples()["txlake_oldest_pending_seconds"] == 10.0
    assert told.samples()["txlake_oldest_given_up_seconds"] == 10.0


def test_an_undeliverable_message_is_counted_until_it_is_delivered() -> None:
    told, history = ReportedHistory(), History()
    history.epoch(0)
    history.half(real_queue_id=9)  # a topic has 4 queues
    history.end(COMMIT, 0)
    assert told.tell(history).samples()["txlake_undeliverable_messages"] == 1
    history.epoch(1)
    history.command(CREATE_TOPIC, "topic:orders:16")
    history.command(RESUME, "undeliverable:0")
    samples = ReportedHistory().tell(history).samples()
    assert samples["txlake_undeliverable_messages"] == 0
    assert some(samples, "txlake_delivered_messages_total") == {'{topic="orders"}': 1}


def test_a_start_counts_what_is_undeliverable_in_the_lake(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    for _ in range(3):
        job.end(COMMIT, job.half(real_queue_id=9))
    job.run()
    job.command(CREATE_TOPIC, "topic:orders:16")
    job.command(RESUME, "undeliverable:1")
    job.run()
    lake = Lake(job.lake.path)
    started = reporter_of(metrics={"port": 1})
    started.on_start(lake, read_progress(lake).last, job.state)
    found = samples_of(generate_latest(started.registry).decode())
    assert found["txlake_undeliverable_messages"] == 2


def test_lag_is_the_time_since_nothing_was_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(at: int, landed: int, end: int) -> Plan:
        ranges = (Range("op", 0, 0, landed, end),)
        return Plan(1, at, {}, {}, ranges, "", {}, {}, "test", 2)

    lag = Lag()
    assert (lag.records(), lag.behind_ms(0)) == (None, None)  # it has not got the lake
    lag.reset(None, 0)
    lag.observe_landed(plan(10_000, 5, 5))
    assert (lag.records(), lag.behind_ms(99_000)) == (0, 0)
    lag.observe_ends(20_000, {("op", 0): 7})  # the probe finds two more
    assert (lag.records(), lag.behind_ms(21_000)) == (2, 11_000)
    lag.observe_landed(plan(30_000, 7, 9))  # all that was there at 20 s
    assert (lag.records(), lag.behind_ms(31_000)) == (2, 11_000)
    lag.observe_landed(plan(40_000, 9, 9))
    assert (lag.records(), lag.behind_ms(99_000)) == (0, 0)


def test_a_start_on_a_backlog_lags_as_far_as_its_oldest_record() -> None:
    lag = Lag()
    lag.reset(None, 0)
    ranges = (Range("op", 0, 0, 5, 90),)
    lag.observe_landed(
        Plan(1, 100_000, {}, {}, ranges, "", {}, {}, "test", 2), oldest_stored_at=40_000
    )
    assert (lag.records(), lag.behind_ms(101_000)) == (85, 61_000)


def test_a_driver_that_never_commits_lags_since_its_start() -> None:
    lag = Lag()
    lag.reset(None, 10_000)
    lag.observe_ends(12_000, {("op", 0): 1})
    assert (lag.records(), lag.behind_ms(400_000)) == (1, 390_000)


def test_what_is_remembered_of_a_long_lag_is_bounded() -> None:
    lag = Lag()
    lag.reset(None, 0)
    for second in range(5_000):
        lag.observe_ends(second * 1_000, {("op", 0): second + 1})
    assert len(lag._samples) <= 601
    ranges = (Range("op", 0, 0, 4_000, 5_000),)
    lag.observe_landed(Plan(1, 5_000_000, {}, {}, ranges, "", {}, {}, "test", 2))
    assert 1_000_000 <= (lag.behind_ms(5_000_000) or 0) <= 1_100_000


def test_a_partition_that_a_topic_gets_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1
    asked = threading.Event()

    class GrowingKafka:
        def __init__(self, *_: object) -> None:
            pass

        def partitions(self) -> list[tuple[str, int]]:
            return [("half", number) for number in range(count)]

        def end_offsets(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
            nonlocal count
            count = 2
            if len(partitions) == 2:
                asked.set()
            return dict.fromkeys(partitions, 1)

        def existing_names(self) -> frozenset[str]:
            return frozenset()

    monkeypatch.setattr(probe, "KafkaAdmin", GrowingKafka)
    monkeypatch.setattr(probe, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(probe, "_TOPICS_S", 0.05)
    beside = probe.Probe(load(write_conf(tmp_path)), Lag())
    beside.start()
    try:
        assert asked.wait(DEADLINE_S)
    finally:
        beside.close()


def test_names_beyond_the_first_hundred_share_a_label_and_are_counted() -> None:
    labels = Labels()
    names = [f"topic-{number}" for number in range(LABELS_MAX + 5)]
    summed = labels.by_label(dict.fromkeys(names, 1) | {OTHER: 1}, add)
    assert len(summed) == LABELS_MAX + 1
    assert summed[OTHER] == 6  # and a topic of that name
    assert labels.overflowed == 6
    largest = labels.by_label({"topic-0": 3, "topic-103": 4, "topic-104": 7}, max)
    assert largest == {"topic-0": 3, OTHER: 7}


def test_a_scrape_of_thousands_of_hostile_topics_is_bounded_and_legal() -> None:
    names = ['quote"\n# HELP x\nforged_total 1', "back\\slash", "ünïcode", *map(str, range(3_000))]
    registry, lag = CollectorRegistry(), Lag()
    collector = Collector(reporter_of()._settings, lag, dict)
    registry.register(collector)
    lag.reset(None, 0)
    collector.reset(None, State(), 0)
    plan = Plan(1, 1, {}, {}, (), "", {}, {}, "test", 2)
    tally = EpochCounts(ends={(name, "COMMITTED"): 2 for name in names})
    rows = [
        {"real_topic": name, "stored_at": 1, "queue_id": 0, "queue_offset": n}
        for n, name in enumerate(names)
    ]
    state = State(halves=pa.Table.from_pylist(rows, schema=HALVES))
    attempts = pa.table({"producer_group": pa.array([], pa.string()), "acknowledged": []})
    collector.add_epoch(plan, state, tally, attempts, {}, {})
    text = generate_latest(registry).decode()
    samples = samples_of(text)
    committed = some(samples, "rocketmq_commit_messages_total")
    assert len(committed) == LABELS_MAX + 1
    assert sum(committed.values()) == 2 * len(names)
    assert committed[f'{{topic="{OTHER}"}}'] == 2 * (len(names) - LABELS_MAX)
    assert not re.search("^forged_total", text, re.MULTILINE)
    assert '{topic="' + names[0] + '"}' in committed
    assert samples['txlake_folded_names{label="topic"}'] == len(names) - LABELS_MAX
    assert len(text.splitlines()) < 500


def test_a_standby_has_no_numbers_of_the_lake() -> None:
    samples = samples_of(generate_latest(reporter_of().registry).decode())
    assert "txlake_lag_seconds" not in samples
    assert "txlake_last_epoch" not in samples
    assert samples["txlake_active"] == 1


def test_an_error_in_counting_stops_no_epoch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(collectors.Collector, "add_epoch", broken)
    history = History()
    history.epoch(0)
    assert ReportedHistory().tell(history).samples()["txlake_epochs_total"] == 0
    assert "epoch 1 is not counted" in caplog.text


def test_all_metrics_are_documented_as_they_are() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w`, ]*) ?\| (.*) \|$", text, re.MULTILINE)
    documented = [(name, kind, labels.strip(), meaning) for name, kind, labels, meaning in rows]
    expected = [
        (m.name, m.kind, ", ".join(f"`{label}`" for label in m.labels), m.help) for m in METRICS
    ]
    assert documented == expected
    assert {metric.kind for metric in METRICS} == {COUNTER, GAUGE, HISTOGRAM}


def test_a_scrape_has_the_documented_metrics_and_those_of_the_process() -> None:
    history = History()
    history.epoch(0)
    registry = ReportedHistory().tell(history).reporter.registry
    found = {family.name for family in registry.collect()}
    known = {m.name.removesuffix("_total") if m.kind == COUNTER else m.name for m in METRICS}
    assert {name for name in found if not name.startswith("process_")} == known


def test_consumers_that_lag_or_are_gone_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.end(COMMIT, job.half(real_queue_id=0))
    job.run()
    told = ReportedHistory(
        reporter_of(lake={"path": job.lake.path}, health={"consumer_lag_ms": 1_500})
    )
    watch = told.reporter._consumers
    told.tell(History())
    with (
        Consumer(job.lake.path, "lives", ["orders"], session_timeout_ms=3_600_000) as consumer,
        Consumer(job.lake.path, "gone", ["orders"], session_timeout_ms=1),
    ):
        consumer.commit()
        now_is(monkeypatch, time.time_ns() // 1_000_000 + 9_000)
        watch.read_once()
        samples = told.samples()
    (lag,) = some(samples, "txlake_consumer_lag_seconds").items()
    (gone,) = some(samples, "txlake_consumer_gone_seconds").items()
    assert lag == ('{consumer_group="lives"}', (time.time_ns() // 1_000_000 - job.at) / 1_000)
    assert gone[0] == '{consumer_group="gone"}' and 8 < gone[1] < 600
    assert some(samples, "txlake_problem_limit") == {
        '{problem="consumer_gone"}': 60,
        '{problem="consumer_lag"}': 1.5,
        '{problem="publisher_gone"}': 60,
        '{problem="publisher_lag"}': 300,
    }

    # What cannot be read is not known: no epoch and no scrape fails.
    shutil.rmtree(job.lake.table_path("topics"))
    watch.read_once()
    assert watch.unread is None and not some(told.samples(), "txlake_consumer_lag_seconds")


def test_refused_messages_are_measured_until_they_are_done(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    told = ReportedHistory(reporter_of(lake={"path": job.lake.path}))
    watch = told.reporter._consumers
    told.tell(History())

    def deliver(count: int) -> None:
        for _ in range(count):
            job.end(COMMIT, job.half(real_queue_id=0))
        job.run()

    def measured() -> Samples:
        watch.read_once()
        return some(told.samples(), r"txlake_consumer_(dead|retrying)_messages")

    def listen_until(answer: ConsumeStatus, expected: Samples, **options: Any) -> None:
        """Run a listener that answers the same to each message, until it is measured so."""
        run_until(
            job.lake.path, lambda _: answer, lambda: measured() == expected, measured, **options
        )

    dead = 'txlake_consumer_dead_messages{consumer_group="points"}'
    retrying = 'txlake_consumer_retrying_messages{consumer_group="points"}'
    later = ConsumeStatus.RECONSUME_LATER
    deliver(1)
    assert measured() == {}
    listen_until(later, {retrying: 1}, retry_delays_ms=[3_600_000])
    deliver(2)
    listen_until(later, {dead: 2, retrying: 1}, retries_max=0)

    assert write_resume(job.lake, find_dead(job.lake, "points", None, 0, 1)) == 1
    assert measured() == {dead: 1, retrying: 2}
    write_resume(job.lake, find_dead(job.lake, "points", None, None, None))
    assert measured() == {retrying: 3}
    listen_until(ConsumeStatus.CONSUME_SUCCESS, {retrying: 1})
    deliver(2)
    listen_until(later, {dead: 2, retrying: 1}, retries_max=0)
    assert write_drop(job.lake, find_dead(job.lake, "points", None, 0, 3), "ada", "why") == 1
    assert measured() == {dead: 1, retrying: 1}
    plan = read_progress(job.lake).last
    assert plan is not None
    retention = RefusedRetention(job.lake, 1_000)
    retention.resume_from(dataclasses.replace(plan, epoch_at=time.time_ns() // 1_000_000 + 2_000))
    assert sum(step.rows_expired for step in retention.steps()) > 0
    assert measured() == {retrying: 1}

    # What cannot be read is not known: no epoch and no scrape fails.
    shutil.rmtree(job.lake.table_path("consumer_retries") + "/_delta_log")
    watch.read_once()
    assert not watch.refused

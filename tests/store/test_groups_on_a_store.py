"""Groups of consumers of a lake in a store: they share queues, retry, and give up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipelines.job.refused_retention import RefusedRetention
from storage.files.location import lake_location
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault, LostAnswer
from tests.support.store import Bucket
from tests.support.wait import wait_until
from txlake import ConsumedMessage, Consumer, ConsumeStatus
from txlake._dead_letters import DeadLetters
from txlake._retries import ConsumerRetries

TOPIC = "orders"


@pytest.fixture
def open_consumer(sound_bucket: Bucket, unique: Callable[[str], str]) -> Callable[..., Consumer]:
    """Return a way to open consumers of a group that no other test uses."""
    group = unique("points")

    def make(**options: Any) -> Consumer:
        return Consumer(
            f"{sound_bucket.uri}/lake",
            group,
            [TOPIC],
            storage_options=sound_bucket.options,
            **options,
        )

    return make


def test_members_share_queues_and_take_over_those_of_one_that_died(
    open_consumer: Callable[..., Consumer],
) -> None:
    one = open_consumer()
    count = len(one.assignment())
    assert count >= 2
    two = open_consumer(session_timeout_ms=3_000)

    def poll() -> None:
        for consumer in (one, two):
            consumer.poll(0.05)
            consumer.commit()

    def are_balanced() -> bool:
        poll()
        counts = sorted(len(consumer.assignment()) for consumer in (one, two))
        return counts == [count // 2, count - count // 2]

    wait_until(are_balanced, "a share for both", seen=lambda: (one.assignment(), two.assignment()))
    assert not set(one.assignment()) & set(two.assignment())

    def has_all() -> bool:  # the other one does not poll any more, as if it had died
        one.poll(0.05)
        one.commit()
        return len(one.assignment()) == count

    wait_until(has_all, "the queues of the other one", seen=one.assignment)
    two.close()
    one.close()


def test_what_is_refused_comes_again_and_is_dead_at_last_though_answers_are_lost(
    open_consumer: Callable[..., Consumer], proxy: FaultProxy, sound_bucket: Bucket
) -> None:
    seen: list[tuple[tuple[int, int], int]] = []

    def listen(messages: Sequence[ConsumedMessage]) -> ConsumeStatus | None:
        (message,) = messages
        seen.append(((message.queue_id, message.queue_offset), message.reconsume_times))
        return ConsumeStatus.RECONSUME_LATER if message.queue_offset == 0 else None

    retries = ConsumerRetries(f"{sound_bucket.uri}/lake/consumer_retries", sound_bucket.options)
    lost = Fault(
        LostAnswer(), method="PUT", key=r"consumer_retries/_delta_log/0*[1-9]\d*\.json$", times=2
    )
    with open_consumer() as consumer, proxy.fault(lost) as happening:
        heads = {(queue_id, 0) for _, queue_id in consumer.assignment() if consumer.lag()[
            TOPIC, queue_id]}  # fmt: skip
        thread = threading.Thread(
            target=consumer.run, args=(listen,),
            kwargs={"retries_max": 1, "retry_delays_ms": [200], "commit_interval_ms": 100},
        )  # fmt: skip
        thread.start()

        def dead() -> set[tuple[int, int]]:
            rows = retries.newest().values()
            return {(row.queue_id, row.queue_offset) for row in rows if row.state == "dead"}

        try:
            wait_until(lambda: dead() == heads, "the dead messages", seen=lambda: (dead(), heads))
        finally:
            consumer.stop()
            thread.join()
        assert happening.hits >= 1

    assert {(row.retries, len(row.attempts)) for row in retries.newest().values()} == {(2, 2)}
    for head in heads:
        assert [times for place, times in seen if place == head] == [0, 1]
    letters = DeadLetters(f"{sound_bucket.uri}/lake/consumer_dead_letters", sound_bucket.options)
    dead_rows = list(retries.newest().values())
    read = letters.read(dead_rows)
    assert {key: rows["topic"].to_pylist() for key, rows in read.items()} == {
        row.key: [TOPIC] for row in dead_rows
    }

    lake = Lake(lake_location(f"{sound_bucket.uri}/lake", sound_bucket.options))
    plan = read_progress(lake).last
    assert plan is not None
    retention = RefusedRetention(lake, 1_000)
    retention.resume_from(replace(plan, epoch_at=time.time_ns() // 1_000_000 + 60_000))
    expired = sum(step.rows_expired for step in retention.steps())
    assert expired >= 2 * len(dead_rows)  # a letter can stand there twice
    assert {row.state for row in retries.newest().values()} == {"dropped"}
    assert letters.read(dead_rows) == {}

"""How many records Kafka's client may unpack at once: as many as fit the heap at their largest."""

from __future__ import annotations

import pytest

from pipelines.jvm.heap import LandingHeap
from pipelines.kafka_client.intake import Intake, poll_records_max

KIB, MIB = 1 << 10, 1 << 20
CASES = [  # heap in MiB, its tasks, the largest record in bytes | records | why
    (768, 2, 1 * MIB, 48, "a local job with its defaults"),
    (768, 1, 1 * MIB, 96, "one task has the share of two"),
    (768, 8, 1 * MIB, 12, "more tasks share the same heap"),
    (8_192, 2, 1 * MIB, 500, "a larger heap takes Kafka's default, and no more"),
    (256, 2, 1 * MIB, 16, "a smaller heap takes fewer"),
    (768, 2, 8 * MIB, 6, "larger records are fewer"),
    (768, 2, 48 * MIB, 1, "one record is the whole share"),
    (768, 2, 900 * MIB, 1, "one record is the least there is"),
    (768, 2, 100 * KIB, 491, "just below Kafka's default"),
    (768, 2, 1, 500, "records that are small by the settings"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("heap_mib", "tasks", "record_bytes_max", "records"),
    [case[:4] for case in CASES],
    ids=[case[4] for case in CASES],
)
def test_the_records_of_a_poll_follow_the_heap(
    heap_mib: int, tasks: int, record_bytes_max: int, records: int
) -> None:
    assert poll_records_max(LandingHeap(heap_mib * MIB, tasks), record_bytes_max) == records


def test_a_topic_that_takes_larger_records_than_the_settings_counts() -> None:
    intake = Intake(LandingHeap(768 * MIB, 2), 1 * MIB, 200_000)
    assert intake.poll_records == 48
    intake.topics_take(8 * MIB)
    assert intake.poll_records == 6
    intake.topics_take(1 * MIB)
    assert intake.poll_records == 6

"""What a chaos run says of publishing: who loses, doubles, reorders or tears a message is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.chaos.compare import Facts
from bench.chaos.kafka_consumer import SeenInKafka
from bench.chaos.kills import SUSPENDED, schedule
from bench.chaos.names import KAFKA_CONSUMER, PUBLISHED_PREFIX, PUBLISHERS
from bench.chaos.published_compare import Published, compare_published, figures_of
from pipelines.publish.progress import TopicProgress
from txlake import protocol as p

# Topic a: a set of two with one in topic b; then a single one.
ROWS = {
    "a": [(0, "set"), (1, "set"), (2, "single")],
    "b": [(0, "set")],
    p.CHECK_MAX_TOPIC: [(0, "given up")],
}
WHOLE = Published(
    records={("a", 0): [(0, b"a0"), (1, b"a1"), (2, b"a2")], ("b", 0): [(0, b"b0")]},
    transactions=[],
)


def facts() -> Facts:
    messages = {
        topic: [
            {
                "queue_id": 0,
                "queue_offset": offset,
                "body": f"{topic}{offset}".encode(),
                "producer_group": "g",
                "transaction_id": name,
                "epoch": 1,
            }
            for offset, name in rows
        ]
        for topic, rows in ROWS.items()
    }

    return Facts([], {}, [], [], set(), messages)


def progress(topic: str, next_offset: int) -> TopicProgress:
    return TopicProgress(topic, f"{PUBLISHED_PREFIX}{topic}", "id", (next_offset,), (0,), 1, "d")


def seen(folder: Path, published: Published) -> SeenInKafka:
    """Return a consumer that saw all that is published."""
    journal = SeenInKafka(folder / "seen.sqlite")

    journal.add(
        [
            SimpleNamespace(
                topic=lambda topic=topic: f"{PUBLISHED_PREFIX}{topic}",
                partition=lambda queue_id=queue_id: queue_id,
                offset=lambda number=number: number,
                value=lambda value=value: value,
                headers=lambda offset=offset: [(p.QUEUE_OFFSET, str(offset).encode())],
            )
            for (topic, queue_id), records in published.records.items()
            for number, (offset, value) in enumerate(records)
        ]
    )
    return journal


def told(folder: Path, published: Published, saw: Published | None = None) -> list[str]:
    return compare_published(facts(), published, seen(folder, saw or published))


def with_records(*records: tuple[int, bytes]) -> Published:
    return replace(WHOLE, records={**WHOLE.records, ("a", 0): list(records)})


def test_a_run_in_which_each_message_is_published_once_and_sets_at_once_has_no_difference(
    tmp_path: Path,
) -> None:
    whole = replace(WHOLE, transactions=[[progress("a", 2), progress("b", 1)], [progress("a", 3)]])
    assert told(tmp_path, whole) == []
    figures = figures_of(facts(), whole, seen(tmp_path, whole))
    assert (figures["records"], figures["message_transactions_of_several"]) == (4, 1)
    assert figures["seen_more_than_once"] == 4  # both journals are one file


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([(0, b"a0"), (2, b"a2")], "lost [1]", id="lost"),
        pytest.param([(0, b"a0"), (1, b"a1"), (1, b"a1"), (2, b"a2")], "twice [1]", id="twice"),
        pytest.param([(0, b"a0"), (2, b"a2"), (1, b"a1")], "in order: False", id="out of order"),
        pytest.param([(0, b"a0"), (1, b"other"), (2, b"a2")], "3 records", id="another body"),
    ],
)
def test_what_is_published_otherwise_than_the_table_is_named(
    tmp_path: Path, records: Any, expected: str
) -> None:
    (text,) = told(tmp_path, with_records(*records))
    assert text.startswith("topic a queue 0: 3 messages in the table, ") and expected in text


@pytest.mark.parametrize(
    "transactions",
    [
        pytest.param([[progress("a", 1)], [progress("a", 3), progress("b", 1)]], id="in a queue"),
        pytest.param([[progress("a", 3)], [progress("b", 1)]], id="between topics"),
    ],
)
def test_a_set_that_two_kafka_transactions_publish_is_named(
    tmp_path: Path, transactions: list[list[TopicProgress]]
) -> None:
    texts = told(tmp_path, replace(WHOLE, transactions=transactions))
    assert len(texts) == 2 and all(
        "of 3 messages of transaction set in epoch 1" in t for t in texts
    )


def test_what_the_consumer_did_not_see_or_saw_in_another_order_is_named(tmp_path: Path) -> None:
    (text,) = told(tmp_path, WHOLE, with_records((1, b"a1"), (0, b"a0"), (2, b"a2")))
    assert text == "topic a queue 0: the Kafka consumer saw 3 of 3 records, or in another order"


def test_publishers_and_their_consumer_are_killed_and_suspended_only_where_it_is_asked_for() -> (
    None
):
    kills = schedule(200, 1, 2.0, is_published=True)
    assert {*PUBLISHERS, KAFKA_CONSUMER} <= {kill.target for kill in kills}
    of_publishers = [kill for kill in kills if kill.target in PUBLISHERS]
    assert {kill.whom for kill in of_publishers} >= {"all", SUSPENDED}
    assert {kill.name for kill in of_publishers} >= {"publisher (all)", "publisher (suspended)"}
    others = {kill.target for kill in schedule(200, 1, 2.0)}
    assert not {*PUBLISHERS, KAFKA_CONSUMER} & others

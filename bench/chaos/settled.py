"""When a chaos run has come to rest: all that Kafka has is landed, and what has to happen did."""

from __future__ import annotations

from collections import Counter

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.chaos.compare import TOO_LATE, read_facts, undecided
from bench.chaos.counts import COMMON, counts_of, missing
from bench.chaos.raw_compare import compare_raw
from bench.chaos.settings import dealt
from bench.chaos.stage import Stage
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.wire.record_kinds import KINDS
from txlake import protocol

_TOPICS = (protocol.HALF_TOPIC, protocol.OP_TOPIC, protocol.SCHEDULE_TOPIC, protocol.ADMIN_TOPIC)


def is_settled(stage: Stage) -> bool:
    """Returns whether every record is landed, every SDK transaction decided, every promise kept."""
    lake = Lake(stage.location)
    last = read_progress(lake).last
    if last is None or any(last.queue_ends(topic) != ends(stage, topic) for topic in _TOPICS):
        return False

    facts = read_facts(lake)
    if undecided(facts, stage.journal):
        return False

    given_up = facts.given_up()
    wanted = sum(
        transaction_id not in given_up for transaction_id, _ in stage.journal.committed().values()
    )

    delivered = facts.delivered()
    return delivered >= wanted and not compare_raw(lake, facts, stage.raw_journal)


def is_seen(stage: Stage) -> bool:
    """Returns whether the consumer saw all that it has to see."""
    return stage.seen.count() >= read_facts(Lake(stage.location)).consumed()


def has_met_a_late_end(stage: Stage, start: int) -> bool:
    """Returns whether a late COMMIT was applied, or turned down, as that start's policy says."""
    lake = Lake(stage.location)
    if dealt(stage.seed, start)["transaction.late_end_policy"] == "apply":
        outcomes = lake.read("outcomes", ["outcome", "cause"]).to_pylist()
        return {"outcome": "COMMITTED", "cause": "late_end"} in outcomes
    return TOO_LATE in lake.read("conflicts", ["reason"])["reason"].to_pylist()


def has_common(stage: Stage) -> bool:
    """Returns whether all has happened that does in any run, and each kind was unreadable."""
    counts = counts_of(Lake(stage.location))
    promised = Counter(one.kind for one in stage.raw_journal.promises())
    unread = {name.partition(" ")[0] for name in counts["unreadable"]}
    return unread == set(KINDS) and not missing({**counts, "raw_promises": promised}, COMMON)


def ends(stage: Stage, topic: str) -> dict[int, int]:
    """Returns the end of every partition of a topic; nothing while Kafka does not answer."""
    kafka = Consumer(
        {
            "bootstrap.servers": stage.broker.bootstrap_servers,
            "group.id": "chaos-look",
            "log_level": 0,
        }
    )

    try:
        partitions = kafka.list_topics(topic, timeout=5).topics[topic].partitions
        return {
            queue: kafka.get_watermark_offsets(TopicPartition(topic, queue), timeout=5)[1]
            for queue in partitions
        }
    except KafkaException:
        return {}
    finally:
        kafka.close()

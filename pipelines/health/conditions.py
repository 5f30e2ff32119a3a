"""The conditions of the problems, and their limits: one sentence for each thing that is wrong now.

Things that an operator can no longer change are history, not problems (`txlake status` has them
below). The problems' names stand in `problems.py`. Units: ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipelines.epoch.clock import CLOCKS_APART_MS
from pipelines.health.facts import HOUR_MS, Facts
from pipelines.health.groups import NEWEST_CHECKS
from pipelines.output import ago, instant, span
from txlake._counted import counted
from txlake.protocol import colliding_topic

if TYPE_CHECKING:
    from pipelines.publish.status import PublisherStatus

NO_EPOCH_MS: Final = HOUR_MS
LAG_MS: Final = 300_000
NO_CHECK_TOPIC_MS: Final = 60_000  # a producer makes the topic when it starts
PENDING_OLD_MS: Final = HOUR_MS
FLOOR_NEAR: Final = 0.75
LAKE_AHEAD_MS: Final = CLOCKS_APART_MS


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `words`, a sentence; `since_at`: since when, if the facts tell."""

    words: str
    since_at: int | None = None


def not_running(facts: Facts) -> list[Finding]:
    """No driver has the lake, or a start is refused as Kafka's topics stand."""
    refused = facts.start_error
    if facts.drivers is not None and facts.drivers.active is None:
        text = "no driver has the lake: nothing is decided or delivered"
        return [Finding(text if refused is None else f"{text}, and a start is refused: {refused}")]
    return [] if refused is None else [Finding(f"a start is refused: {refused}")]


def kafka_away(facts: Facts) -> list[Finding]:
    """Kafka does not answer, or does not let us in."""
    return [Finding(str(facts.kafka_error))] if facts.is_kafka_away else []


def no_epoch(facts: Facts) -> list[Finding]:
    """Records have waited in Kafka for NO_EPOCH_MS, and no epoch was committed meanwhile.

    A lake to which nothing comes has had no epoch for long when its next record comes.
    """
    waiting = facts.records_waiting
    behind_ms = facts.lag_ms
    epoch_at = facts.lake.epoch_at
    if not waiting or behind_ms is None:
        return []

    quiet_ms = behind_ms if epoch_at is None else min(behind_ms, facts.lake.now_ms - epoch_at)
    if quiet_ms < NO_EPOCH_MS:
        return []
    words = (
        f"no epoch was committed for {span(quiet_ms)}, with "
        f"{counted(waiting, 'record')} waiting in Kafka"
    )
    return [Finding(words, facts.lake.now_ms - quiet_ms)]


def lag(facts: Facts) -> list[Finding]:
    """The oldest record that is not landed has waited for LAG_MS."""
    behind = facts.lag_ms
    waiting = facts.records_waiting or 0
    if behind is None or behind < LAG_MS:
        return []

    words = f"the job is {span(behind)} behind Kafka: {counted(waiting, 'record')} waiting"
    return [Finding(words, facts.lake.now_ms - behind)]


def group_silent(facts: Facts) -> list[Finding]:
    """A group with pending halves has left its newest NEWEST_CHECKS checks unanswered.

    Or its name differs from another group's by '.' and '_' alone, and one of the two gets no check.
    """
    waiting = [group for group in facts.lake.groups if group["pending"]]
    alike: dict[str, list[str]] = {}
    for group in facts.lake.groups:
        name = group["producer_group"]
        alike.setdefault(name.replace(".", "_"), []).append(name)

    pairs: set[tuple[str, ...]] = set()
    for group in waiting:
        name = group["producer_group"]
        other = colliding_topic(name, alike[name.replace(".", "_")])
        if other is not None:
            pairs.add(tuple(sorted((name, other))))

    collisions = [
        Finding(
            f"groups {name} and {other} differ by '.' and '_' alone: Kafka takes the check topic "
            "of one of them, and the other is never asked"
        )
        for name, other in sorted(pairs)
    ]
    silent = [
        Finding(
            f"group {group['producer_group']} has not answered its newest {group['unanswered']} "
            f"checks, with {counted(group['pending'], 'half', 'halves')} pending",
            group["oldest_at"],
        )
        for group in waiting
        if group["of_checks"] >= NEWEST_CHECKS and group["unanswered"] == group["of_checks"]
    ]
    return collisions + silent


def no_check_topic(facts: Facts) -> list[Finding]:
    """A half has been pending for NO_CHECK_TOPIC_MS, and its group has no check topic."""
    latest_at = facts.lake.now_ms - NO_CHECK_TOPIC_MS
    return [
        Finding(
            f"group {group['producer_group']} has no check topic, with "
            f"{counted(group['pending'], 'half', 'halves')} pending: nobody can be asked about "
            "them",
            group["oldest_at"],
        )
        for group in facts.lake.groups
        if group["producer_group"] in (facts.groups_without_topic or ())
        and group["pending"]
        and group["oldest_at"] <= latest_at
    ]


def discarded(facts: Facts) -> list[Finding]:
    """Halves are given up that can still be ended or resumed: `txlake dead list` has them."""
    count = facts.lake.discarded
    words = f"halves that are given up and can still be ended or resumed: {count}"
    return [Finding(words)] if count else []


def undeliverable(facts: Facts) -> list[Finding]:
    """Committed messages wait for an operator."""
    count = facts.lake.undeliverable
    return [Finding(f"committed messages that wait for an operator: {count}")] if count else []


def pending_old(facts: Facts) -> list[Finding]:
    """The oldest half that waits for its end is older than PENDING_OLD_MS."""
    lake = facts.lake
    if lake.oldest_at is None or lake.now_ms - lake.oldest_at < PENDING_OLD_MS:
        return []
    words = f"the oldest pending half was stored {span(lake.now_ms - lake.oldest_at)} ago"
    return [Finding(words, lake.oldest_at)]


def consumer_gone(facts: Facts) -> list[Finding]:
    """The owner of a group's queues died, and messages wait for the group.

    It did not give them back, and its session ended longer ago than `consumer_gone_ms`.
    """
    latest_at = facts.lake.now_ms - facts.limits.consumer_gone_ms
    return [
        Finding(
            f"consumer group {row['consumer_group']} has had no consumer for "
            f"{span(facts.lake.now_ms - row['gone_at'])}, since one died: unread messages: "
            f"{row['messages']}",
            row["gone_at"],
        )
        for row in facts.lake.unread
        if row["is_gone"] and row["gone_at"] <= latest_at
    ]


def consumer_lag(facts: Facts) -> list[Finding]:
    """A group's owner lives, and has left a message unread for `consumer_lag_ms`."""
    latest_at = facts.lake.now_ms - facts.limits.consumer_lag_ms
    return [
        Finding(
            f"consumer group {row['consumer_group']} is "
            f"{span(facts.lake.now_ms - row['oldest_at'])} behind: unread messages: "
            f"{row['messages']}",
            row["oldest_at"],
        )
        for row in facts.lake.unread
        if not row["is_gone"] and row["oldest_at"] is not None and row["oldest_at"] <= latest_at
    ]


def consumer_dead(facts: Facts) -> list[Finding]:
    """A group's listener has refused messages too often, and nobody has resumed or dropped them."""
    return [
        Finding(
            f"consumer group {row['consumer_group']} has given up "
            f"{counted(row['dead'], 'message')}, the oldest "
            f"{ago(row['dead_oldest_at'], facts.lake.now_ms)}",
            row["dead_oldest_at"],
        )
        for row in facts.lake.refused
        if row["dead"]
    ]


def publisher_stopped(facts: Facts) -> list[Finding]:
    """A publisher has stopped for a reason that waiting does not mend."""
    return [
        Finding(
            f"publisher {publisher.publisher} has stopped: {publisher.stop.reason}",
            publisher.stop.at,
        )
        for publisher in facts.publishers or ()
        if publisher.stop is not None
    ]


def publisher_gone(facts: Facts) -> list[Finding]:
    """No process of a publisher runs, and a message has waited for `publisher_gone_ms`."""
    return [
        Finding(
            f"publisher {publisher.publisher} has no process, and its oldest message was committed "
            f"{_how_long_ago(facts, publisher)}: messages not published: {publisher.lag}"
        )
        for publisher in facts.publishers or ()
        if publisher.active is None
        and publisher.stop is None
        and publisher.unknown_reason is None
        and _is_behind(facts, publisher, facts.limits.publisher_gone_ms)
    ]


def publisher_lag(facts: Facts) -> list[Finding]:
    """A publisher runs, and a message has waited for `publisher_lag_ms`."""
    return [
        Finding(
            f"publisher {publisher.publisher} is behind: its oldest message was committed "
            f"{_how_long_ago(facts, publisher)}: messages not published: {publisher.lag}",
            publisher.oldest_at,
        )
        for publisher in facts.publishers or ()
        if publisher.active is not None
        and publisher.stop is None
        and _is_behind(facts, publisher, facts.limits.publisher_lag_ms)
    ]


def publisher_unknown(facts: Facts) -> list[Finding]:
    """The Kafka that a publisher writes to does not tell how far it is."""
    return [
        Finding(
            f"nobody knows how far publisher {publisher.publisher} is: {publisher.unknown_reason}"
        )
        for publisher in facts.publishers or ()
        if publisher.unknown_reason is not None
    ]


def _is_behind(facts: Facts, publisher: PublisherStatus, limit_ms: int) -> bool:
    """Returns whether a message has waited for so long, or longer than the lake tells."""
    lag_ms = publisher.lag_ms(facts.lake.now_ms)
    return bool(publisher.lag) and (lag_ms is None or lag_ms >= limit_ms)


def _how_long_ago(facts: Facts, publisher: PublisherStatus) -> str:
    lag_ms = publisher.lag_ms(facts.lake.now_ms)
    return "longer ago than the lake tells" if lag_ms is None else f"{span(lag_ms)} ago"


def floor_near(facts: Facts) -> list[Finding]:
    """A half that is given up is older than FLOOR_NEAR of retention_ms.

    When the floor passes it, it leaves the state, and neither a late end nor RESUME finds it.
    """
    oldest_at = facts.lake.discarded_oldest_at
    kept_ms = facts.retention_ms
    if oldest_at is None or kept_ms is None:
        return []

    age = facts.lake.now_ms - oldest_at
    if age < FLOOR_NEAR * kept_ms:
        return []

    words = (
        f"a discarded half is {span(age)} old: beyond {span(kept_ms)} the floor passes it, and "
        "neither a late end nor `dead resume` finds it"
    )
    return [Finding(words, oldest_at + int(FLOOR_NEAR * kept_ms))]


def lake_ahead_text(epoch_at: int, ahead_ms: int) -> str:
    """Returns the sentence about a lake that is ahead of the clocks. Units: ms."""
    return (
        f"the lake is {span(ahead_ms)} ahead of the clocks: its newest epoch_at is "
        f"{instant(epoch_at)}, so a clock was wrong. Until they reach it no half is asked about or "
        "given up, and no delay ends; commits and rollbacks take effect as ever"
    )


def lake_ahead(facts: Facts) -> list[Finding]:
    """`epoch_at` of the newest epoch is more than LAKE_AHEAD_MS later than the clocks say."""
    lake = facts.lake
    if lake.epoch_at is None or lake.epoch_at - lake.now_ms <= LAKE_AHEAD_MS:
        return []
    return [Finding(lake_ahead_text(lake.epoch_at, lake.epoch_at - lake.now_ms))]

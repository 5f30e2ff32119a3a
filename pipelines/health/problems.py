"""The problems that have a name: status, metrics and alerts use it, each limit stands here once.

not_running     no driver has the lake, or a start is refused as Kafka's topics stand
kafka_away      Kafka does not answer, or does not let us in
no_epoch        records wait in Kafka, and no epoch was committed for NO_EPOCH_MS
lag             the oldest record that is not landed has waited for LAG_MS
group_silent    the newest checks of a group, NEWEST_CHECKS of them, are unanswered; or its name
                differs from another group's by '.' and '_' alone, and one of both is never asked
given_up        halves were discarded in the last GIVEN_UP_MS
undeliverable   committed messages wait for an operator
pending_old     the oldest half that waits for its end is older than PENDING_OLD_MS
floor_near      a discarded half is older than FLOOR_NEAR of retention_ms: when the floor passes it,
                it leaves the state, and neither a late end nor RESUME finds it
lake_ahead      `epoch_at` of the newest epoch is more than LAKE_AHEAD_MS later than the clocks say
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pipelines.health.facts import HOUR_MS, Facts
from pipelines.health.groups import NEWEST_CHECKS
from pipelines.screen import instant, span
from txlake.protocol import colliding_topic

NO_EPOCH_MS: Final = HOUR_MS
LAG_MS: Final = 300_000
GIVEN_UP_MS: Final = HOUR_MS
PENDING_OLD_MS: Final = HOUR_MS
FLOOR_NEAR: Final = 0.75
LAKE_AHEAD_MS: Final = 60_000  # as far as the clocks of machine and broker can be apart


@dataclass(frozen=True)
class Problem:
    """Something that an operator should look at.

    `name`: the same everywhere; `words`: what is wrong, with its numbers; `command`: what helps.
    """

    name: str
    words: str
    command: str


@dataclass(frozen=True)
class Rule:
    """How one problem is found. `needs_kafka`: without Kafka it is not known.

    `look` returns one sentence for each thing that is wrong.
    """

    name: str
    limit: str
    look: Callable[[Facts], list[str]]
    command: str
    needs_kafka: bool = False


def _not_running(facts: Facts) -> list[str]:
    refused = facts.start_trouble
    if facts.drivers is not None and facts.drivers.active is None:
        text = "no driver has the lake: nothing is decided or delivered"
        return [text if refused is None else f"{text}, and a start is refused: {refused}"]
    return [] if refused is None else [f"a start is refused: {refused}"]


def _kafka_away(facts: Facts) -> list[str]:
    return [str(facts.kafka_trouble)] if facts.is_kafka_away else []


def _no_epoch(facts: Facts) -> list[str]:
    waiting, lake = facts.records_waiting, facts.lake
    # A lake without an epoch has none since its first record came.
    quiet_ms = facts.behind_ms if lake.epoch_at is None else lake.now_ms - lake.epoch_at
    if not waiting or quiet_ms is None or quiet_ms < NO_EPOCH_MS:
        return []
    return [f"no epoch was committed for {span(quiet_ms)}, and {waiting} records wait in Kafka"]


def _lag(facts: Facts) -> list[str]:
    behind = facts.behind_ms
    if behind is None or behind < LAG_MS:
        return []
    return [f"the job is {span(behind)} behind Kafka: {facts.records_waiting} records wait"]


def _group_silent(facts: Facts) -> list[str]:
    names = [group["producer_group"] for group in facts.lake.groups]
    pairs = ((name, colliding_topic(name, names)) for name in sorted(names))
    return [
        f"groups {name} and {other} differ by '.' and '_' alone: Kafka takes the check topic of "
        "one of them, and the other is never asked"
        for name, other in pairs
        if other is not None and name < other
    ] + [
        f"group {group['producer_group']} has not answered its newest {group['unanswered']} checks;"
        f" {group['pending']} of its halves are pending"
        for group in facts.lake.groups
        if group["of_checks"] >= NEWEST_CHECKS and group["unanswered"] == group["of_checks"]
    ]


def _given_up(facts: Facts) -> list[str]:
    count = facts.lake.given_up
    return [f"halves given up in the last {span(GIVEN_UP_MS)}: {count}"] if count else []


def _undeliverable(facts: Facts) -> list[str]:
    count = facts.lake.undeliverable
    return [f"committed messages that wait for an operator: {count}"] if count else []


def _pending_old(facts: Facts) -> list[str]:
    lake = facts.lake
    if lake.oldest_at is None or lake.now_ms - lake.oldest_at < PENDING_OLD_MS:
        return []
    return [f"the oldest pending half was stored {span(lake.now_ms - lake.oldest_at)} ago"]


def _floor_near(facts: Facts) -> list[str]:
    oldest, kept_ms = facts.lake.discarded_oldest_at, facts.retention_ms
    if oldest is None or kept_ms is None:
        return []
    age = facts.lake.now_ms - oldest
    if age < FLOOR_NEAR * kept_ms:
        return []
    return [
        f"a discarded half is {span(age)} old: beyond {span(kept_ms)} the floor passes it, and "
        "neither a late end nor `dead resume` finds it"
    ]


def lake_ahead_text(epoch_at: int, ahead_ms: int) -> str:
    """Returns in words that a lake is ahead of the clocks, and what that means. Units: ms."""
    return (
        f"the lake is {span(ahead_ms)} ahead of the clocks: its newest epoch_at is "
        f"{instant(epoch_at)}, so a clock was wrong. Until they reach it no half is asked about or "
        "given up, and no delay ends; commits and rollbacks take effect as ever"
    )


def _lake_ahead(facts: Facts) -> list[str]:
    lake = facts.lake
    if lake.epoch_at is None or lake.epoch_at - lake.now_ms <= LAKE_AHEAD_MS:
        return []
    return [lake_ahead_text(lake.epoch_at, lake.epoch_at - lake.now_ms)]


RULES: Final = (
    Rule("not_running", "at once", _not_running,
         "txlake run --conf FILE; txlake losses list --conf FILE where records are lost",
         needs_kafka=True),
    Rule("kafka_away", "at once", _kafka_away,
         "txlake doctor --conf FILE; is Kafka running?", needs_kafka=True),
    Rule("no_epoch", f"{span(NO_EPOCH_MS)}, while records wait", _no_epoch,
         "txlake doctor --conf FILE; is `txlake run` running?", needs_kafka=True),
    Rule("lag", span(LAG_MS), _lag, "txlake status: epoch times by step", needs_kafka=True),
    Rule("group_silent", f"the newest {NEWEST_CHECKS} checks", _group_silent,
         "txlake groups; does a producer of the group run?"),
    Rule("given_up", f"one in the last {span(GIVEN_UP_MS)}", _given_up,
         "txlake dead list, then txlake dead resume"),
    Rule("undeliverable", "one", _undeliverable,
         "txlake dead list, txlake topic create, then txlake dead resume"),
    Rule("pending_old", span(PENDING_OLD_MS), _pending_old, "txlake tx list --pending"),
    Rule("floor_near", f"{FLOOR_NEAR:.0%} of [lake] retention_ms", _floor_near,
         "txlake dead list, then txlake dead resume or txlake tx commit|rollback"),
    Rule("lake_ahead", span(LAKE_AHEAD_MS), _lake_ahead,
         "date; txlake doctor --conf FILE; if the clocks are right, wait, or txlake tx "
         "commit|rollback"),
)  # fmt: skip


def problems(facts: Facts) -> list[Problem]:
    """Returns what is wrong, in the order of RULES."""
    return [Problem(rule.name, words, rule.command) for rule in RULES for words in rule.look(facts)]


def unknown(facts: Facts) -> list[str]:
    """Returns the names of the problems that cannot be told from what is known."""
    told = {problem.name for problem in problems(facts)}
    no_kafka, no_settings = facts.lags is None, facts.retention_ms is None
    return [
        rule.name
        for rule in RULES
        if rule.name not in told
        and ((rule.needs_kafka and no_kafka) or (rule.name == "floor_near" and no_settings))
    ]

"""The one table of problems: name, condition, limit, helpful command, page, alert.

`txlake status`, the console, conf/alerts.yml, docs/operator.md and docs/metrics.md are made from
it; a test compares them (`test_one_table_makes_all_that_names_a_problem`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pipelines.health import conditions
from pipelines.health.conditions import (
    FLOOR_NEAR,
    LAG_MS,
    LAKE_AHEAD_MS,
    NO_CHECK_TOPIC_MS,
    NO_EPOCH_MS,
    PENDING_OLD_MS,
    Finding,
)
from pipelines.health.facts import Facts
from pipelines.health.groups import NEWEST_CHECKS
from pipelines.output import span
from pipelines.settings import HealthSettings

CRITICAL, WARNING = "critical", "warning"


@dataclass(frozen=True)
class Problem:
    """Something that an operator should look at.

    `name`: the same everywhere; `words`: a sentence with its numbers; `command`: the remedy;
    `since_at`: since when, ms, if the facts tell.
    """

    name: str
    words: str
    command: str
    since_at: int | None = None


@dataclass(frozen=True)
class Alert:
    """A rule of Prometheus on the job's metrics.

    `expression`: PromQL; `lasts`: how long it must hold; empty: at once. `summary`: with
    Prometheus' own `$labels` and `$value`.
    """

    severity: str
    expression: str
    summary: str
    lasts: str = ""


@dataclass(frozen=True)
class Rule:
    """One problem.

    `condition` and `limit`: in words; `find` returns a finding for each thing that is wrong now.
    `command`: the one that helps; `page`: of the console. `needs_kafka`, `needs_settings`,
    `needs_publishers`: without them the problem's state is not known. `setting`: the key of
    [health] with the limit, if there is one: `txlake_problem_limit` serves it for the alert.
    """

    name: str
    condition: str
    limit: str
    find: Callable[[Facts], list[Finding]]
    command: str
    alert: Alert
    page: str = "/"
    needs_kafka: bool = False
    needs_settings: bool = False
    needs_publishers: bool = False
    setting: str = ""


def _setting_text(setting: str) -> str:
    return f"[health] {setting}, {span(getattr(HealthSettings(), setting))}"


def _is_beyond_setting(metric: str, problem: str, label: str = "consumer_group") -> str:
    """Returns PromQL: a metric with a label is beyond the limit that the job serves."""
    return (
        f"{metric} > ignoring(problem, {label}) group_left "
        f'txlake_problem_limit{{problem="{problem}"}}'
    )


def _is_behind_and(problem: str, condition: str) -> str:
    """Returns PromQL: a publisher is behind beyond a limit, has not stopped, and a condition."""
    behind = _is_beyond_setting("txlake_publisher_lag_seconds", problem, "publisher")
    return f"{behind} and {condition} unless ignoring(cause) txlake_publisher_stopped"


RULES: Final = (
    Rule(
        name="not_running",
        condition="no driver has the lake, or a start is refused as Kafka's topics stand",
        limit="at once",
        find=conditions.not_running,
        command="txlake run --conf FILE; txlake losses list --conf FILE where records are lost",
        alert=Alert(CRITICAL, "absent(txlake_active == 1)", "no driver has the lake", "5m"),
        needs_kafka=True,
    ),
    Rule(
        name="kafka_away",
        condition="Kafka does not answer, or does not let us in",
        limit="at once",
        find=conditions.kafka_away,
        command="txlake doctor --conf FILE; is Kafka running?",
        alert=Alert(
            CRITICAL, "txlake_kafka_up == 0", "{{ $labels.instance }}: Kafka does not answer", "1m"
        ),
        needs_kafka=True,
    ),
    Rule(
        name="no_epoch",
        condition="records wait in Kafka, and no epoch is committed",
        limit=f"{span(NO_EPOCH_MS)}, while records wait",
        find=conditions.no_epoch,
        command="txlake doctor --conf FILE; is `txlake run` running?",
        alert=Alert(
            CRITICAL,
            "txlake_waiting_records > 0 and "
            f"time() - txlake_last_epoch_timestamp_seconds > {NO_EPOCH_MS // 1_000}",
            '{{ $labels.instance }}: no epoch for {{ $value | printf "%.0f" }} records that wait, '
            f"for more than {span(NO_EPOCH_MS)}",
            "2m",
        ),
        needs_kafka=True,
    ),
    Rule(
        name="lag",
        condition="the oldest record that is not landed waits in Kafka",
        limit=span(LAG_MS),
        find=conditions.lag,
        command="txlake status: epoch times by step",
        alert=Alert(
            WARNING,
            f"txlake_lag_seconds > {LAG_MS // 1_000}",
            "{{ $labels.instance }}: {{ $value | humanizeDuration }} behind Kafka",
            "1m",
        ),
        needs_kafka=True,
    ),
    Rule(
        name="group_silent",
        condition="a group with pending halves does not answer, or has another's check topic",
        limit=f"the newest {NEWEST_CHECKS} checks",
        find=conditions.group_silent,
        command="txlake groups; does a producer of the group run?",
        alert=Alert(
            WARNING,
            f"txlake_group_unanswered_checks >= {NEWEST_CHECKS}",
            "{{ $labels.instance }}: group {{ $labels.producer_group }} has not answered its last "
            "{{ $value }} checks",
            "1m",
        ),
        page="/groups",
    ),
    Rule(
        name="no_check_topic",
        condition="a half is pending, and its group has no check topic",
        limit=span(NO_CHECK_TOPIC_MS),
        find=conditions.no_check_topic,
        command="txlake groups; start a producer of the group with a listener, or txlake tx "
        "commit|rollback",
        alert=Alert(
            WARNING,
            f"txlake_group_without_check_topic_seconds > {NO_CHECK_TOPIC_MS // 1_000}",
            "{{ $labels.instance }}: group {{ $labels.producer_group }} has no check topic, and a "
            "half has been pending for {{ $value | humanizeDuration }}",
        ),
        page="/groups",
        needs_kafka=True,
    ),
    Rule(
        name="given_up",
        condition="a half is given up, and can still be ended or resumed",
        limit="one",
        find=conditions.discarded,
        command="txlake dead list, then txlake dead resume or txlake tx commit|rollback",
        alert=Alert(
            WARNING,
            "txlake_given_up_messages > 0",
            "{{ $labels.instance }}: {{ $value }} halves are given up and wait for an operator",
        ),
        page="/dead",
    ),
    Rule(
        name="undeliverable",
        condition="a committed message cannot be delivered, and waits for an operator",
        limit="one",
        find=conditions.undeliverable,
        command="txlake dead list, txlake topic create, then txlake dead resume",
        alert=Alert(
            WARNING,
            "txlake_undeliverable_messages > 0",
            "{{ $labels.instance }}: {{ $value }} messages are committed and cannot be delivered",
        ),
        page="/dead",
    ),
    Rule(
        name="pending_old",
        condition="the oldest half waits for its end",
        limit=span(PENDING_OLD_MS),
        find=conditions.pending_old,
        command="txlake tx list --pending",
        alert=Alert(
            WARNING,
            f"txlake_oldest_pending_seconds > {PENDING_OLD_MS // 1_000}",
            "{{ $labels.instance }}: a half has been pending for {{ $value | humanizeDuration }}",
        ),
        page="/transactions",
    ),
    Rule(
        name="consumer_gone",
        condition="the consumer of a group died, and messages wait for the group",
        limit=_setting_text("consumer_gone_ms"),
        find=conditions.consumer_gone,
        command="txlake lag; start the consumer again, or txlake consumer reset where nobody "
        "needs the group",
        alert=Alert(
            WARNING,
            _is_beyond_setting("txlake_consumer_gone_seconds", "consumer_gone"),
            "{{ $labels.instance }}: consumer group {{ $labels.consumer_group }} has had no "
            "consumer for {{ $value | humanizeDuration }}, and messages wait for it",
        ),
        page="/consumers",
        setting="consumer_gone_ms",
    ),
    Rule(
        name="consumer_lag",
        condition="the oldest message that a living consumer has not read was delivered long ago",
        limit=_setting_text("consumer_lag_ms"),
        find=conditions.consumer_lag,
        command="txlake lag; can the consumer keep up?",
        alert=Alert(
            WARNING,
            _is_beyond_setting("txlake_consumer_lag_seconds", "consumer_lag"),
            "{{ $labels.instance }}: consumer group {{ $labels.consumer_group }} is "
            "{{ $value | humanizeDuration }} behind",
            "1m",
        ),
        page="/consumers",
        setting="consumer_lag_ms",
    ),
    Rule(
        name="consumer_dead",
        condition="a consumer group has given up a message that its listener refused too often",
        limit="one",
        find=conditions.consumer_dead,
        command="txlake consumer dead list, then txlake consumer dead resume or drop",
        alert=Alert(
            WARNING,
            "txlake_consumer_dead_messages > 0",
            "{{ $labels.instance }}: consumer group {{ $labels.consumer_group }} has given up "
            "messages: {{ $value }}",
        ),
        page="/consumers",
    ),
    Rule(
        name="publisher_stopped",
        condition="a publisher has stopped, and waiting does not help",
        limit="at once",
        find=conditions.publisher_stopped,
        command="txlake publish status --conf FILE; then what the reason names, as txlake publish "
        "skip or adopt",
        alert=Alert(
            CRITICAL,
            "txlake_publisher_stopped == 1",
            "{{ $labels.instance }}: publisher {{ $labels.publisher }} has stopped: "
            "{{ $labels.cause }}",
        ),
        page="/publishers",
        needs_publishers=True,
    ),
    Rule(
        name="publisher_gone",
        condition="no process of a publisher runs, and messages wait for it",
        limit=_setting_text("publisher_gone_ms"),
        find=conditions.publisher_gone,
        command="txlake publish --conf FILE; its log says why it has ended",
        alert=Alert(
            CRITICAL,
            _is_behind_and("publisher_gone", "txlake_publisher_active == 0"),
            "{{ $labels.instance }}: publisher {{ $labels.publisher }} has no process, and a "
            "message has waited for {{ $value | humanizeDuration }}",
        ),
        page="/publishers",
        needs_publishers=True,
        setting="publisher_gone_ms",
    ),
    Rule(
        name="publisher_lag",
        condition="the oldest message that a running publisher has not published was committed "
        "long ago",
        limit=_setting_text("publisher_lag_ms"),
        find=conditions.publisher_lag,
        command="txlake publish status --conf FILE; can it keep up? Share the topics among several",
        alert=Alert(
            WARNING,
            _is_behind_and("publisher_lag", "txlake_publisher_active == 1"),
            "{{ $labels.instance }}: publisher {{ $labels.publisher }} is "
            "{{ $value | humanizeDuration }} behind",
            "1m",
        ),
        page="/publishers",
        needs_publishers=True,
        setting="publisher_lag_ms",
    ),
    Rule(
        name="publisher_unknown",
        condition="the Kafka that a publisher writes to does not answer, or does not let us in",
        limit="at once",
        find=conditions.publisher_unknown,
        command="txlake publish status --conf FILE; is that Kafka running?",
        alert=Alert(
            WARNING,
            "txlake_publisher_known == 0",
            "{{ $labels.instance }}: nobody knows how far publisher {{ $labels.publisher }} is",
            "2m",
        ),
        page="/publishers",
        needs_publishers=True,
    ),
    Rule(
        name="floor_near",
        condition="the floor is about to pass a half that is given up, which nothing ends then",
        limit=f"{FLOOR_NEAR:.0%} of [lake] retention_ms",
        find=conditions.floor_near,
        command="txlake dead list, then txlake dead resume or txlake tx commit|rollback",
        alert=Alert(
            CRITICAL,
            f"txlake_oldest_given_up_seconds > {FLOOR_NEAR} * txlake_retention_seconds",
            "{{ $labels.instance }}: a half that was given up is {{ $value | humanizeDuration }} "
            "old, most of [lake] retention_ms",
        ),
        page="/dead",
        needs_settings=True,
    ),
    Rule(
        name="lake_ahead",
        condition="the newest epoch_at is later than the clocks of machine and broker",
        limit=span(LAKE_AHEAD_MS),
        find=conditions.lake_ahead,
        command="date; txlake doctor --conf FILE; if the clocks are right, wait, or txlake tx "
        "commit|rollback",
        alert=Alert(
            WARNING,
            f"txlake_last_epoch_timestamp_seconds - time() > {LAKE_AHEAD_MS // 1_000}",
            "{{ $labels.instance }}: the lake's newest epoch is {{ $value | humanizeDuration }} in "
            "the future",
        ),
    ),
)


def problems(facts: Facts) -> list[Problem]:
    """Returns the present problems, in the order of RULES."""
    return [
        Problem(rule.name, finding.words, rule.command, finding.since_at)
        for rule in RULES
        for finding in rule.find(facts)
    ]


def page_of(name: str) -> str:
    """Returns the console's page about a problem."""
    return next(rule.page for rule in RULES if rule.name == name)


def unknown_problems(facts: Facts) -> list[str]:
    """Returns the names of the problems whose state is not known from these facts."""
    present = {problem.name for problem in problems(facts)}
    has_no_kafka = facts.lags is None
    has_no_settings = facts.retention_ms is None
    has_no_publishers = facts.publishers is None

    return [
        rule.name
        for rule in RULES
        if rule.name not in present
        and (
            (rule.needs_kafka and has_no_kafka)
            or (rule.needs_settings and has_no_settings)
            or (rule.needs_publishers and has_no_publishers)
        )
    ]

"""The metrics of a job; docs/metrics.md is the same table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipelines.health.groups import ANSWER_MS, NEWEST_CHECKS
from pipelines.publish.progress import CAUSES

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
LABELS_MAX: Final = 100  # topics, or groups, with a label of their own
OTHER: Final = "other"  # the label of all further ones


@dataclass(frozen=True)
class Metric:
    """One metric: the name of its samples, without the endings of a histogram."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


_TOPIC, _GROUP, _PUBLISHER = ("topic",), ("producer_group",), ("publisher",)

METRICS: Final = (
    Metric("rocketmq_half_messages", GAUGE, "Pending halves: neither ended nor given up.", _TOPIC),
    Metric("rocketmq_commit_messages_total", COUNTER, "Halves committed.", _TOPIC),
    Metric("rocketmq_rollback_messages_total", COUNTER, "Halves rolled back.", _TOPIC),
    Metric(
        "rocketmq_transaction_finish_latency",
        HISTOGRAM,
        "Seconds from the broker's time of a half to the epoch that committed it or rolled it "
        "back.",
        _TOPIC,
    ),
    Metric("txlake_delivered_messages_total", COUNTER, "Messages delivered.", _TOPIC),
    Metric("txlake_delayed_messages", GAUGE, "Messages that wait for their time."),
    Metric("txlake_given_up_total", COUNTER, "Halves given up.", ("cause",)),
    Metric(
        "txlake_given_up_messages",
        GAUGE,
        "Halves that are given up, and were neither ended nor resumed since.",
    ),
    Metric(
        "txlake_undeliverable_messages",
        GAUGE,
        "Undeliverable messages that were not delivered since.",
    ),
    Metric("txlake_oldest_pending_seconds", GAUGE, "Age of the oldest pending half; 0 if none."),
    Metric(
        "txlake_oldest_given_up_seconds",
        GAUGE,
        "Age of the oldest half that is given up and can still be ended or resumed; 0 if none.",
    ),
    Metric("txlake_retention_seconds", GAUGE, "[lake] retention_ms, in seconds."),
    Metric(
        "txlake_checks_total",
        COUNTER,
        "Checks sent to producer groups; acknowledged: whether Kafka took them.",
        ("acknowledged",),
    ),
    Metric("txlake_check_answers_total", COUNTER, "Answers to checks, UNKNOWN among them."),
    Metric(
        "txlake_group_unanswered_checks",
        GAUGE,
        f"Of its newest {NEWEST_CHECKS} checks that are {ANSWER_MS // 1000} s old, how many "
        "have neither an answer nor an ended half; of groups that have halves pending.",
        _GROUP,
    ),
    Metric(
        "txlake_group_without_check_topic_seconds",
        GAUGE,
        "Age of its oldest pending half, of a group that has no check topic.",
        _GROUP,
    ),
    Metric(
        "txlake_consumer_lag_seconds",
        GAUGE,
        "Since when the oldest message is there that a living consumer of the group has not "
        "read; absent if there is none.",
        ("consumer_group",),
    ),
    Metric(
        "txlake_consumer_gone_seconds",
        GAUGE,
        "Since when the session of a consumer is over that died, of a group for which messages "
        "wait.",
        ("consumer_group",),
    ),
    Metric(
        "txlake_consumer_dead_messages",
        GAUGE,
        "Messages that the group's listener has refused too often, and that nobody has resumed or "
        "dropped; absent if there are none.",
        ("consumer_group",),
    ),
    Metric(
        "txlake_consumer_retrying_messages",
        GAUGE,
        "Messages that the group's listener has refused, and that come again; absent if there "
        "are none.",
        ("consumer_group",),
    ),
    Metric(
        "txlake_publisher_waiting_messages",
        GAUGE,
        "Messages that are committed and not published.",
        _PUBLISHER,
    ),
    Metric(
        "txlake_publisher_lag_seconds",
        GAUGE,
        "Since when the oldest of them has been committed; 0 if there is none.",
        _PUBLISHER,
    ),
    Metric(
        "txlake_publisher_active",
        GAUGE,
        "1 if a process of the publisher is elected, 0 if none is.",
        _PUBLISHER,
    ),
    Metric(
        "txlake_publisher_stopped",
        GAUGE,
        f"1 if it has stopped; cause: {', '.join(CAUSES[:-1])} or {CAUSES[-1]}; absent if it has "
        "not.",
        (*_PUBLISHER, "cause"),
    ),
    Metric(
        "txlake_publisher_known",
        GAUGE,
        "1 if the Kafka that it writes to has said how far it is, the last time it was asked.",
        _PUBLISHER,
    ),
    Metric(
        "txlake_problem_limit",
        GAUGE,
        "From how many seconds on it is a problem, as [health] says.",
        ("problem",),
    ),
    Metric("txlake_landed_records_total", COUNTER, "Kafka records landed.", ("kind",)),
    Metric(
        "txlake_unreadable_records_total", COUNTER, "Of them, those that cannot be read.", ("kind",)
    ),
    Metric("txlake_conflicts_total", COUNTER, "Operations without effect.", ("reason",)),
    Metric("txlake_epochs_total", COUNTER, "Epochs committed."),
    Metric("txlake_epoch_seconds", HISTOGRAM, "Seconds that an epoch took."),
    Metric("txlake_step_seconds_total", COUNTER, "Seconds spent in a step of epochs.", ("step",)),
    Metric("txlake_last_epoch", GAUGE, "The newest committed epoch."),
    Metric("txlake_last_epoch_timestamp_seconds", GAUGE, "Its epoch_at, in seconds since 1970."),
    Metric("txlake_waiting_records", GAUGE, "Records in Kafka that no committed epoch has landed."),
    Metric(
        "txlake_lag_seconds",
        GAUGE,
        "Seconds since all that Kafka had was landed; 0 if no record waits.",
    ),
    Metric("txlake_active", GAUGE, "1 if this process has the lake, 0 while it stands by."),
    Metric("txlake_streaming", GAUGE, "1 if the stream runs."),
    Metric("txlake_kafka_up", GAUGE, "1 if Kafka answered the last time it was asked."),
    Metric(
        "txlake_folded_names",
        GAUGE,
        f"Topics and groups without a label of their own: more than {LABELS_MAX}, or called "
        f"'{OTHER}'; they are counted under '{OTHER}'.",
        ("label",),
    ),
)

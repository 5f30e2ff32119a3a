"""Notebook 2, the health of a lake: what waits and how long, what was answered, what conflicted."""

from __future__ import annotations

import polars as pl

from pipelines.notebooks.open_lake import OpenLake

NO_ANSWER, NOT_SENT = "no answer", "not acknowledged"
ANSWERS = ("COMMIT", "ROLLBACK", "UNKNOWN", NO_ANSWER, NOT_SENT)
UNREADABLE = "(cannot be read)"
# A second end with the same decision: a repetition, without effect.
HARMLESS = "duplicate_end"


_STILL = "FROM waits WHERE to_epoch IS NULL"
_SUMMARY = {
    "halves that can be read": "SELECT count(*) FROM halves",
    "halves that cannot": "SELECT count(*) FROM half WHERE error IS NOT NULL",
    "committed": "SELECT count(*) FROM outcomes WHERE outcome = 'COMMITTED'",
    "rolled back": "SELECT count(*) FROM outcomes WHERE outcome = 'ROLLED_BACK'",
    "discarded, not ended or re-armed since": f"""
        SELECT count(*) FROM (FROM outcomes QUALIFY epoch = max(epoch) OVER
          (PARTITION BY queue_id, queue_offset)) o
        WHERE outcome = 'DISCARDED' AND NOT EXISTS
          (SELECT 1 FROM ({_STILL}) s
           WHERE s.queue_id = o.queue_id AND s.queue_offset = o.queue_offset)""",
    "pending": f"SELECT count(*) {_STILL}",
    "oldest pending, in seconds": f"""
        SELECT coalesce((SELECT max(epoch_ms(epoch_at)) FROM plans) - min(epoch_ms(from_at)), 0)
          // 1000 {_STILL}""",
    "attempts to ask": "SELECT count(*) FROM checks",
    "attempts that Kafka did not acknowledge": "SELECT count(*) FROM checks WHERE NOT acknowledged",
    "conflicts": "SELECT count(*) FROM conflicts",
    "harmless conflicts": f"SELECT count(*) FROM conflicts WHERE reason = '{HARMLESS}'",
    "messages delivered": "SELECT count(*) FROM messages WHERE reason IS NULL",
}  # fmt: skip


def summary(lake: OpenLake) -> pl.DataFrame:
    """Returns the numbers of a lake, as of its newest committed epoch."""
    numbers = [(what, lake.sql(text).item()) for what, text in _SUMMARY.items()]
    return pl.DataFrame(numbers, schema={"what": pl.String, "number": pl.Int64}, orient="row")


def pending_over_time(lake: OpenLake) -> pl.DataFrame:
    """Returns for each epoch how many halves waited after it and how long the oldest had."""
    return lake.sql(
        """
        SELECT p.epoch, p.epoch_at, count(w.queue_id) AS pending,
          coalesce(epoch_ms(p.epoch_at) - min(epoch_ms(w.from_at)), 0) / 1000 AS oldest_s
        FROM plans p
        LEFT JOIN (FROM waits WHERE to_epoch IS NULL OR to_epoch > from_epoch) w
          ON w.from_epoch <= p.epoch AND coalesce(w.to_epoch, 9223372036854775807) > p.epoch
        GROUP BY p.epoch, p.epoch_at ORDER BY p.epoch
        """
    )


def waits_by_end(lake: OpenLake) -> pl.DataFrame:
    """Returns how long each half waited for its end, and which end that was."""
    return lake.sql(
        """
        SELECT producer_group, outcome, cause,
          (epoch_ms(to_at) - epoch_ms(from_at)) / 1000 AS waited_s
        FROM waits WHERE outcome IS NOT NULL ORDER BY waited_s, queue_id, queue_offset
        """
    )


def wait_figures(lake: OpenLake) -> pl.DataFrame:
    """Returns how long halves waited: median, 99 of 100, longest, in seconds."""
    ends = waits_by_end(lake).group_by("outcome", "cause")
    waited = pl.col("waited_s")
    return ends.agg(
        halves=pl.len(),
        median_s=waited.median().round(3),
        p99_s=waited.quantile(0.99, "nearest").round(3),
        longest_s=waited.max().round(3),
    ).sort("halves", "outcome", "cause", descending=[True, False, False])


def checks_and_answers(lake: OpenLake) -> pl.DataFrame:
    """Returns every attempt to ask with the first answer that names it.

    `answer`: COMMIT, ROLLBACK, UNKNOWN, `no answer`, or `not acknowledged` by Kafka.
    """
    return lake.sql(
        f"""
        SELECT c.check_id, c.producer_group, c.check_times, c.sent_at,
          coalesce(a.decision, CASE WHEN c.acknowledged THEN '{NO_ANSWER}' ELSE '{NOT_SENT}' END)
            AS answer,
          (epoch_ms(a.stored_at) - epoch_ms(c.sent_at)) / 1000 AS answered_after_s
        FROM checks c
        LEFT JOIN (SELECT check_id, queue_id, arg_min(decision, queue_offset) AS decision,
                     arg_min(stored_at, queue_offset) AS stored_at
                   FROM op WHERE error IS NULL AND check_id IS NOT NULL GROUP BY ALL) a
          ON c.check_id = a.check_id AND c.queue_id = a.queue_id
        ORDER BY c.sent_at, c.queue_id, c.queue_offset
        """
    )


def answers_by_group(lake: OpenLake) -> pl.DataFrame:
    """Returns the answers of each producer group; the groups that answer least come first."""
    answers = checks_and_answers(lake)
    is_answered = pl.col("answered_after_s").is_not_null()
    return answers.group_by("producer_group").agg(
        checks=pl.len(),
        answered=is_answered.sum(),
        median_answer_s=pl.col("answered_after_s").median().round(3),
        **{name: (pl.col("answer") == name).sum() for name in ANSWERS},
    ).sort((pl.col("answered") / pl.col("checks")), "producer_group")  # fmt: skip


def conflicts_by_group(lake: OpenLake) -> pl.DataFrame:
    """Returns the operations without effect by the group that sent them, and by reason."""
    return lake.sql(
        f"""
        SELECT coalesce(o.producer_group, '{UNREADABLE}') AS producer_group, c.reason,
          c.reason = '{HARMLESS}' AS is_harmless, count(*) AS conflicts
        FROM conflicts c
        LEFT JOIN op o ON c.queue_id = o.queue_id AND c.op_queue_offset = o.queue_offset
        GROUP BY ALL ORDER BY conflicts DESC, 1, 2
        """
    )

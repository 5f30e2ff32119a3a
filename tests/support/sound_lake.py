"""One small lake in which everything happens that can: the start of `verify`'s tests.

Halves are called by their transaction ids; `HISTORY` is read from top to bottom.
"""

from __future__ import annotations

from typing import Any

from tests.support.decided_rows import decided_rows
from tests.support.history import History
from tests.support.lake_rows import LakeRows
from txlake.protocol import (
    CANCEL,
    COMMIT,
    CREATE_TOPIC,
    MAINTAIN,
    RESEND,
    RESUME,
    ROLLBACK,
    UNKNOWN,
)

Row = dict[str, Any]
PARAMETERS = {
    "transaction_timeout_ms": 1_000,
    "check_interval_ms": 2_000,
    "check_max": 2,
    "half_retention_ms": 60_000,
    "check_rate_max": 100,
    "late_end_policy": "apply",
    "orphan_operation_ttl_ms": 4_000,
    "auto_create_topics": True,
    "default_queue_count": 2,
    "topics_max": 2,
    "group_topics_max": 2,
    "delay_levels_ms": (2_000, 5_000),
    "require_transaction_id": False,
    "reject_after_immunity": False,
    "deliver_at_max_ms": 20_000,
}


def _history() -> Row:
    history = History(**PARAMETERS)
    _first_ends(history)
    _commands_and_checks(history)
    _late_ends_and_expiry(history)
    return history.world()


def _first_ends(h: History) -> None:
    """Epoch 1: every kind of half, operation and schedule record."""
    h.epoch(0)  # 1
    h.half("commit")
    h.half("rollback")
    h.half("silent")
    h.half("patient", immunity_ms=900_000)
    h.half("contested")
    h.half("unreadable", error="too_large", real_topic=None)
    h.half("delayed", delay_level=1)
    h.half("cancelled", delay_level=2)
    h.half("outside", real_queue_id=5)
    h.half("late")
    h.half("nobody", group="nobody")
    for seq in (1, 0, 0):  # the last one is a duplicate
        h.half("set", queue=1, tran_size=2, tran_seq=seq, real_topic="parts")
    h.half("open", queue=1, tran_size=2, tran_seq=0)

    h.end(COMMIT, 0, transaction_ids=["commit"])
    h.end(ROLLBACK, 1, cause="check_answer")
    h.end(COMMIT, 4, cause="operator")
    h.end(ROLLBACK, 4)
    h.end(COMMIT, 4)
    h.end(COMMIT, 5)
    h.end(COMMIT, 0, producer_group="other")
    h.end(COMMIT, 3, transaction_ids=["another"])
    h.end(COMMIT, 6, 7, 8, 8)
    h.end(UNKNOWN, 3)
    h.end(None, error="bad_offsets", half_offsets=None)
    h.end(COMMIT, 0, queue=1, transaction_ids=["set"])
    h.end(COMMIT, 3, queue=1)  # waits for its set
    h.end(ROLLBACK, 5, queue=1)  # waits for its half, which lands in epoch 3
    h.end(COMMIT, 90, queue=1)  # waits for a half that never comes
    h.end(UNKNOWN, 91, queue=1)

    h.schedule(delay_level=2)
    h.schedule(queue=2)
    h.schedule(error="bad_real_topic", real_topic=None)


def _commands_and_checks(h: History) -> None:
    """Epochs 2 to 7: commands, new topics, two checks, discards."""
    h.epoch(1)  # 2
    h.half("forbidden", real_topic="fourth")
    h.half("two", real_topic="parts")
    h.half("three", real_topic="parts")
    h.end(COMMIT, 11, 12, 13)

    h.command(CANCEL, "half:00-007")
    h.command(CANCEL, "half:0-0")
    h.command(CREATE_TOPIC, "topic:orders:4")
    h.command(MAINTAIN, None)

    h.epoch(1)  # 3: silent, late, nobody and open are asked for the first time
    h.half("open", queue=1, tran_size=2, tran_seq=1)
    h.half("early", queue=1)
    h.half("gone", queue=1, tran_size=3, tran_seq=0)
    h.half("gone", queue=1, tran_size=3, tran_seq=1)
    h.end(ROLLBACK, 6, queue=1)
    h.command(RESUME, "undeliverable:0")  # its topic has 4 queues, it asks for the sixth

    h.epoch(1)  # 4
    h.half("gone", queue=1, tran_size=3, tran_seq=2)
    h.command(CREATE_TOPIC, "topic:orders:6")

    h.epoch(1)  # 5: asked again
    h.command(RESUME, "undeliverable:0")
    h.command(RESUME, "undeliverable:00")

    h.epoch(1)  # 6
    h.epoch(1)  # 7: given up


def _late_ends_and_expiry(h: History) -> None:
    """Epochs 8 to 12: late ends under both policies, a re-armed half, retention."""
    h.epoch(1)  # 8
    h.end(COMMIT, 9)  # late
    h.command(RESUME, "half:00-02")

    h.epoch(1, late_end_policy="reject")  # 9
    h.end(COMMIT, 2)

    h.epoch(61)  # 10: patient and nobody have expired
    h.half("young")
    h.half("waiting", tran_size=2, tran_seq=0)
    h.end(COMMIT, 15)
    h.end(COMMIT, 40)

    h.half("forged", queue=1)
    h.end(COMMIT, 9, queue=1, is_signed=False)
    h.end(ROLLBACK, 9, queue=1, is_signed=True)
    h.schedule(delay_level=2)

    h.epoch(1, late_end_policy="reject")  # 11
    h.end(ROLLBACK, 3)
    h.command(RESUME, "half:0-0")
    h.command(RESEND, "half:0-0")
    h.command(RESEND, "half:0-15")
    h.command(CREATE_TOPIC, "topic:orders:06")

    h.epoch(
        1, topics_max=3, group_topics_max=1, require_transaction_id=True, reject_after_immunity=True
    )  # 12: the group has made one topic

    h.half("crowded", queue=1, real_topic="fifth")
    h.half("slow", queue=1, immunity_ms=299)
    h.half("nameless", queue=1, skipped=2)
    h.accept_loss(1, 12, 13)

    h.end(COMMIT, 10, queue=1, transaction_ids=["crowded"])
    h.end(COMMIT, 11, queue=1, transaction_ids=["slow"])  # 300 ms after its half
    h.end(COMMIT, 14, queue=1)
    h.end(UNKNOWN, 14, queue=1, cause="check_answer")


HISTORY = _history()


def sound_rows() -> LakeRows:
    """Return the rows of the history, snapshots every third epoch."""
    rows = decided_rows(HISTORY)

    rows.tables["consumer_offsets"] = [
        {
            "consumer_group": "points",
            "topic": "orders",
            "queue_id": 0,
            "queue_offset": offset,
            "generation": 1,
            "owner": "a",
            "committed_at": rows.plan(9)["epoch_at"],
        }
        for offset in (None, 1)
    ]
    return rows

"""One small lake in which everything happens that can: the start of `verify`'s tests.

Halves are called by their transaction ids; `HISTORY` is read from top to bottom.
"""

from __future__ import annotations

from typing import Any

from tests.lake_rows import LakeRows, decided_rows
from txlake.protocol import CANCEL, COMMIT, CREATE_TOPIC, MAINTAIN, RESUME, ROLLBACK, UNKNOWN

Row = dict[str, Any]
START_AT = 1_000_000_000
SECOND_MS = 1_000
PARAMETERS = {
    "transaction_timeout_ms": 1_000, "check_interval_ms": 2_000, "check_max": 2,
    "half_retention_ms": 60_000, "check_rate_max": 100, "late_end_policy": "apply",
    "orphan_operation_ttl_ms": 4_000, "auto_create_topics": True, "default_queue_count": 2,
    "topics_max": 2, "delay_levels_ms": (2_000, 5_000), "deliver_at_max_ms": 20_000,
}  # fmt: skip


class History:
    """Write a world down, epoch by epoch; offsets are given as Kafka would."""

    def __init__(self) -> None:
        self.epochs: list[Row] = []
        self._ends: dict[tuple[str, int], int] = {}
        self.at_ms = START_AT

    def epoch(self, seconds: int, **parameters: Any) -> None:
        """Begin an epoch, so many seconds after the one before."""
        self.at_ms += seconds * SECOND_MS
        self.epochs.append(
            {"at": self.at_ms, "halves": [], "operations": [], "schedules": [], "commands": [],
             "parameters": parameters, "attempts": _attempts}
        )  # fmt: skip

    def world(self) -> Row:
        """Return the history; every epoch knows of each half queue where landing stands."""
        half_ends = {0: 0, 1: 0}
        for epoch in self.epochs:
            for row in epoch["halves"]:
                half_ends[row["queue_id"]] = row["queue_offset"] + 1
            epoch["queues"] = [
                {"queue_id": queue, "known_at": epoch["at"], "halves_known_at": epoch["at"],
                 "half_end": end}
                for queue, end in half_ends.items()
            ]  # fmt: skip
        return {"parameters": PARAMETERS, "epochs": self.epochs}

    def _next(self, kind: str, queue: int) -> int:
        offset = self._ends.get((kind, queue), 0)
        self._ends[kind, queue] = offset + 1
        return offset

    def half(self, transaction_id: str, queue: int = 0, group: str = "g", **values: Any) -> None:
        row = {
            "queue_id": queue, "queue_offset": self._next("half", queue), "producer_group": group,
            "transaction_id": transaction_id, "tran_size": None, "tran_seq": None,
            "stored_at": self.at_ms - 500, **_ROUTING, "immunity_ms": None, "error": None,
        }  # fmt: skip
        self.epochs[-1]["halves"].append({**row, **values})

    def end(self, decision: str | None, *offsets: int, queue: int = 0, **values: Any) -> None:
        row = {
            "queue_id": queue, "op_queue_offset": self._next("op", queue), "producer_group": "g",
            "decision": decision, "half_offsets": list(offsets), "transaction_ids": None,
            "cause": "operation", "error": None, "stored_at": self.at_ms - 200,
        }  # fmt: skip
        self.epochs[-1]["operations"].append({**row, **values})

    def schedule(self, queue: int = 0, **values: Any) -> None:
        row = {
            "queue_id": queue, "queue_offset": self._next("schedule", queue),
            "stored_at": self.at_ms - 300, **_ROUTING, "error": None,
        }  # fmt: skip
        self.epochs[-1]["schedules"].append({**row, **values})

    def command(self, command: str, target: str | None) -> None:
        row = {"admin_offset": self._next("admin", 0), "command": command, "target": target}
        self.epochs[-1]["commands"].append({**row, "error": None})


_ROUTING = {"real_topic": "orders", "real_queue_id": None, "delay_level": None, "deliver_at": None}


def _attempts(_: Row, due: list[Row]) -> list[Row]:
    """Say what became of each question: the group `nobody` has no topic."""
    return [
        {"queue_id": row["queue_id"], "queue_offset": row["queue_offset"],
         "acknowledged": row["producer_group"] != "nobody"}
        for row in due
    ]  # fmt: skip


def _history() -> Row:
    h = History()
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
    h.epoch(1)  # 2
    h.half("forbidden", real_topic="fourth")
    h.half("two", real_topic="parts")
    h.half("three", real_topic="parts")
    h.end(COMMIT, 11, 12, 13)
    h.command(CANCEL, "half:0-7")
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
    h.command(RESUME, "undeliverable:0")
    h.epoch(1)  # 6
    h.epoch(1)  # 7: given up
    h.epoch(1)  # 8
    h.end(COMMIT, 9)  # late
    h.command(RESUME, "half:0-2")
    h.epoch(1, late_end_policy="reject")  # 9
    h.end(COMMIT, 2)
    h.epoch(61)  # 10: patient and nobody have expired
    h.half("young")
    h.half("waiting", tran_size=2, tran_seq=0)
    h.end(COMMIT, 15)
    h.end(COMMIT, 40)
    h.schedule(delay_level=2)
    h.epoch(1, late_end_policy="reject")  # 11
    h.end(ROLLBACK, 3)
    h.command(RESUME, "half:0-0")
    h.command(CREATE_TOPIC, "topic:orders:6")
    h.epoch(1)  # 12
    return h.world()


HISTORY = _history()


def sound_rows() -> LakeRows:
    """Return the rows of the history, snapshots every third epoch."""
    rows = decided_rows(HISTORY)
    rows.tables["consumer_offsets"] = [
        {"consumer_group": "points", "topic": "orders", "queue_id": 0, "queue_offset": offset,
         "generation": 1, "owner": "a", "committed_at": rows.plan(9)["epoch_at"]}
        for offset in (None, 1)
    ]  # fmt: skip
    return rows

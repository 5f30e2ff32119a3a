"""A lake for the notebooks: some minutes of a small shop, made without Kafka, Spark and JVM.

Four producer groups: `shop` ends nearly everything itself and answers when it is asked, `billing`
mostly answers UNKNOWN, `legacy` never answers, `nobody` has no check topic. Seeded; the decision is
the real one, so that the groups answer what it really asks.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from storage.lake.lake import Lake
from storage.rows import milliseconds
from tests.support.decided_rows import decided_rows
from tests.support.history import History
from tests.support.lake_rows import LakeRows
from tests.support.sound_lake import PARAMETERS
from txlake.protocol import COMMIT, RESUME, ROLLBACK, UNKNOWN, check_id

Row = dict[str, Any]
START_AT = milliseconds(dt.datetime(2026, 3, 2, 13, 50, tzinfo=dt.timezone.utc))
EPOCHS = 18
STEP_MS = 60_000
CHECK_MAX = 4
GROUPS = ("shop", "shop", "shop", "billing", "billing", "legacy", "nobody")
# How often of 100 a group COMMITs, ROLLBACKs, or stays silent.
ENDS = {"shop": (80, 12, 8), "billing": (60, 10, 30), "legacy": (75, 5, 20), "nobody": (85, 5, 10)}
# What a group answers when it is asked, of 10 times; the rest is silence.
ANSWERS = {"shop": {COMMIT: 6, ROLLBACK: 3, UNKNOWN: 1}, "billing": {COMMIT: 2, UNKNOWN: 7}}
SHORT_TIMES = {
    "transaction_timeout_ms": 20_000,
    "check_interval_ms": 60_000,
    "check_max": CHECK_MAX,
    "half_retention_ms": 86_400_000,
    "orphan_operation_ttl_ms": 3_600_000,
    "topics_max": 10,
    "delay_levels_ms": (60_000,),
}


class Shop(History):
    """A history whose operations of an epoch are fixed when the one before it is decided."""

    def __init__(self, seed: int, epochs: int, transactions: tuple[int, int]) -> None:
        super().__init__(**{**PARAMETERS, **SHORT_TIMES})
        self._count, self._transactions = epochs, transactions
        self._chance = random.Random(seed)
        self._to_come: dict[int, list[Row]] = defaultdict(list)
        self._given_up: list[tuple[int, int]] = []

    def run(self) -> Row:
        """Return the world."""
        self.at_ms = START_AT - STEP_MS
        for number in range(self._count):
            self.epoch(STEP_MS // 1_000)
            self.epochs[-1] |= {"attempts": self._asked, "number": number}
            for _ in range(self._chance.randint(*self._transactions)):
                self._transaction(number)
        self.epochs[3]["halves"][-1] |= {"error": "too_large", "real_topic": None}
        self._to_come[4].append({"decision": None, "half_offsets": None, "error": "bad_offsets"})
        self._land(0)
        return self.world()

    def _transaction(self, number: int) -> None:
        chance = self._chance
        group = chance.choice(GROUPS)
        queue = chance.randrange(2)
        kind = chance.random()
        values: Row = {"real_topic": "orders" if group == "shop" else "invoices"}

        if kind < 0.05:
            values["delay_level"] = 1
        elif kind < 0.07:
            values["real_queue_id"] = 9

        size = 2 if kind > 0.95 else None
        for seq in range(size or 1):
            name = f"{group}-{number:02}-{len(self.epochs[-1]['halves']) - seq:02}"
            tran_seq = seq if size else None
            age_ms = chance.randrange(1, STEP_MS)
            self.half(
                name, queue, group, age_ms=age_ms, tran_size=size, tran_seq=tran_seq, **values
            )

        end = chance.choices((COMMIT, ROLLBACK, None), ENDS[group])[0]
        if end is not None:
            self._end(number, end, self.epochs[-1]["halves"][-1])

    def _end(self, number: int, decision: str, half: Row) -> None:
        """Let an end come now or a little later; a few twice, contradicted, or by a stranger."""
        later = number + self._chance.choice((0, 0, 0, 1, 2))
        row = {
            "queue_id": half["queue_id"],
            "half_offsets": [half["queue_offset"]],
            "producer_group": half["producer_group"],
            "decision": decision,
        }
        self._to_come[later].append(row)

        kind = self._chance.random()
        if kind < 0.04:
            self._to_come[later + 1].append(row)
        elif kind < 0.06:
            other = ROLLBACK if decision == COMMIT else COMMIT
            self._to_come[later + 1].append({**row, "decision": other})
        elif kind < 0.08:
            self._to_come[later].append({**row, "producer_group": "shopp"})

    def _asked(self, epoch: Row, due: list[Row]) -> list[Row]:
        """Tells what became of each question; answers land in the next epoch, with all else."""
        number = epoch["number"]
        for row in due:
            self._answer(number, row)
        self._land(number + 1)

        return [
            {
                "queue_id": row["queue_id"],
                "queue_offset": row["queue_offset"],
                "acknowledged": row["producer_group"] != "nobody",
            }
            for row in due
        ]

    def _answer(self, number: int, asked: Row) -> None:
        group, queue, offset = asked["producer_group"], asked["queue_id"], asked["queue_offset"]
        weights = ANSWERS.get(group, {})
        answers = [*weights, None]
        rest = 10 - sum(weights.values())
        (answer,) = self._chance.choices(answers, [*weights.values(), rest])
        row = {"queue_id": queue, "half_offsets": [offset], "producer_group": group}

        if answer is not None:
            name = check_id(queue, offset, asked["arm"], asked["check_times"])
            self._to_come[number + 1].append(
                {**row, "decision": answer, "cause": "check_answer", "check_id": name}
            )
        elif asked["check_times"] == CHECK_MAX and group == "legacy" and asked["arm"] == 0:
            self._given_up.append((queue, offset))
            if len(self._given_up) == 1:  # the first is ended late, the second re-armed
                self._to_come[number + 5].append({**row, "decision": COMMIT})
            elif len(self._given_up) == 2 and number + 5 < self._count:
                self._resume(self.epochs[number + 5], f"half:{queue}-{offset}")

    @staticmethod
    def _resume(epoch: Row, target: str) -> None:
        row = {"admin_offset": 0, "command": RESUME, "target": target, "error": None}
        epoch["commands"].append(row)

    def _land(self, number: int) -> None:
        """Return the operations of an epoch their offsets, in the order in which they came."""
        if number >= self._count:
            return

        epoch = self.epochs[number]
        for row in self._to_come[number]:
            queue = row.get("queue_id", 0)
            epoch["operations"].append(
                {
                    "queue_id": queue,
                    "op_queue_offset": self._next("op", queue),
                    "cause": "operation",
                    "producer_group": "shop",
                    "transaction_ids": None,
                    "error": None,
                    "stored_at": epoch["at"] - self._chance.randrange(1_000, 9_000),
                    **row,
                }
            )


def shop_rows(epochs: int = EPOCHS, transactions: tuple[int, int] = (8, 20)) -> LakeRows:
    """Return the rows of the shop's history. Input: how many transactions an epoch has."""
    return decided_rows(Shop(8, epochs, transactions).run(), snapshot_epochs=10)


def write_lake(rows: LakeRows, path: Path) -> Lake:
    """Write the shop's lake; `outcomes` in one Delta commit for each epoch, as the job does."""
    return rows.write(path, by_epoch=("outcomes",))

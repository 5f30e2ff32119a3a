"""A world written down by hand, epoch by epoch; offsets are given as Kafka would give them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from checker.frames import Parameters
from txlake.protocol import ACCEPT_LOSS

Row = dict[str, Any]
START_AT = 1_000_000_000
SILENT = "nobody"  # the group whose check topic does not exist
LATE = "late"  # the group whose checks Kafka does not take in time
# What a job of today records, where a plan of an earlier rule version lacks the parameter.
OF_TODAY = {"ages_from_known_at": True}
_ROUTING = {
    "real_topic": "orders",
    "real_queue_id": None,
    "delay_level": None,
    "delay_ms": None,
    "deliver_at": None,
}


class History:
    """The epochs of a world: what lands in each, its epoch_at, and how far behind known_at is.

    Parameters that are not named have their defaults.
    """

    def __init__(self, **parameters: Any) -> None:
        self.parameters = asdict(Parameters(**{**OF_TODAY, **parameters}))
        self.epochs: list[Row] = []
        self._ends: dict[tuple[str, int], int] = {}
        self.at_ms = START_AT

    def epoch(self, seconds: float, **parameters: Any) -> None:
        """Begin an epoch, so many seconds after the one before."""
        self.at_ms += round(seconds * 1_000)

        self.epochs.append(
            {
                "at": self.at_ms,
                "halves": [],
                "operations": [],
                "schedules": [],
                "commands": [],
                "parameters": parameters,
                "attempts": attempts_of,
                "behind_ms": 0,
                "halves_behind_ms": 0,
            }
        )

    def known(self, behind_ms: int | None, halves_behind_ms: int | None = 0) -> None:
        """Sets how far known_at of every queue is behind epoch_at; None: nothing is known yet."""
        self.epochs[-1] |= {"behind_ms": behind_ms, "halves_behind_ms": halves_behind_ms}

    def floor(self, offset: int) -> None:
        """Raise the floor of half queue 0 in the epoch, and in those after it."""
        self.epochs[-1]["floor"] = offset

    def world(self) -> Row:
        """Return the world; every epoch knows of each half queue where landing stands."""
        half_ends = {0: 0, 1: 0}
        floor = 0

        for epoch in self.epochs:
            floor = epoch.get("floor", floor)
            for row in epoch["halves"]:
                half_ends[row["queue_id"]] = row["queue_offset"] + 1

            known_at = _before(epoch["at"], epoch["behind_ms"])
            halves_known_at = _before(epoch["at"], epoch["halves_behind_ms"])

            epoch["queues"] = [
                {
                    "queue_id": queue,
                    "known_at": known_at,
                    "halves_known_at": halves_known_at,
                    "half_end": end,
                    "floor": floor if queue == 0 else 0,
                }
                for queue, end in half_ends.items()
            ]

        return {"seed": 0, "parameters": self.parameters, "epochs": self.epochs}

    def _next(self, kind: str, queue: int) -> int:
        offset = self._ends.get((kind, queue), 0)
        self._ends[kind, queue] = offset + 1
        return offset

    def half(
        self,
        transaction_id: str = "",
        queue: int = 0,
        group: str = "g",
        *,
        age_ms: int = 500,
        skipped: int = 0,
        **columns: Any,
    ) -> None:
        """Land a half in the epoch. Input: `skipped` offsets before it have no record."""
        for _ in range(skipped):
            self._next("half", queue)
        offset = self._next("half", queue)

        row = {
            "queue_id": queue,
            "queue_offset": offset,
            "producer_group": group,
            "transaction_id": transaction_id or f"tx{offset}",
            "tran_size": None,
            "tran_seq": None,
            "stored_at": self.at_ms - age_ms,
            **_ROUTING,
            "immunity_ms": None,
            "error": None,
        }

        self.epochs[-1]["halves"].append({**row, **columns})

    def end(self, decision: str | None, *offsets: int, queue: int = 0, **columns: Any) -> None:
        """Land an operation in the epoch; with an `error` it cannot be read."""
        row = {
            "queue_id": queue,
            "op_queue_offset": self._next("op", queue),
            "producer_group": "g",
            "decision": decision,
            "half_offsets": list(offsets),
            "transaction_ids": None,
            "cause": "operation",
            "error": None,
            "is_signed": None,
            "stored_at": self.at_ms - 200,
        }

        self.epochs[-1]["operations"].append({**row, **columns})

    def schedule(self, queue: int = 0, *, age_ms: int = 300, **columns: Any) -> None:
        """Land a schedule record in the epoch."""
        row = {
            "queue_id": queue,
            "queue_offset": self._next("schedule", queue),
            "stored_at": self.at_ms - age_ms,
            "producer_group": None,
            **_ROUTING,
            "error": None,
        }
        self.epochs[-1]["schedules"].append({**row, **columns})

    def command(self, command: str, target: str | None, error: str | None = None) -> None:
        """Land an operator's command in the epoch."""
        row = {"admin_offset": self._next("admin", 0), "command": command, "target": target}
        self.epochs[-1]["commands"].append({**row, "error": error})

    def accept_loss(self, queue: int, first: int, last: int) -> None:
        """Pass lost offsets of a half queue in the epoch, and land the command that accepts it."""
        self.command(ACCEPT_LOSS, f"lost:half:{queue}:{first}-{last}")
        (admin_offset,) = [row["admin_offset"] for row in self.epochs[-1]["commands"]][-1:]
        self.epochs[-1].setdefault("losses", []).append(
            {
                "topic": "halves",
                "partition": queue,
                "first": first,
                "last": last,
                "admin_offset": admin_offset,
            }
        )


def _before(at: int, behind_ms: int | None) -> int | None:
    return None if behind_ms is None else at - behind_ms


def attempts_of(_: Row, due: list[Row]) -> list[Row]:
    """Return what became of each question that was handed to Kafka in time."""
    return [
        {
            "queue_id": row["queue_id"],
            "queue_offset": row["queue_offset"],
            "acknowledged": row["producer_group"] != SILENT,
        }
        for row in due
        if row["producer_group"] != LATE
    ]

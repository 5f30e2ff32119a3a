"""Run a world through the decision and through the model, and say where they first differ.

What the shell would look up of earlier epochs is looked up here in what the decision itself gave.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from checker import lookups
from checker.decide import decide
from checker.frames import (
    COMMANDS,
    ENDED,
    NEW_HALVES,
    NEW_SCHEDULES,
    OPERATIONS,
    QUEUES,
    UNDELIVERABLE,
    Decision,
    Inputs,
    Instants,
    Parameters,
    State,
)
from checker.rules import timing
from tests.support.comparison_rows import (
    Rows,
    rows_of_decision,
    rows_of_model,
    state_of_checker,
    state_of_model,
)
from tests.support.histories import parameters_at
from tests.support.model import Model
from tests.support.model_units import coordinate
from txlake.protocol import UndeliverableTarget, read_target

Row = dict[str, Any]
ATTEMPT = pa.schema(
    [("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("acknowledged", pa.bool_())]
)


class Checker:
    """The decision with its state, and the history that the shell keeps for it."""

    def __init__(self) -> None:
        self.state = State()
        self.decision: Decision
        self.half_ends: dict[int, int] = {}
        self.known_at: dict[int, int | None] = {}
        self.halves: dict[tuple[int, int], Row] = {}
        self.ends: dict[tuple[int, int], Row] = {}
        self.undeliverable: dict[int, Row] = {}
        self.groups: dict[tuple[Any, ...], str | None] = {}  # of each record
        self.delivered: set[tuple[Any, ...]] = set()

    def decide(self, epoch: Row, parameters: Row) -> Decision:
        inputs = self._inputs(epoch)
        queues = pa.Table.from_pylist(
            [
                {**row, "earlier_known_at": self.known_at.get(row["queue_id"])}
                for row in epoch["queues"]
            ],
            schema=QUEUES,
        )

        decision = decide(
            self.state, inputs, Instants(epoch["at"], queues), Parameters(**parameters)
        )

        self.state = decision.state
        self.decision = decision
        self._remember(epoch, decision)
        return decision

    def record_attempts(self, attempts: list[Row], at: int) -> None:
        frame = pa.Table.from_pylist(attempts, schema=ATTEMPT)
        self.decision = timing.record_attempts(self.decision, frame, at)
        self.state = self.decision.state

    def _inputs(self, epoch: Row) -> Inputs:
        landed = {
            "halves": pa.Table.from_pylist(epoch["halves"], schema=NEW_HALVES),
            "operations": pa.Table.from_pylist(epoch["operations"], schema=OPERATIONS),
            "schedules": pa.Table.from_pylist(epoch["schedules"], schema=NEW_SCHEDULES),
            "commands": pa.Table.from_pylist(epoch["commands"], schema=COMMANDS),
        }

        floors = {row["queue_id"]: row.get("floor") for row in epoch["queues"]}
        half_ends = pa.Table.from_pylist(
            [
                {"queue_id": queue, "half_end": end, "floor": floors.get(queue)}
                for queue, end in self.half_ends.items()
            ],
            schema=QUEUES,
        )

        inputs = Inputs(**landed)
        asked = lookups.halves_to_look_up(self.state, inputs, half_ends).to_pylist()
        ended = [row for row in map(self._ended, map(coordinate, asked)) if row]
        found = pa.Table.from_pylist(ended, schema=ENDED)

        ids = set(lookups.sets_to_look_up(self.state, inputs, half_ends, found))
        for place, half in self.halves.items():
            if half["transaction_id"] in ids and half["tran_size"] is not None:
                row = self._ended(place)
                ended += [row] if row and row not in ended else []

        targets = [read_target(row["target"]) for row in epoch["commands"]]
        places = {t.queue_offset for t in targets if isinstance(t, UndeliverableTarget)}
        resumable = [
            {
                **row,
                "undeliverable_offset": place,
                "real_queue_id": row["asked_queue_id"],
                "producer_group": self.groups[_key(row)],
            }
            for place, row in self.undeliverable.items()
            if place in places and _key(row) not in self.delivered
        ]

        return Inputs(
            **landed,
            ended=pa.Table.from_pylist(ended, schema=ENDED),
            undeliverable=pa.Table.from_pylist(resumable, schema=UNDELIVERABLE),
        )

    def _ended(self, place: tuple[int, int]) -> Row | None:
        half = self.halves.get(place)
        if half is None:
            return None
        if half["error"] is not None:
            nothing = {"cause": None, "op_queue_offset": None}
            return _pick(ENDED.names, {**half, **nothing, "status": "UNREADABLE", "arm": 0})
        end = self.ends.get(place)
        return end and _pick(ENDED.names, {**half, **end, "status": end["outcome"]})

    def _remember(self, epoch: Row, decision: Decision) -> None:
        self.half_ends = {row["queue_id"]: row["half_end"] for row in epoch["queues"]}
        self.known_at = {row["queue_id"]: row["known_at"] for row in epoch["queues"]}
        self.halves |= {coordinate(row): row for row in epoch["halves"]}
        for source, rows in (("half", epoch["halves"]), ("schedule", epoch["schedules"])):
            self.groups |= {(source, *coordinate(row)): row["producer_group"] for row in rows}

        for row in decision.outcomes.to_pylist():
            if row["outcome"] != "DISCARDED":
                self.ends[coordinate(row)] = row

        for row in decision.placements.to_pylist():
            if row["topic"] == "TRANS_UNDELIVERABLE_TOPIC":
                self.undeliverable[row["real_queue_offset"]] = row

        for row in decision.deliveries.to_pylist():
            if row["action"] == "DELIVERED":
                self.delivered.add(_key(row))


def attempts_of(epoch: Row, due: list[Row]) -> list[Row]:
    """Tells what became of each question: acknowledged, not, or (left out) not handed over."""
    attempts = []
    for row in due:
        text = f"{epoch['at']} {row['queue_id']} {row['queue_offset']} {row['check_times']}"
        luck = zlib.crc32(text.encode()) % 10
        if luck:
            row = {"queue_id": row["queue_id"], "queue_offset": row["queue_offset"]}
            attempts.append({**row, "acknowledged": luck > 2})
    return attempts


def compared(world: Row) -> Iterator[tuple[Rows, Rows]]:
    """Decide a world twice. Output: of each epoch the rows and state after it, by the decision
    and by the model."""
    checker = Checker()
    model = Model()

    for epoch in world["epochs"]:
        parameters = parameters_at(world, epoch)
        decision = checker.decide(epoch, parameters)
        expected = model.decide(epoch, parameters)

        attempts = epoch.get("attempts", attempts_of)(epoch, expected["due"])
        given = rows_of_decision(decision)
        wanted = rows_of_model(expected)

        if given["due"] == wanted["due"]:
            checker.record_attempts(attempts, epoch["at"])
            model.record_attempts(attempts, epoch["at"])

        given |= state_of_checker(checker.state, epoch["queues"])
        wanted |= state_of_model(model, epoch["queues"])

        yield given, wanted


def first_difference(world: Row) -> Row | None:
    """Return the first epoch and frame in which decision and model differ, or None."""
    for number, (given, wanted) in enumerate(compared(world)):
        different = {
            name: {
                "only decided": [row for row in given[name] if row not in wanted[name]],
                "only by the rules": [row for row in wanted[name] if row not in given[name]],
            }
            for name in wanted
            if given[name] != wanted[name]
        }

        if different:
            return {"epoch": number, **different}
    return None


def _pick(names: list[str], row: Row) -> Row:
    return {name: row[name] for name in names}


def _key(row: Row) -> tuple[Any, ...]:
    return row["source"], row["queue_id"], row["queue_offset"]

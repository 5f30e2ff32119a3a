"""The decision rules once more, in plain Python: naive on purpose, written from the rules' text.

Not so independent is the vocabulary of command results, which the rules' text does not give. It
shares no code with `checker` and keeps everything it ever saw: every half, every set, every
message. Rows come in as dicts with the columns of `checker.frames`. `model_delivery` is the
second half: commands about messages, delays, topics, queue offsets; which operation ends which
half stands in `model_operations`.

Where the rules' text is silent this is what was chosen:

1. A set is keyed by (queue, group, transaction id, TRAN_SIZE).
2. An operation that names a duplicate member (cause `duplicate_in_set`) names its set.
3. An operation is decided for a set once, at the first of its positions that names a half of it
   that is there; its other positions that name the set, the same half once more included, come to
   nothing, whenever their halves land. What is the same set its key says, whatever was forgotten of
   it meanwhile. A half alone that is named again is judged again.
4. orphan_expired: what is known of the half queue minus the T that landed the operation exceeds
   the ttl.
5. A new member of a discarded set is discarded with the set's cause, unless an operation ends the
   set in that epoch. It takes the set's arm, and it is copied, because it was not before.
6. A ROLLBACK of an incomplete set waits behind an early operation of its group that carries no
   transaction id or the set's. A complete set waits for nothing.
7. A waiting COMMIT of a set that was discarded meanwhile is rejected at once where the policy says.
8. Last answer, n, c, s and a of a set live on its first landed half.
9. No ROLLBACK of a set waits behind an operation that is decided for that set already.
10. The rate ranks the due checks of a group by (s, queue, offset).
11. Of a set that ended only what stands at the floor or above it, or is delayed, is known. A
    duplicate stands for its TRAN_SEQ when the first half of that is gone; if only duplicates are
    left, the set was rolled back. What lands later of an ended set is rolled back.
12. What is delayed is there until commands of the epoch have cancelled it. A discarded set is there
    until the floor has passed its members, and while an operation that waits names it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from tests.support.model_delivery import Messages
from tests.support.model_operations import Operations
from tests.support.model_units import OUTCOME_OF, Row, Unit, coordinate

_ARMED = {"RESUME": ("rearmed", "not_discarded"), "RESEND": ("resent", "not_pending")}


class Model:
    """All that was landed and decided, epoch after epoch."""

    def __init__(self) -> None:
        self.halves: dict[tuple[int, int], Row] = {}
        self.units: dict[tuple[Any, ...], Unit] = {}
        self.unit_of: dict[tuple[int, int], Unit] = {}
        self.queues: dict[int, Row] = {}
        self.operations = Operations(self.halves, self.unit_of)
        self.copied: set[tuple[int, int]] = set()
        self.duplicates: set[tuple[int, int]] = set()
        self.messages = Messages()

    def decide(self, epoch: Row, parameters: Row) -> dict[str, list[Row]]:
        """Decide one epoch: `at`, `queues`, and the rows that it lands."""
        self.at = epoch["at"]
        self.parameters = parameters
        self.queues_before = self.queues
        self.queues = {row["queue_id"]: row for row in epoch["queues"]}

        self.outcomes: list[Row] = []
        self.messages.begin(epoch["at"], parameters)
        self._forget()

        results = [self._command(row) for row in sorted(epoch["commands"], key=_admin_offset)]
        self._forget()  # what was cancelled

        late_members = self._land(epoch["halves"])
        committed = self._end(self.operations.decide(epoch, parameters))

        for half, unit in late_members:
            if unit.end is None:
                self._outcome(half, unit, "DISCARDED", unit.discard_cause)

        due = self._time()

        discards = [row for row in self.outcomes if row["outcome"] == "DISCARDED"]
        discards.sort(key=coordinate)
        fresh = [row for row in discards if coordinate(row) not in self.copied]
        self.copied |= {coordinate(row) for row in fresh}
        delivered = self.messages.deliver(committed, epoch["schedules"], fresh)

        return {
            "outcomes": self.outcomes,
            "conflicts": self.operations.conflicts,
            "due": due,
            "command_results": [self.messages.with_final_result(row) for row in results],
            **delivered,
        }

    def record_attempts(self, attempts: list[Row], at: int) -> None:
        for row in attempts:
            unit = self.unit_of[coordinate(row)]
            unit.check_times += int(row["acknowledged"])
            unit.unacknowledged = 0 if row["acknowledged"] else unit.unacknowledged + 1
            unit.checked_at = at

    def pending(self) -> list[Unit]:
        return [unit for unit in self.units.values() if unit.end is None]

    def _forget(self) -> None:
        """Forget what is not there: below the floor of its queue, and in no state."""
        waited_for = {
            id(self.unit_of[place])
            for naming in self.operations.waiting
            if (place := (naming["queue_id"], naming["half_queue_offset"])) in self.unit_of
        }

        for key, unit in list(self.units.items()):
            is_in_state = unit.end is None and (
                unit.discard_cause is None
                or id(unit) in waited_for
                or not all(map(self._is_below, unit.halves))
            )
            if is_in_state:
                continue

            mine = [h for place, h in self.halves.items() if self.unit_of.get(place) is unit]
            gone = [
                half
                for half in mine
                if self._is_below(half) and ("half", *coordinate(half)) not in self.messages.delayed
            ]

            for half in gone:
                del self.halves[coordinate(half)], self.unit_of[coordinate(half)]
            if gone:
                self._forget_set(key, unit, [half for half in mine if half not in gone])

        for place, half in list(self.halves.items()):
            if half["error"] is not None and self._is_below(half):
                del self.halves[place]

    def _is_below(self, half: Row) -> bool:
        floor: int = self.queues[half["queue_id"]].get("floor") or 0
        return bool(half["queue_offset"] < floor)

    def _forget_set(self, key: tuple[Any, ...], unit: Unit, left: list[Row]) -> None:
        """Put what is left of an ended set in its place."""
        del self.units[key]
        if not left:
            return

        left.sort(key=coordinate)
        rest = self.units[key] = Unit(
            unit.queue_id, left[0], unit.size, unit.stored_at, unit.age_from_at, unit.key
        )

        rest.arm = unit.arm
        for half in left:
            rest.members.setdefault(half["tran_seq"], half)
            self.unit_of[coordinate(half)] = rest

        ended = [half for half in left if coordinate(half) not in self.duplicates]
        nothing = {"decision": "ROLLBACK", "cause": "duplicate_in_set", "op_queue_offset": None}
        rest.end = unit.end if ended else nothing

    def _command(self, row: Row) -> Row:
        half = re.fullmatch(r"half:([0-9]{1,9})-([0-9]{1,18})", row["target"] or "")
        if row["error"] is None and row["command"] in _ARMED and half:
            place = int(half[1]), int(half[2])
            result = self._rearm(row["command"], self.unit_of.get(place), place[1])
        else:
            result = self.messages.command(row)
        return {"admin_offset": row["admin_offset"], "result": result}

    def _rearm(self, command: str, unit: Unit | None, offset: int) -> str:
        done, refused = _ARMED[command]
        is_member = unit is not None and any(h["queue_offset"] == offset for h in unit.halves)
        if unit is None or not is_member or unit.end is not None:
            return refused
        if (unit.discard_cause is None) == (command == "RESUME"):
            return refused
        unit.arm_again(self.at)
        return done

    def _land(self, halves: list[Row]) -> list[tuple[Row, Unit]]:
        """Land the halves; give the ones that join a set that stands discarded."""
        joined = []

        for half in sorted(halves, key=coordinate):
            self.halves[coordinate(half)] = half
            if half["error"] is not None:
                continue

            size = 1
            seq = 0
            key = None

            if half["tran_size"] is not None:
                size, seq = half["tran_size"], half["tran_seq"]
                names = ("queue_id", "producer_group", "transaction_id", "tran_size")
                key = tuple(half[name] for name in names)

            place = key or coordinate(half)
            if place not in self.units:
                self.units[place] = Unit(
                    half["queue_id"], half, size, half["stored_at"], self._age_from_at(half), key
                )

            unit = self.unit_of[coordinate(half)] = self.units[place]
            if seq in unit.members:
                self._outcome(half, unit, "ROLLED_BACK", "duplicate_in_set")
                continue

            unit.members[seq] = half

            if unit.end is not None:
                end = unit.end
                if end["decision"] == "COMMIT":  # it was complete: one below the floor was first
                    end = {"cause": "duplicate_in_set", "op_queue_offset": None}
                self._outcome(half, unit, "ROLLED_BACK", end["cause"], end["op_queue_offset"])
            elif unit.discard_cause is not None:
                joined.append((half, unit))
        return joined

    def _age_from_at(self, half: Row) -> int:
        """Return since when a half ages: stored, or known of its queue in the epoch before."""
        stored_at: int = half["stored_at"]
        before = self.queues_before.get(half["queue_id"], {})
        if not self.parameters["ages_from_known_at"]:
            return stored_at
        return max(stored_at, before.get("known_at") or stored_at)

    def _outcome(
        self, half: Row, unit: Unit, outcome: str, cause: str | None, op: int | None = None
    ) -> None:
        if cause == "duplicate_in_set":
            self.duplicates.add(coordinate(half))
        row = {"arm": unit.arm, "outcome": outcome, "cause": cause, "op_queue_offset": op}
        self.outcomes.append({**half, **row})

    def _end(self, won: list[tuple[Row, Unit]]) -> list[Row]:
        """Write the outcomes; give the committed halves in order of delivery."""
        committed = []
        for winner, unit in won:
            outcome = OUTCOME_OF[winner["decision"]]
            cause = unit.end["cause"] if unit.end else None
            for _, half in sorted(unit.members.items()):
                self._outcome(half, unit, outcome, cause, winner["op_queue_offset"])
                committed += [half] if outcome == "COMMITTED" else []
        return committed

    def _time(self) -> list[Row]:
        """Lines 3 to 7 of each unit that nothing has ended; give the checks to ask now."""
        due: dict[str, list[Unit]] = defaultdict(list)

        for unit in self.pending():
            known_at = self.queues[unit.queue_id]["known_at"]
            if unit.discard_cause is not None or known_at is None:
                continue

            rule = self._rule(unit, known_at)
            if rule == "due":
                due[unit.first["producer_group"]].append(unit)
            elif rule is not None:
                unit.discard_cause = rule
                for half in unit.halves:
                    self._outcome(half, unit, "DISCARDED", rule)

        ranked = []

        for units in due.values():
            units.sort(key=lambda unit: (unit.stored_at, *coordinate(unit.first)))
            ranked += list(enumerate(units))

        ranked.sort(key=lambda pair: (pair[0], pair[1].stored_at, *coordinate(pair[1].first)))
        return [
            {
                **unit.first,
                "arm": unit.arm,
                "check_times": unit.check_times + 1,
                "half_offsets": [half["queue_offset"] for half in unit.halves],
            }
            for _, unit in ranked[: self.parameters["check_rate_max"]]
        ]

    def _rule(self, unit: Unit, known_at: int) -> str | None:
        limits = self.parameters
        immunity_ms = unit.first["immunity_ms"]
        if immunity_ms is None:
            immunity_ms = limits["transaction_timeout_ms"]
        age_ms = known_at - unit.age_from_at

        if age_ms > limits["half_retention_ms"]:
            return "expired"
        if unit.checked_at is None:
            is_asked_now = age_ms > immunity_ms
        else:
            is_asked_now = known_at - unit.checked_at >= self._interval_ms(unit)

        if not is_asked_now:
            return None
        return "check_max" if unit.check_times >= limits["check_max"] else "due"

    def _interval_ms(self, unit: Unit) -> int:
        interval_ms: int = self.parameters["check_interval_ms"]
        wait_ms = interval_ms
        for _ in range(unit.unacknowledged - 1):
            wait_ms = min(2 * wait_ms, max(interval_ms, 3_600_000))
        return wait_ms


def _admin_offset(row: Row) -> int:
    return int(row["admin_offset"])

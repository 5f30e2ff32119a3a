"""Which operation ends which half: tests 1 to 8 of the rules, one operation after the other."""

from __future__ import annotations

from typing import Any

from tests.support.model_units import Row, Unit


class Operations:
    """Every naming of a half that still waits, and the conflicts of one epoch."""

    def __init__(self, halves: dict[tuple[int, int], Row], unit_of: dict[Any, Unit]) -> None:
        self.halves, self.unit_of = halves, unit_of
        self.waiting: list[Row] = []
        self.decided: dict[tuple[Any, ...], int] = {}  # (op queue, op offset, set) -> the position

    def decide(self, epoch: Row, parameters: Row) -> list[tuple[Row, Unit]]:
        """Return each unit that is ended now, and the naming that ends it, in order of delivery."""
        self.at = epoch["at"]
        self.parameters = parameters
        self.queues = {row["queue_id"]: row for row in epoch["queues"]}
        self.conflicts: list[Row] = []
        return self._judge(self._resolve(self._namings(epoch["operations"])))

    def _namings(self, operations: list[Row]) -> list[Row]:
        new = []
        for operation in operations:
            if operation["error"] is not None:
                self._conflict({**operation, "half_queue_offset": None}, "unreadable_operation")
                continue

            ids = operation["transaction_ids"]
            for position, offset in enumerate(operation["half_offsets"]):
                new.append(
                    {
                        **operation,
                        "position": position,
                        "half_queue_offset": offset,
                        "transaction_id": None if ids is None else ids[position],
                        "landed_at": self.at,
                    }
                )
        return sorted(self.waiting + new, key=_place)

    def _conflict(self, naming: Row, reason: str) -> None:
        self.conflicts.append({**naming, "reason": reason})

    def _resolve(self, namings: list[Row]) -> list[Row]:
        """Test 1 to 7 of each naming; give those that are valid, keep those that are early."""
        valid = []
        self.waiting = []

        for naming in namings:
            half = self.halves.get((naming["queue_id"], naming["half_queue_offset"]))
            queue = self.queues[naming["queue_id"]]
            known_at = queue["halves_known_at"]
            ttl = self.parameters["orphan_operation_ttl_ms"]

            if naming["half_queue_offset"] >= queue["half_end"]:
                if known_at is not None and known_at - naming["landed_at"] > ttl:
                    self._conflict(naming, "orphan_expired")
                else:
                    self.waiting.append(naming)
            elif half is None:
                below = naming["half_queue_offset"] < (queue.get("floor") or 0)
                self._conflict(naming, "below_floor" if below else "unknown_half")
            elif half["error"] is not None:
                self._conflict(naming, "unreadable_half")
            elif self._is_decided_elsewhere(naming):
                continue
            elif naming["producer_group"] != half["producer_group"]:
                self._conflict(naming, "wrong_producer_group")
            elif naming.get("is_signed") is False:
                self._conflict(naming, "bad_signature")
            elif self._lacks_id(naming):
                self._conflict(naming, "no_transaction_id")
            elif naming["transaction_id"] not in (None, half["transaction_id"]):
                self._conflict(naming, "wrong_transaction_id")
            elif self._is_late(naming, self.unit_of[naming["queue_id"], half["queue_offset"]]):
                self._conflict(naming, "after_immunity")
            else:
                valid.append(naming)
        return valid

    def _is_decided_elsewhere(self, naming: Row) -> bool:
        """An operation is decided for a set once: at the first position that names it."""
        unit = self.unit_of[naming["queue_id"], naming["half_queue_offset"]]
        if unit.key is None:
            return False
        of_set = (naming["queue_id"], naming["op_queue_offset"], unit.key)
        return bool(self.decided.setdefault(of_set, naming["position"]) != naming["position"])

    def _lacks_id(self, naming: Row) -> bool:
        """Test 6 of a producer's operation; one that waits for its set has passed it before."""
        is_asked = self.parameters["require_transaction_id"] and not naming.get("has_passed")
        return is_asked and naming["cause"] != "operator" and naming["transaction_id"] is None

    def _is_late(self, naming: Row, unit: Unit) -> bool:
        """Test 7: a producer's own end after the immunity that the unit's first half asks for."""
        immunity_ms = unit.first["immunity_ms"]
        is_asked = self.parameters["reject_after_immunity"] and not naming.get("has_passed")
        if not is_asked or immunity_ms is None:
            return False
        is_own_end = naming["cause"] == "operation" and naming["decision"] != "UNKNOWN"
        after_ms: int = naming["stored_at"] - unit.first["stored_at"]
        return bool(is_own_end and after_ms > immunity_ms)

    def _judge(self, valid: list[Row]) -> list[tuple[Row, Unit]]:
        """Test 8, one unit after the other."""
        early = [naming for naming in self.waiting if naming["decision"] != "UNKNOWN"]
        by_unit: dict[int, tuple[Unit, list[Row]]] = {}

        for naming in valid:
            unit = self.unit_of[naming["queue_id"], naming["half_queue_offset"]]
            if naming["decision"] == "UNKNOWN":
                answer = (naming["op_queue_offset"], naming["stored_at"])
                unit.answer = answer if unit.answer is None else max(unit.answer, answer)
            else:
                by_unit.setdefault(id(unit), (unit, []))[1].append(naming)

        won = []
        for unit, namings in by_unit.values():
            winner = self._judge_unit(unit, namings, early)
            won += [] if winner is None else [(winner, unit)]
        return sorted(won, key=lambda pair: _place(pair[0]))

    def _judge_unit(self, unit: Unit, named: list[Row], early: list[Row]) -> Row | None:
        namings = sorted(named, key=_place)
        is_rejected = self.parameters["late_end_policy"] == "reject"
        if unit.end is None and unit.discard_cause and is_rejected:
            for naming in namings:
                self._conflict(naming, "end_after_discard")
            return None

        winner = None

        if unit.end is None:
            if self._must_wait(unit, namings[0], early):
                self.waiting += [{**naming, "has_passed": True} for naming in named]
                return None
            winner, *namings = namings
            unit.end = {**winner, "cause": "late_end" if unit.discard_cause else winner["cause"]}

        for naming in namings:
            same = naming["decision"] == unit.end["decision"]
            self._conflict(naming, "duplicate_end" if same else "conflicting_end")

        return winner

    def _must_wait(self, unit: Unit, naming: Row, early: list[Row]) -> bool:
        if naming["decision"] == "COMMIT":
            return not unit.is_complete

        # A complete set waits for nothing: what is early could only name a duplicate of it.
        return not unit.is_complete and any(
            other["queue_id"] == unit.queue_id
            and other["op_queue_offset"] < naming["op_queue_offset"]
            and other["producer_group"] == unit.first["producer_group"]
            and other["transaction_id"] in (None, unit.first["transaction_id"])
            and other.get("is_signed") is not False
            and (other["queue_id"], other["op_queue_offset"], unit.key) not in self.decided
            and not self._lacks_id(other)
            and not self._is_late(other, unit)
            for other in early
        )


def _place(naming: Row) -> tuple[int, int, int]:
    return naming["queue_id"], naming["op_queue_offset"], naming["position"]

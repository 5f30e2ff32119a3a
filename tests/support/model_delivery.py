"""The model's second half: delays, topics, queue offsets, and the commands about them.

What was chosen where the rules' text is silent:

1. DELIVER_AT holds before DELAY_MS, and that before a level above 0. Up to rule version 4 a level
   above 0 held before DELIVER_AT. DELIVER_AT's maximum is counted from T for
   halves and from stored_at for schedule records. A schedule record that is due at once is a
   `delayed` row all the same, with min(stored_at, T).
2. Topics are made in name order among those with a message in range of the default queue count,
   while topics_max allows. TRANS_CHECK_MAX_TIME_TOPIC and TRANS_UNDELIVERABLE_TOPIC do not count;
   what an operator makes counts, and is made first. A topic is made by the first message in range
   whose group has made fewer than group_topics_max; messages without a group are one group.
3. queue_out_of_range when REAL_QID is at or above the topic's queue count, or the default count
   where the topic does not stand and may be made; else group_topics_max where that alone is why it
   was not made; else topic_not_allowed.
4. A deliveries row for what is undeliverable at its commit too; none for a resumed message that
   still cannot be delivered.
"""

from __future__ import annotations

import re
from typing import Any

Row = dict[str, Any]
DISCARDS = "TRANS_CHECK_MAX_TIME_TOPIC"
UNDELIVERABLE = "TRANS_UNDELIVERABLE_TOPIC"
OWN = (DISCARDS, UNDELIVERABLE)
CONFIG = r"config:([A-Za-z0-9._-]{1,127}):retention\.(?:ms|bytes)=(-1|[0-9]{1,18})"
UNDELIVERABLE_AT = r"undeliverable:([0-9]{1,18})"
LOST = r"lost:(?:half|op|schedule|admin):[0-9]{1,9}:([0-9]{1,18})-([0-9]{1,18})"
TOPIC = r"topic:([A-Za-z0-9._-]{1,127}):([0-9]{1,5})"


class Messages:
    """Every message that is delayed, delivered, undeliverable or copied."""

    def __init__(self) -> None:
        self.delayed: dict[tuple[str, int, int], Row] = {}
        self.topics: dict[str, int] = {}
        self.makers: dict[str, str] = {}  # of topics that messages made
        self.undeliverable: list[Row] = []
        self.ends: dict[tuple[str, int], int] = {}

    def begin(self, at: int, parameters: Row) -> None:
        self.at, self.parameters = at, parameters
        self.wanted: dict[str, int] = {}
        self.resumed: list[Row] = []
        self.resumed_by: dict[int, Row] = {}
        self.placements: list[Row] = []
        self.deliveries: list[Row] = []
        self.new_topics: list[Row] = []
        self.refused: set[str] = set()

    def command(self, row: Row) -> str:
        """Do what an operator asks, and say what came of it."""
        if row["error"] is not None:
            return str(row["error"])

        if row["command"] in ("PING", "MAINTAIN"):
            return "accepted"

        text = row["target"] or ""

        if row["command"] == "RESUME" and (found := re.fullmatch(UNDELIVERABLE_AT, text)):
            return self._resume(int(found[1]), row["admin_offset"])

        if row["command"] == "CANCEL" and (
            found := re.fullmatch(r"(half|schedule):([0-9]{1,9})-([0-9]{1,18})", text)
        ):
            key = (found[1], int(found[2]), int(found[3]))
            message = self.delayed.pop(key, None)
            if message is None:
                return "not_delayed"
            self._delivery(message, "CANCELLED", None, None, row["admin_offset"])
            return "cancelled"

        if row["command"] == "CREATE_TOPIC" and (found := re.fullmatch(TOPIC, text)):
            return self._create(found[1], int(found[2]))

        if row["command"] == "ALTER_TOPIC" and (found := re.fullmatch(CONFIG, text)):
            if found[1] == UNDELIVERABLE or int(found[2]) == 0:
                return "bad_target"
            is_there = found[1] in self.topics or found[1] in self.wanted
            return "altered" if is_there else "no_such_topic"

        if row["command"] == "ACCEPT_LOSS" and (found := re.fullmatch(LOST, text)):
            return "noted" if int(found[1]) <= int(found[2]) else "bad_target"

        return "bad_target"

    def _resume(self, offset: int, admin_offset: int) -> str:
        if offset >= len(self.undeliverable):
            return "not_undeliverable"
        message = self.undeliverable[offset]
        if message["is_delivered"]:
            return "not_undeliverable"
        self.resumed_by[admin_offset] = message
        if any(row["of"] is message for row in self.resumed):
            return "resumed"
        copy = {**message, "of": message, "admin_offset": admin_offset, "place": offset}
        self.resumed.append(copy)
        return "resumed"

    def with_final_result(self, result: Row) -> Row:
        """Notes that a resumed message still could not be delivered."""
        message = self.resumed_by.get(result["admin_offset"])
        if message is None or message["is_delivered"]:
            return result
        return {**result, "result": "still_undeliverable"}

    def _create(self, topic: str, count: int) -> str:
        is_own = topic in OWN or topic.startswith("TRANS_CHECK_")
        if is_own or topic in (".", "..") or not 1 <= count <= 10_000:
            return "bad_target"
        if topic not in self.topics:
            self.wanted[topic] = max(count, self.wanted.get(topic, 0))
            return "created"
        if count <= self.topics[topic]:
            return "unchanged"
        self._make(topic, count)
        return "grown"

    def _make(self, topic: str, count: int) -> None:
        self.topics[topic] = count
        self.new_topics = [row for row in self.new_topics if row["topic"] != topic]
        row = {"topic": topic, "queue_count": count, "producer_group": self.makers.get(topic)}
        self.new_topics.append(row)

    def deliver(
        self, committed: list[Row], schedules: list[Row], discards: list[Row]
    ) -> dict[str, list[Row]]:
        """Place what is to be delivered now, in the order of the rules."""
        new = self._delay(schedules)
        at_once = []

        for half in committed:
            due_at = self._due_at(half, self.at)
            if due_at is None or due_at <= self.at:
                at_once.append({**half, "source": "half", "admin_offset": None})
            else:
                new.append({**half, "source": "half", "deliver_at": due_at})

        self.delayed |= {_key(row): row for row in new}

        due = [row for row in self.delayed.values() if row["deliver_at"] <= self.at]
        due.sort(key=lambda row: (row["deliver_at"], *_key(row)))
        for row in due:
            del self.delayed[_key(row)]

        self.resumed.sort(key=lambda row: row["place"])
        self._make_topics([*due, *at_once, *self.resumed])

        for message in due:
            self._put(message, is_first=True, is_at_once=False)
        for message in at_once:
            self._put(message, is_first=True, is_at_once=True)
        for message in self.resumed:
            self._put(message, is_first=False, is_at_once=False)

        for half in discards:
            self._own_topic(DISCARDS)
            self._place({**half, "source": "half"}, DISCARDS, 0, half["cause"])

        return {
            "delayed": new,
            "placements": self.placements,
            "deliveries": self.deliveries,
            "new_topics": self.new_topics,
        }

    def _due_at(self, message: Row, counted_from: int) -> int | None:
        levels = self.parameters["delay_levels_ms"]
        level = message["delay_level"] or 0
        span = message["delay_ms"]
        at = message["deliver_at"]
        most = self.parameters

        by_level = counted_from + levels[min(level, len(levels)) - 1] if level > 0 else None
        if at is not None and (most["deliver_at_goes_first"] or level == 0):
            due_at = min(at, counted_from + most["deliver_at_max_ms"])
            return min(due_at, most["due_at_max"]) if due_at > self.at else None

        if span is not None and (most["deliver_at_goes_first"] or level == 0):
            by_level = counted_from + min(span, most["deliver_at_max_ms"])

        return None if by_level is None else int(min(by_level, most["due_at_max"]))

    def _delay(self, schedules: list[Row]) -> list[Row]:
        rows = []
        for row in schedules:
            if row["error"] is None:
                due_at = self._due_at(row, row["stored_at"])
                if due_at is None:
                    due_at = min(row["stored_at"], self.at)
                rows.append({**row, "source": "schedule", "deliver_at": due_at})
        return rows

    def _make_topics(self, messages: list[Row]) -> None:
        for topic, count in sorted(self.wanted.items()):
            self._make(topic, count)

        limits = self.parameters
        asked: dict[str, list[str]] = {}

        for row in messages:
            if (row["real_queue_id"] or 0) < limits["default_queue_count"]:
                asked.setdefault(row["real_topic"], []).append(row["producer_group"] or "")

        for topic in sorted(asked.keys() - self.topics.keys()):
            users = [name for name in self.topics if name not in OWN]
            if limits["auto_create_topics"] and len(users) < limits["topics_max"]:
                maker = _maker(asked[topic], self.makers, limits["group_topics_max"])
                if maker is None:
                    self.refused.add(topic)
                    continue
                self.makers[topic] = maker
                self._make(topic, limits["default_queue_count"])

    def _own_topic(self, topic: str) -> None:
        if topic not in self.topics:
            self._make(topic, 1)

    def _put(self, message: Row, *, is_first: bool, is_at_once: bool) -> None:
        topic, asked = message["real_topic"], message["real_queue_id"]
        limits = self.parameters
        reason = None

        count = self.topics.get(topic)
        if count is None:
            is_outside = asked is not None and asked >= limits["default_queue_count"]
            reason = "group_topics_max" if topic in self.refused else "topic_not_allowed"
            if limits["auto_create_topics"] and is_outside:
                reason = "queue_out_of_range"
        elif asked is not None and asked >= count:
            reason = "queue_out_of_range"

        if reason is None:
            queue_id = message["queue_offset"] % count if asked is None else asked
            offset = self._place(message, topic, queue_id, None)
            if not is_first:
                message["of"]["is_delivered"] = True
            if not is_at_once:
                self._delivery(message, "DELIVERED", queue_id, offset, message.get("admin_offset"))
        elif is_first:
            self._own_topic(UNDELIVERABLE)
            offset = self._place(message, UNDELIVERABLE, 0, reason)
            self.undeliverable.append({**message, "is_delivered": False})
            self._delivery(message, "UNDELIVERABLE", 0, offset, None)

    def _place(self, message: Row, topic: str, queue_id: int, reason: str | None) -> int:
        offset = self.ends.get((topic, queue_id), 0)
        self.ends[topic, queue_id] = offset + 1
        row = {"topic": topic, "real_queue_id": queue_id, "real_queue_offset": offset}
        asked = {"asked_queue_id": message["real_queue_id"], "reason": reason}
        self.placements.append({**message, **asked, **row})
        return offset

    def _delivery(
        self, message: Row, action: str, queue_id: int | None, offset: int | None, admin: int | None
    ) -> None:
        place = {"real_queue_id": queue_id, "real_queue_offset": offset, "admin_offset": admin}
        self.deliveries.append({**message, "action": action, **place})


def _key(row: Row) -> tuple[str, int, int]:
    return row["source"], row["queue_id"], row["queue_offset"]


def _maker(groups: list[str], makers: dict[str, str], most: int) -> str | None:
    """Return the first group that has made fewer topics than it may."""
    made = list(makers.values())
    return next((group for group in groups if made.count(group) < most), None)

"""Producer groups that do not answer: the checks that each was sent since its last answer.

A check counts when a healthy group has long answered it. Units: ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.match.columns import longs, truth, where

_GROUPS_MAX: Final = 10_000  # of those that were asked and have not answered


class _Group:
    def __init__(self) -> None:
        self.sent: deque[tuple[int, int]] = deque()  # at, checks
        self.unanswered = 0  # older than the patience

    def age(self, until_ms: int) -> None:
        while self.sent and self.sent[0][0] <= until_ms:
            self.unanswered += self.sent.popleft()[1]


class Groups:
    """The groups that were asked and have not answered since. Input: how long an answer may take.

    At a start a group is as its pending halves say: how often they were asked without an answer.
    """

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._groups: dict[str, _Group] = {}

    def took_up(self, halves: pa.Table) -> None:
        """Takes the checks of the halves that are pending. Input: HALVES."""
        self._groups = {}
        asked = longs(halves["checked_at"])
        is_open = truth(halves["discard_cause"].is_null()) & (asked >= 0)
        is_open &= asked > longs(halves["last_answer_at"])
        rows = where(halves, is_open)
        for group, at, times, answered in zip(
            *(rows[name].to_pylist() for name in
              ("producer_group", "checked_at", "check_times", "last_answer_at")), strict=True,
        ):  # fmt: skip
            self._sent(group, at, times if answered is None else 1)
        for found in self._groups.values():
            found.sent = deque(sorted(found.sent))

    def asked(self, attempts: pa.Table, at_ms: int) -> None:
        """Takes the checks that an epoch has sent. Input: ATTEMPTS."""
        for row in pc.value_counts(attempts["producer_group"]).to_pylist():
            self._sent(row["values"], at_ms, row["counts"])

    def answered(self, groups: Iterable[str]) -> None:
        """Takes the groups whose answers an epoch has landed: what they were asked is forgotten.

        The broker's time of an answer is not compared with ours of a check: clocks differ.
        """
        for group in groups:
            self._groups.pop(group, None)

    def unanswered(self, now_ms: int) -> dict[str, int]:
        """Returns the unanswered checks of each group that has any."""
        for group in self._groups.values():
            group.age(now_ms - self._patience_ms)
        return {name: g.unanswered for name, g in self._groups.items() if g.unanswered}

    def _sent(self, group: str, at_ms: int, count: int) -> None:
        if group not in self._groups and len(self._groups) >= _GROUPS_MAX:
            del self._groups[next(iter(self._groups))]
        found = self._groups.setdefault(group, _Group())
        found.sent.append((at_ms, count))
        found.age(at_ms - self._patience_ms)  # what is old is a number, also without a scrape

"""Producer groups that do not answer, like those of `txlake groups`, but without reading the lake.

An unanswered check is defined in `pipelines/health/groups.py`, with its numbers. Units: ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import HALVES, OUTCOMES
from checker.frames_ops.columns import filter_rows, index_of
from pipelines.health.groups import ANSWER_MS, NEWEST_CHECKS, WANTED_ENDS
from storage.schemas import row_keys

_GROUPS_MAX: Final = 10_000  # the groups whose checks are the newest


@dataclass(frozen=True)
class GroupReplies:
    """The replies in one epoch: answers of halves, and ends that somebody wanted.

    `answered`: HALVES that changed. `ended`: OUTCOMES.
    """

    answered: pa.Table = field(default_factory=HALVES.empty_table)
    ended: pa.Table = field(default_factory=OUTCOMES.empty_table)


@dataclass
class _Check:
    row_key: int
    arm: int
    sent_at: int
    is_ended: bool = False
    last_answer_at: int = -1

    @property
    def is_answered(self) -> bool:
        return self.is_ended or self.last_answer_at >= self.sent_at


class Groups:
    """The newest checks of each group, and whether they are answered.

    Input: the checks in the lake at a start, as `health.groups.read_answers`; None: none.
    """

    def __init__(self, answers: pa.Table | None = None) -> None:
        self._groups: dict[str, deque[list[_Check]]] = {}  # by epoch, the newest last
        if answers is not None:
            self._begin(answers)

    def _begin(self, answers: pa.Table) -> None:
        answers = answers.append_column("row_key", pa.array(row_keys(answers)))
        in_order = answers.sort_by([("epoch", "ascending"), ("row_key", "ascending")])

        for row in in_order.to_pylist():
            sent_at = round(row["sent_at"].timestamp() * 1000)
            check = _Check(row["row_key"], row["arm"], sent_at, row["is_answered"])
            epochs = self._of(row["producer_group"])

            if epochs and epochs[-1][0].sent_at == sent_at:
                epochs[-1].append(check)
            else:
                epochs.append([check])

    def observe_checks(self, attempts: pa.Table, at_ms: int, halves: pa.Table) -> None:
        """Adds the checks that an epoch has sent. Input: ATTEMPTS; HALVES after the epoch.

        An answer to an earlier check can be later than this one by the broker's clock;
        `read_answers` counts it as an answer to this one, too.
        """
        if not attempts.num_rows:
            return

        keys = row_keys(attempts)
        arms = attempts["arm"].to_numpy()
        groups = attempts["producer_group"].combine_chunks().dictionary_encode()
        order = np.lexsort((keys, groups.indices))
        first = np.flatnonzero(np.diff(groups.indices.to_numpy()[order], prepend=-1))

        new = []
        for start, rows in zip(first, np.split(order, first[1:]), strict=True):
            checks = [_Check(int(keys[row]), int(arms[row]), at_ms) for row in rows[:NEWEST_CHECKS]]
            new += checks

            epochs = self._of(groups[order[start]].as_py())
            epochs.append(checks)
            _forget(epochs, at_ms)

        _take_answers(new, halves)

    def observe_replies(self, replies: GroupReplies) -> None:
        """Adds the replies of an epoch to the checks that were sent before."""
        if not self._groups or not (replies.answered.num_rows or replies.ended.num_rows):
            return

        checks: list[_Check] = []
        for epochs in self._groups.values():
            checks += chain.from_iterable(epochs)
        _take_answers(checks, replies.answered)

        is_wanted = pc.is_in(replies.ended["cause"], pa.array(WANTED_ENDS))
        for check, row in _rows(checks, replies.ended.filter(is_wanted)):
            check.is_ended |= row["arm"] == check.arm

    def unanswered(self, now_ms: int, waiting: Container[str]) -> Mapping[str, int]:
        """Returns how many of its newest checks each group has left unanswered, if any.

        Input: `waiting`: the groups that have halves pending; the other groups owe no answer.
        """
        counts = {}
        for group, epochs in self._groups.items():
            if group not in waiting:
                continue

            newest = _newest(epochs, now_ms - ANSWER_MS)
            counts[group] = sum(not check.is_answered for check in newest)

        return {group: count for group, count in counts.items() if count}

    def _of(self, group: str) -> deque[list[_Check]]:
        epochs = self._groups.pop(group, None)
        if epochs is None and len(self._groups) >= _GROUPS_MAX:
            del self._groups[next(iter(self._groups))]

        self._groups[group] = epochs = deque() if epochs is None else epochs
        return epochs


def _newest(epochs: deque[list[_Check]], until_ms: int) -> list[_Check]:
    """Returns the newest checks that were sent at or before an instant."""
    newest: list[_Check] = []
    for epoch_checks in reversed(epochs):
        if epoch_checks[0].sent_at <= until_ms and len(newest) < NEWEST_CHECKS:
            newest += epoch_checks[: NEWEST_CHECKS - len(newest)]
    return newest


def _forget(epochs: deque[list[_Check]], now_ms: int) -> None:
    """Drops the checks that younger ones have replaced, even without a scrape."""
    newest = _newest(epochs, now_ms - ANSWER_MS)
    while len(newest) == NEWEST_CHECKS and epochs[0][0].sent_at < newest[-1].sent_at:
        epochs.popleft()


def _take_answers(checks: list[_Check], halves: pa.Table) -> None:
    for check, row in _rows(checks, halves):
        check.last_answer_at = row["last_answer_at"] or -1


def _rows(checks: list[_Check], rows: pa.Table) -> Iterator[tuple[_Check, dict[str, Any]]]:
    """Returns the checks whose half is among the rows, each with its row."""
    keys = np.array([check.row_key for check in checks], np.int64)
    rows = filter_rows(rows, index_of(row_keys(rows), keys) >= 0)  # a few of millions

    indices = index_of(keys, row_keys(rows))
    halves = rows.to_pylist()

    for check, row in zip(checks, indices, strict=True):
        if row >= 0:
            yield check, halves[row]

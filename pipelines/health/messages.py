"""Messages of a real topic, as they stand at the newest committed epoch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import OperatorError
from pipelines.explain.rows import contains_keys, latest_committed, with_keys
from pipelines.health.topics import catalog, read_queues
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.rows import instant
from txlake._offset_windows import OffsetWindows

COLUMNS: Final = (
    "queue_id",
    "queue_offset",
    "stored_at",
    "born_at",
    "producer_group",
    "transaction_id",
    "real_topic",
    "reason",
    "keys",
    "tags",
    "properties",
    "body",
    "epoch",
)
_PLACE: Final = ("epoch", "queue_id", "queue_offset")
_IN_ORDER: Final = [(name, "ascending") for name in _PLACE]

Ranges = Mapping[int, tuple[int, int]]  # by queue: from an offset on, up to another


@dataclass(frozen=True)
class Choice:
    """The messages to read: at most `limit`, the oldest, or the newest ones with `is_tail`.

    None: all. `keys`: the whole KEYS of a message, or one of their words. `since_at`, `until_at`:
    when its record was stored, ms.
    """

    limit: int
    is_tail: bool = False
    queue_id: int | None = None
    from_offset: int | None = None
    keys: str | None = None
    since_at: int | None = None
    until_at: int | None = None

    @property
    def is_by_offset(self) -> bool:
        """Returns whether a message's offset alone says if it is chosen."""
        return (self.keys, self.since_at, self.until_at) == (None, None, None)


def read_messages(
    lake: Lake, topic: str, choice: Choice, columns: Sequence[str] = COLUMNS
) -> tuple[pa.Table, bool]:
    """Returns messages in the order of their delivery, and whether the choice has more.

    Output: COLUMNS, or the given ones; sorted by epoch, queue and offset. Only rows of committed
    epochs.
    Errors: OperatorError when there is no such topic or queue; BrokenLakeError.
    """
    ranges = _ranges(lake, topic, choice)
    (number,) = (row["table_id"] for row in catalog(lake) if row["topic"] == topic)
    epoch, _ = latest_committed(lake)
    table = f"topics/{number}"
    read = list(dict.fromkeys([*columns, *_PLACE]))

    if choice.is_by_offset:
        chosen_ranges = _chosen_ranges(lake, table, epoch, ranges, choice)
        rows = _read(lake, table, read, epoch, chosen_ranges)
        count = sum(end - begin for begin, end in ranges.values())
    else:
        matching = _read_matching(lake, table, epoch, ranges, choice)
        rows_at = _take(matching, choice).select(["queue_id", "queue_offset"]).to_pylist()
        places = [(row["queue_id"], row["queue_offset"]) for row in rows_at]
        rows = _read_at(lake, table, read, epoch, places)
        count = matching.num_rows

    chosen = _take(rows, choice)
    return chosen.select([*columns]), count > chosen.num_rows


def _chosen_ranges(lake: Lake, table: str, epoch: int, ranges: Ranges, choice: Choice) -> Ranges:
    """Returns the offsets of each queue that a choice by offset alone takes.

    Offsets have no gaps: `limit` offsets of each queue are enough. Which of them are taken is known
    from their places; bodies that are not shown are not read.
    """
    ends = {
        queue: _limit_range(begin, end, choice.limit, choice.is_tail)
        for queue, (begin, end) in ranges.items()
    }
    if len(ends) == 1:
        return ends

    taken = _take(_read(lake, table, [*_PLACE], epoch, ends), choice)
    bounds = taken.group_by("queue_id").aggregate(
        [("queue_offset", "min"), ("queue_offset", "max")]
    )
    return {
        row["queue_id"]: (row["queue_offset_min"], row["queue_offset_max"] + 1)
        for row in bounds.to_pylist()
    }


def _read_matching(lake: Lake, table: str, epoch: int, ranges: Ranges, choice: Choice) -> pa.Table:
    """Returns the places of the messages with the keys, stored in the time, of a choice."""
    stored = (_instant(choice.since_at), _instant(choice.until_at))
    if choice.keys is None:
        return _read(lake, table, [*_PLACE], epoch, ranges, stored=stored)

    columns = [*_PLACE, "keys"]
    where = contains_keys(choice.keys)
    return with_keys(_read(lake, table, columns, epoch, ranges, where, stored), choice.keys)


def _instant(ms: int | None) -> dt.datetime | None:
    return None if ms is None else instant(ms)


def _ranges(lake: Lake, topic: str, choice: Choice) -> dict[int, tuple[int, int]]:
    """Returns the offsets of each queue that the choice allows."""
    queues = {row["queue_id"]: row for row in read_queues(lake, topic)}
    if choice.queue_id is not None and choice.queue_id not in queues:
        raise OperatorError(
            f"topic {topic} has no queue {choice.queue_id}: it has {len(queues)}, 0 to "
            f"{len(queues) - 1}"
        )

    minimum = choice.from_offset or 0
    ranges = {}
    for queue, row in queues.items():
        if choice.queue_id in (None, queue):
            begin = max(row["begin_offset"], minimum)
            ranges[queue] = begin, max(begin, row["end_offset"])
    return ranges


def _limit_range(begin: int, end: int, limit: int, is_tail: bool) -> tuple[int, int]:
    return (max(begin, end - limit), end) if is_tail else (begin, min(end, begin + limit))


def _read(
    lake: Lake,
    table: str,
    columns: Sequence[str],
    epoch: int,
    ranges: Ranges,
    where: pc.Expression | None = None,
    stored: tuple[dt.datetime | None, dt.datetime | None] = (None, None),
) -> pa.Table:
    """Returns the rows of committed epochs in a range of offsets of each queue.

    Input: `stored`: from and until when; files of other times are not opened.
    """
    filled = {queue: offsets for queue, offsets in ranges.items() if offsets[0] < offsets[1]}
    if not filled:
        return lake.schema(table).empty_table().select([*columns])

    windows = OffsetWindows(filled)
    begins, ends = zip(*filled.values(), strict=True)
    bounds: Bounds = {
        "epoch": (None, epoch),
        "queue_id": sorted(filled),
        "queue_offset": (min(begins), max(ends) - 1),
        "stored_at": stored,
    }

    within = windows.bounds() if where is None else windows.bounds() & where
    names = dict.fromkeys((*columns, "queue_id", "queue_offset"))
    rows = windows.select(read_rows(lake, table, [*names], bounds, within))
    return rows.select([*columns])


def _read_at(
    lake: Lake, table: str, columns: Sequence[str], epoch: int, places: Sequence[tuple[int, int]]
) -> pa.Table:
    """Returns the rows at these places."""
    bounds: Bounds = {
        "epoch": (None, epoch),
        "queue_id": sorted({queue for queue, _ in places}),
        "queue_offset": sorted({offset for _, offset in places}),
    }
    rows = read_rows(lake, table, columns, bounds)

    row_places = zip(rows["queue_id"].to_pylist(), rows["queue_offset"].to_pylist(), strict=True)
    places_to_find = set(places)
    return rows.filter(pa.array([place in places_to_find for place in row_places], pa.bool_()))


def _take(rows: pa.Table, choice: Choice) -> pa.Table:
    """Returns the first rows, or the last ones, in the order of their delivery."""
    rows = rows.sort_by(_IN_ORDER)
    begin = max(0, rows.num_rows - choice.limit) if choice.is_tail else 0
    return rows.slice(begin, choice.limit)

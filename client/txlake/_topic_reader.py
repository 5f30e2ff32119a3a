"""A real topic's table, read in queue order, from any position, ahead of the caller.

Files are chosen by the log's statistics. If a file holds several queues, these are not enough: then
two narrow columns of the file are read once and remembered. One read takes a window of offsets for
every queue from one snapshot, so a missing offset is a real gap and an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txlake._delta_files import DeltaFiles, translating_errors
from txlake._delta_log import TableFile
from txlake._message_filter import MessageFilter
from txlake._offset_windows import OffsetWindows
from txlake.errors import OffsetGapError, OffsetOutOfRangeError
from txlake.protocol import floor_id

COLUMNS = [
    "queue_id",
    "queue_offset",
    "stored_at",
    "source",
    "born_at",
    "producer_group",
    "transaction_id",
    "real_topic",
    "asked_queue_id",
    "reason",
    "keys",
    "tags",
    "properties",
    "body",
    "half_queue_id",
    "half_queue_offset",
    "raw_headers",
    "epoch",
]
# Windows are sized by file bytes: a large file from OPTIMIZE is decoded once for each window.
_READ_AHEAD_BYTES = 32 << 20  # of all queues
_WINDOW_ROWS_MIN = 1_000
_WINDOW_ROWS_MAX = 100_000
# What a filter lets through is read by ranges of offsets: more conditions take longer than rows.
_SPANS_MAX = 64
_SPAN_GAP_MAX = 16
_RUNS_MAX = 256  # the files of some epochs, each with all queues

Span = tuple[int, int]  # first and last queue offset of one queue in one file


class TopicReader:
    """The reader of one topic's table."""

    def __init__(self, topic: str, uri: str, storage_options: Mapping[str, str] | None) -> None:
        self._topic = topic
        self._files = DeltaFiles(uri, storage_options, ("queue_id", "queue_offset", "epoch"))
        self._refreshed = self._files.files  # as of the last refresh
        self._spans: dict[str, dict[int, Span]] = {}
        self._floors: dict[int, tuple[int | None, int]] = {}  # by queue: its first row, its floor

    def refresh(self) -> bool:
        """Takes the newest snapshot. Output: whether there might be new rows.

        A read takes a fresh snapshot, too, when files of its own are gone: what is new in that is
        news here.
        """
        before = self._refreshed
        with translating_errors(self._files.uri):
            is_new = self._files.refresh()
        is_new |= self._files.exists and self._files.files is not before
        self._refreshed = self._files.files

        if not before.keys() <= self._files.files.keys():
            # Messages can be deleted. Of a queue that has no others only the log tells.
            self._floors = {
                queue_id: known for queue_id, known in self._floors.items() if known[0] is not None
            }

        if is_new:
            self._spans = {
                path: spans for path, spans in self._spans.items() if path in self._files.files
            }

        return is_new

    def may_have_news(self) -> bool:
        """Returns whether a refresh might bring something, as of `DeltaFiles.may_have_news`."""
        return self._files.may_have_news()

    def read(
        self,
        positions: Mapping[int, int],
        ends: Mapping[int, int] | None = None,
        columns: Sequence[str] = COLUMNS,
        rows_max: int | None = None,
        bytes_max: int = _READ_AHEAD_BYTES,
    ) -> dict[int, pa.Table]:
        """Reads ahead from each queue's position.

        Input: `ends`: by queue, the offset before which to stop; `columns`: queue and offset among
        them; `rows_max`: of each queue; None: as many as fit into `bytes_max` of files.
        Output: for each queue with new rows, rows of contiguous offsets from its position.
        Errors: OffsetGapError, OffsetOutOfRangeError, naming the offsets; LakeError.
        """
        return self._files.retry_stale(
            lambda: self._read(positions, ends or {}, columns, rows_max, bytes_max)
        )

    def read_matching(
        self, positions: Mapping[int, int], message_filter: MessageFilter
    ) -> dict[int, tuple[pa.Table, int]]:
        """Reads ahead what a filter lets through: the rest is read without its wide columns.

        Output: for each queue with new rows, those that match, and the position after the rest.
        Errors: as of `read`.
        """
        return self._files.retry_stale(lambda: self._read_matching(positions, message_filter))

    def read_offsets(self, offsets: Mapping[int, Sequence[int]]) -> dict[int, pa.Table]:
        """Reads single messages, all in one read of the files that hold some of them.

        Input: offsets of each queue, in their order.
        Output: for each queue the rows that are there, which can be none.
        Errors: LakeError.
        """
        if not self._files.exists:
            return {}
        return self._files.retry_stale(lambda: self._read_offsets(offsets))

    def offsets_from_epoch(self, queue_ids: Iterable[int], epoch: int) -> dict[int, int]:
        """Returns the first offset of each queue that an epoch or a later one has delivered.

        Output: the queue's end if there is none.
        """

        def read() -> dict[int, int]:
            paths = [
                file.path
                for file in self._files.files.values()
                if file.max_values["epoch"] is None or file.max_values["epoch"] >= epoch
            ]
            if not paths:
                return {}

            rows = self._files.dataset(paths).to_table(
                ["queue_id", "queue_offset"], filter=pc.field("epoch") >= epoch
            )
            first = rows.group_by("queue_id").aggregate([("queue_offset", "min")])
            return dict(
                zip(
                    first["queue_id"].to_pylist(),
                    first["queue_offset_min"].to_pylist(),
                    strict=True,
                )
            )

        offsets = self._files.retry_stale(read)
        ends = self.ends(list(queue_ids))
        return {queue_id: offsets.get(queue_id, end) for queue_id, end in ends.items()}

    def _read_matching(
        self, positions: Mapping[int, int], message_filter: MessageFilter
    ) -> dict[int, tuple[pa.Table, int]]:
        narrow = self._read(
            positions,
            {},
            ["queue_id", "queue_offset", *message_filter.columns],
            None,
            _READ_AHEAD_BYTES,
        )

        matched = {
            queue_id: rows["queue_offset"].filter(message_filter.mask(rows)).to_pylist()
            for queue_id, rows in narrow.items()
        }
        wide = self._read_offsets(matched)
        return {
            queue_id: (wide[queue_id], positions[queue_id] + rows.num_rows)
            for queue_id, rows in narrow.items()
        }

    def _read_offsets(self, offsets: Mapping[int, Sequence[int]]) -> dict[int, pa.Table]:
        """Returns the rows of some offsets of each queue, in their order."""
        spans = {queue_id: _spans_of(each) for queue_id, each in offsets.items()}
        empty = self._files.dataset([]).schema.empty_table().select(COLUMNS)
        result = dict.fromkeys(offsets, empty)
        if not any(spans.values()):
            return result

        paths = [
            file.path
            for file in self._files.files.values()
            if any(
                self._span(file, queue_id, first, last + 1)
                for queue_id, each in spans.items()
                for first, last in each
            )
        ]
        all_offsets = itertools.chain.from_iterable(offsets.values())
        is_near = pc.field("queue_id").isin(pa.array(list(offsets), pa.int32())) & (
            pc.field("queue_offset").isin(pa.array(sorted(set(all_offsets)), pa.int64()))
        )
        rows = self._files.dataset(paths).to_table(columns=list(COLUMNS), filter=is_near)

        for queue_id, read in _split_by_queue(_in_order(rows)).items():
            wanted = pa.array(offsets[queue_id], pa.int64())
            result[queue_id] = read.filter(pc.is_in(read["queue_offset"], wanted))
        return result

    def ends(self, queue_ids: range | list[int]) -> dict[int, int]:
        """Returns each queue's end: the offset of the message that comes next."""
        return self._files.retry_stale(lambda: {q: self._last(q) + 1 for q in queue_ids})

    def begins(self, queue_ids: Iterable[int]) -> dict[int, int]:
        """Returns where each queue begins: older messages are deleted."""
        return self._files.retry_stale(lambda: {q: self._begin(q) for q in queue_ids})

    def _begin(self, queue_id: int) -> int:
        first = self._first(queue_id)
        if first == 0:
            return 0

        if queue_id not in self._floors or self._floors[queue_id][0] != first:
            self._floors[queue_id] = first, self._floor(queue_id)
        return self._floors[queue_id][1]

    def _floor(self, queue_id: int) -> int:
        """Returns the offset below which a queue's messages are deleted, by the log.

        For each call delta-rs reads all entries of the log since its checkpoint.
        """
        if not self._files.exists:
            return 0
        return int(self._files.table.transaction_version(floor_id(queue_id)) or 0)

    def _read(
        self,
        positions: Mapping[int, int],
        ends: Mapping[int, int],
        columns: Sequence[str],
        rows_max: int | None,
        bytes_max: int,
    ) -> dict[int, pa.Table]:
        files = self._files_for(positions, ends)
        if not files:
            return {}

        window = rows_max or _window_rows(files, len(positions), bytes_max)
        untils = {
            queue_id: int(min(position + window, ends.get(queue_id, math.inf)))
            for queue_id, position in positions.items()
        }
        if rows_max is None:
            untils = self._at_file_ends(files, positions, untils)

        paths = [file.path for file in self._files_for(positions, untils)]
        windows = OffsetWindows(
            {queue_id: (position, untils[queue_id]) for queue_id, position in positions.items()}
        )
        rows = windows.read(self._files.dataset(paths), columns)

        by_queue = _split_by_queue(_in_order(rows))
        for queue_id, position in positions.items():
            self._check_contiguous(queue_id, position, untils[queue_id], by_queue.get(queue_id))
        return by_queue

    def _at_file_ends(
        self, files: list[TableFile], positions: Mapping[int, int], untils: Mapping[int, int]
    ) -> dict[int, int]:
        """Returns where a read ends that decodes no file in part, if it reaches the end of one."""
        at_ends = {}
        for queue_id, position in positions.items():
            until = untils[queue_id]
            ends = [
                last + 1
                for file in files
                for _, last in self._span(file, queue_id, position, until)
                if last < until
            ]
            at_ends[queue_id] = max(ends, default=until)

        return at_ends

    def _check_contiguous(
        self, queue_id: int, position: int, until: int, rows: pa.Table | None
    ) -> None:
        """Checks that rows have all offsets from a position; fewer only at the queue's end.

        Errors: OffsetGapError, OffsetOutOfRangeError.
        """
        count = 0
        if rows is not None:
            count = rows.num_rows
            offsets = rows.column("queue_offset").to_numpy()
            wrong = (offsets != np.arange(position, position + count)).nonzero()[0]
            if len(wrong):
                index = int(wrong[0])
                self._fail(queue_id, position + index, int(offsets[index]))

        if count < until - position:
            later = [
                max(first, position + count)
                for file in self._files.files.values()
                for first, _ in self._span(file, queue_id, position + count)
            ]
            if later:
                self._fail(queue_id, position + count, min(later))

    def _fail(self, queue_id: int, expected: int, actual: int) -> None:
        """Raises the error of a missing or repeated offset."""
        floor = self._floor(queue_id)
        if expected < floor:
            raise OffsetOutOfRangeError(
                f"topic {self._topic} queue {queue_id}: position {expected}, and the queue begins "
                f"at {floor}: older messages are deleted; seek to it, or say `out_of_range_reset`"
            )

        raise OffsetGapError(
            f"topic {self._topic} queue {queue_id}: offset {expected} was expected, {actual} was "
            "found: rows are missing or stand twice; run `txlake verify`"
        )

    def _files_for(
        self, positions: Mapping[int, int], untils: Mapping[int, int]
    ) -> list[TableFile]:
        """Returns the files that hold a row of any queue, from its position to its `until`."""
        return [
            file
            for file in self._files.files.values()
            if any(
                self._span(file, queue_id, position, untils.get(queue_id, math.inf))
                for queue_id, position in positions.items()
            )
        ]

    def _span(
        self, file: TableFile, queue_id: int, from_offset: int, to_offset: float = math.inf
    ) -> list[Span]:
        """Returns the first and last offset of a queue in a file, in a list of one.

        The list is empty if the queue has no row there from `from_offset` to below `to_offset`. A
        file is opened if its statistics leave that open.
        """
        if _is_outside(file, queue_id, from_offset, to_offset):
            return []

        if file.path not in self._spans:
            self._spans[file.path] = self._read_spans(file)

        span = self._spans[file.path].get(queue_id)
        if span is None or span[1] < from_offset or span[0] >= to_offset:
            return []
        return [span]

    def _read_spans(self, file: TableFile) -> dict[int, Span]:
        """Returns the first and last offset of each queue in a file."""
        minimum, maximum = file.min_values, file.max_values
        is_known = None not in (*minimum.values(), *maximum.values())
        if is_known and minimum["queue_id"] == maximum["queue_id"]:
            return {minimum["queue_id"]: (minimum["queue_offset"], maximum["queue_offset"])}

        spans = (
            self._files.dataset([file.path])
            .to_table(columns=["queue_id", "queue_offset"])
            .group_by("queue_id")
            .aggregate([("queue_offset", "min"), ("queue_offset", "max")])
        )
        return {
            row["queue_id"]: (row["queue_offset_min"], row["queue_offset_max"])
            for row in spans.to_pylist()
        }

    def _last(self, queue_id: int) -> int:
        """Returns the last offset of a queue; without rows the one before its beginning."""
        latest_first = sorted(
            self._files.files.values(), key=lambda file: -(file.max_values["queue_offset"] or 0)
        )

        best = -1
        for file in latest_first:
            best = max([best, *(last for _, last in self._span(file, queue_id, best + 1))])

        return best if best >= 0 else self._begin(queue_id) - 1

    def _first(self, queue_id: int) -> int | None:
        """Returns the first offset that a queue still has; None if it has no rows."""
        earliest_first = sorted(
            self._files.files.values(), key=lambda file: file.min_values["queue_offset"] or 0
        )

        best: int | None = None
        for file in earliest_first:
            for first, _ in self._span(file, queue_id, 0, math.inf if best is None else best):
                best = first

        return best


def _spans_of(offsets: Sequence[int]) -> list[Span]:
    """Returns ranges that hold offsets, few of them. Input: offsets in their order."""
    spans: list[Span] = []
    for offset in offsets:
        if spans and offset - spans[-1][1] <= _SPAN_GAP_MAX:
            spans[-1] = spans[-1][0], offset
        else:
            spans.append((offset, offset))

    if len(spans) > _SPANS_MAX:
        return [(spans[0][0], spans[-1][1])]
    return spans


def _is_outside(file: TableFile, queue_id: int, from_offset: int, to_offset: float) -> bool:
    """Returns whether a file, by its statistics, has no row of a queue in a range of offsets."""
    minimum, maximum = file.min_values, file.max_values

    if maximum["queue_offset"] is not None and maximum["queue_offset"] < from_offset:
        return True
    if minimum["queue_offset"] is not None and minimum["queue_offset"] >= to_offset:
        return True
    if maximum["queue_id"] is None:
        return False
    return not minimum["queue_id"] <= queue_id <= maximum["queue_id"]


def _split_by_queue(rows: pa.Table) -> dict[int, pa.Table]:
    """Returns the rows of each queue. Input: rows in the order of queues."""
    by_queue: dict[int, pa.Table] = {}
    start = 0

    counts = pc.value_counts(rows.column("queue_id")).to_pylist()
    for entry in sorted(counts, key=itemgetter("values")):
        by_queue[entry["values"]] = rows.slice(start, entry["counts"])
        start += entry["counts"]

    return by_queue


def _window_rows(files: list[TableFile], queues: int, bytes_max: int = _READ_AHEAD_BYTES) -> int:
    size = queues * sum(file.size_bytes for file in files)
    rows = max(sum(file.row_count or 0 for file in files), 1)
    return max(_WINDOW_ROWS_MIN, min(_WINDOW_ROWS_MAX, bytes_max * rows // max(size, 1)))


def _in_order(rows: pa.Table) -> pa.Table:
    """Returns rows in the order of queues and offsets; runs in order are not copied."""
    keys = [("queue_id", "ascending"), ("queue_offset", "ascending")]
    order = pc.sort_indices(rows, sort_keys=keys).to_numpy().astype("int64")
    if not len(order):
        return rows

    starts = [0, *((order[1:] != order[:-1] + 1).nonzero()[0] + 1).tolist(), len(order)]
    if len(starts) > _RUNS_MAX:
        return rows.take(pa.array(order))

    runs = itertools.pairwise(starts)
    return pa.concat_tables([rows.slice(order[start], end - start) for start, end in runs])

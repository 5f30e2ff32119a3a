"""Which files of a table to put together next. Pure: from files and limits to files.

Every append makes a file, so a table's files are small and many. They are merged in levels, as a
log-structured tree does: `merge_files` files of one level become one of the next, and a row is
written once a level. A file that is large enough stays as it is. Files are merged in the order of
their epochs, so that a merged file covers a narrow range of epochs and offsets.

Files are deleted whole when all their rows are old. So rows of different spans of time are never
merged: a span is a part of the retention. When a span has passed, all its small files become one.
A file that is old and still there has a pinned row. It is never merged again: the rows that it is
merged with would stay as long.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

_NAME = re.compile(r"(?:.*/)?merged-(?P<level>[0-9]+)-")
_CLOSED = "closed-"
# A lake that was never merged has thousands of files: many at a time make few commits. Opening a
# file takes about a ms.
_FILES_AT_ONCE = 256
# A file of at least this part of the largest size stays as it is. While the stream is busy, so does
# one of at least the second part, until there is time.
_LARGE_ENOUGH = 4
_LARGE_ENOUGH_WHILE_BUSY = 16


@dataclass(frozen=True)
class TableFile:
    """One file of a table: how large, of which epochs, and of when.

    `last_epoch`, and `last_ms` of `stored_at`: None if not known.
    """

    path: str
    size_bytes: int
    row_count: int
    first_epoch: int
    last_epoch: int | None = None
    last_ms: int | None = None

    @property
    def level(self) -> int:
        """Returns how often the rows in it were merged."""
        name = _NAME.match(self.path)
        return int(name["level"]) if name else 0


@dataclass(frozen=True)
class MergeLimits:
    """When to merge: at `merge_files` files of a level, into one of at most `file_bytes_max`.

    `span_of`: from a file to the number of its span of time; `expired_epoch`: a file is old if all
    its rows are of epochs up to that one.
    """

    merge_files: int
    file_bytes_max: int
    span_of: Callable[[TableFile], int] = lambda _: 0
    expired_epoch: int = 0

    def can_merge(self, file: TableFile, *, is_busy: bool = False) -> bool:
        """Returns whether a file can be merged into a larger one."""
        if file.last_epoch is not None and file.last_epoch <= self.expired_epoch:
            return False

        part = _LARGE_ENOUGH_WHILE_BUSY if is_busy else _LARGE_ENOUGH
        is_small = file.size_bytes * part < self.file_bytes_max
        return is_small and not file.path.rpartition("/")[2].startswith(_CLOSED)


def merged_name(files: Sequence[TableFile], is_final: bool) -> str:
    """Returns a name for a new file that tells its level; a final one is never merged again."""
    level = 1 + max(file.level for file in files)
    return f"{_CLOSED if is_final else ''}merged-{level}-{uuid.uuid4().hex}.parquet"


def next_merge(
    files: Sequence[TableFile],
    limits: MergeLimits,
    *,
    is_full: bool = False,
    is_busy: bool = False,
    skipped: Collection[str] = (),
) -> tuple[TableFile, ...]:
    """Returns the files to merge next, if any.

    Input: `is_full`: all small files count as one level, and two are enough; `is_busy`: only very
    small ones are chosen; `skipped`: paths of files that are not chosen.
    """
    small = [
        file
        for file in files
        if limits.can_merge(file, is_busy=is_busy) and file.path not in skipped
    ]
    small.sort(key=lambda file: (file.first_epoch, file.path))

    spans = {file.path: limits.span_of(file) for file in files}
    newest = max(spans.values(), default=0)

    for span in sorted({spans[file.path] for file in small}):
        of_span = [file for file in small if spans[file.path] == span]
        is_one_level = is_full or span < newest

        for level in [of_span] if is_one_level else list(_by_level(of_span)):
            chosen = _fitting(level, limits.file_bytes_max)
            files_min = 2 if is_one_level or len(chosen) < len(level) else limits.merge_files
            if len(chosen) >= files_min:
                return tuple(chosen)

    return ()


def all_merges(files: Sequence[TableFile], limits: MergeLimits) -> Iterator[Sequence[TableFile]]:
    """Returns the files of every merge of a full round."""
    remaining = list(files)

    while chosen := next_merge(remaining, limits, is_full=True):
        yield chosen

        size = sum(file.size_bytes for file in chosen)
        rows = sum(file.row_count for file in chosen)
        merged = TableFile(
            merged_name(chosen, False),
            size,
            rows,
            chosen[0].first_epoch,
            _latest(file.last_epoch for file in chosen),
            _latest(file.last_ms for file in chosen),
        )

        paths = {file.path for file in chosen}
        remaining = [*(file for file in remaining if file.path not in paths), merged]


def _latest(values: Iterable[int | None]) -> int | None:
    """Returns the largest value; None if one is not known."""
    known = list(values)
    return None if None in known else max(value for value in known if value is not None)


def _by_level(files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    for level in sorted({file.level for file in files}):
        yield [file for file in files if file.level == level]


def _fitting(files: Sequence[TableFile], bytes_max: int) -> list[TableFile]:
    """Returns the oldest files that fit together into `bytes_max`."""
    sizes = itertools.accumulate(file.size_bytes for file in files[:_FILES_AT_ONCE])
    return [file for file, size in zip(files, sizes, strict=False) if size <= bytes_max]

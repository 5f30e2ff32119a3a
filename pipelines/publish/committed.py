"""The committed content of a lake: its newest committed epoch, the ends of its queues, its rows.

Only rows of epochs up to the newest committed one are given out. The epochs tell whether all of
them are there: each committed row names the queues that grew, with their next offsets.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.publish.errors import PublishError
from pipelines.publish.progress import TopicProgress
from pipelines.publish.reading import PublishedRecord
from pipelines.publish.records import COLUMNS as RECORD_COLUMNS
from txlake._committed import NAMED_EPOCHS_MAX, since_full_row
from txlake._delta_files import DeltaFiles, translating_errors
from txlake._lake import Lake, Topic
from txlake._topic_reader import TopicReader
from txlake.errors import LakeError, OffsetGapError, OffsetOutOfRangeError

Queue = tuple[str, int]
AHEAD_BYTES: Final = 8 << 20  # of all topics, as files have them
_COLUMNS: Final = (*RECORD_COLUMNS, "epoch")


class CommittedEpochs:
    """The newest committed epoch of a lake, as of the last `refresh`.

    `epoch`, `digest`, `committed_at`: of its row; 0 and "" before the first one. `ends`: where each
    real queue ends in it.
    Errors: LakeError; StoreAwayError.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._files = DeltaFiles(lake.uri("epochs"), lake.storage_options, ("epoch",))
        self.epoch = 0
        self.digest = ""
        self.committed_at: dt.datetime | None = None
        self.ends: dict[Queue, int] = {}
        self._digests: dict[int, str | None] = {}

    def refresh(self) -> bool:
        """Reads the epochs that were committed since. Output: whether there are any."""
        with translating_errors(self._files.uri):
            is_new = self._files.refresh()
        if not self._files.exists:
            raise LakeError(f"{self._lake.path}: the table epochs is missing")
        if not is_new:
            return False

        self._digests.clear()
        rows = self._rows_since(self.epoch) if self.epoch else self._all_needed_rows()
        if not rows:
            return False

        for row in rows:
            for queue in row["next_offsets"] or ():
                self.ends[queue["topic"], queue["queue_id"]] = queue["next_offset"]

        newest = rows[-1]
        self.epoch = newest["epoch"]
        self.digest = newest["digest"] or ""
        self.committed_at = newest["written_at"]
        return True

    def may_have_news(self) -> bool:
        """Returns whether a refresh might bring something, as of `DeltaFiles.may_have_news`."""
        return self._files.may_have_news()

    def digest_of(self, epoch: int) -> str | None:
        """Returns the digest of a committed epoch's row; None if the lake no longer has it."""
        if epoch not in self._digests:
            rows = self._read(pc.field("epoch") == epoch, epoch, epoch)
            self._digests[epoch] = rows["digest"][0].as_py() if rows.num_rows else None

        return self._digests[epoch]

    def committed_after(self, epoch: int) -> dt.datetime | None:
        """Returns the time at which the first epoch after this one was committed."""
        minimum = epoch + 1
        where = (pc.field("epoch") > epoch) & (pc.field("state") == "committed")

        def read() -> dt.datetime | None:
            starts = {
                path: max(minimum, self._files.files[path].min_values["epoch"] or 0)
                for path in self._paths(minimum, None)
            }
            paths = sorted(starts, key=starts.__getitem__)
            first: dict[str, Any] | None = None
            begin = 0

            # An epoch can be planned in one file and committed in another one.
            while begin < len(paths) and (first is None or starts[paths[begin]] < first["epoch"]):
                end = 2 * begin + 1
                rows = self._files.dataset(paths[begin:end]).to_table(
                    ["epoch", "written_at"], filter=where
                )
                firsts = [] if first is None else [first]
                firsts += rows.sort_by("epoch").slice(0, 1).to_pylist()
                first = min(firsts, key=itemgetter("epoch"), default=None)
                begin = end

            return None if first is None else first["written_at"]

        return self._files.retry_stale(read)

    def _all_needed_rows(self) -> list[dict[str, Any]]:
        """Returns the newest committed rows, back to one that names all queues, or all rows."""
        newest = max(
            (file.max_values["epoch"] or 0 for file in self._files.files.values()), default=0
        )
        since = newest - NAMED_EPOCHS_MAX
        rows = since_full_row(self._read(pc.field("epoch") >= since, since, None))
        return self._rows_since(0) if rows is None else rows.to_pylist()

    def _rows_since(self, epoch: int) -> list[dict[str, Any]]:
        rows = self._read(pc.field("epoch") > epoch, epoch + 1, None)
        return rows.to_pylist()  # type: ignore[no-any-return]

    def _read(self, where: pc.Expression, minimum: int, maximum: int | None) -> pa.Table:
        """Returns committed rows, the oldest first; opens only the files that can hold some."""

        def read() -> pa.Table:
            paths = self._paths(minimum, maximum)
            columns = ["epoch", "next_offsets", "counts", "digest", "written_at"]
            committed = where & (pc.field("state") == "committed")
            rows = self._files.dataset(paths).to_table(columns, filter=committed)
            return rows.sort_by("epoch")

        return self._files.retry_stale(read)

    def _paths(self, minimum: int, maximum: int | None) -> list[str]:
        """Returns the files that can hold rows of epochs from `minimum` to `maximum`."""
        return [
            path
            for path, file in self._files.files.items()
            if (file.max_values["epoch"] is None or file.max_values["epoch"] >= minimum)
            and (
                maximum is None
                or file.min_values["epoch"] is None
                or file.min_values["epoch"] <= maximum
            )
        ]


class CommittedRows:
    """The rows of one topic, each queue's from its position on, read ahead.

    `bytes_max`: the bytes of files that it reads ahead for all queues; set by the caller.
    Errors: LakeError; OffsetOutOfRangeError where a queue's next message is deleted.
    """

    def __init__(self, lake: Lake, name: str, topic: Topic) -> None:
        uri = lake.uri(f"topics/{topic.table_id}")
        self._name = name
        self._reader = TopicReader(name, uri, lake.storage_options)
        self._files = DeltaFiles(uri, lake.storage_options)
        self._ahead: dict[int, pa.Table] = {}
        self.positions: dict[int, int] = {}
        self.bytes_max = AHEAD_BYTES

    def seek(self, queue_id: int, position: int) -> None:
        """Sets the next queue offset of a queue."""
        self.positions[queue_id] = position
        self._ahead.pop(queue_id, None)

    def begins(self, queue_ids: Iterable[int]) -> dict[int, int]:
        """Returns where each queue begins: older messages are deleted."""
        self._reader.refresh()
        return self._reader.begins(queue_ids)

    def first_since(self, at: dt.datetime) -> dict[int, int]:
        """Returns each queue's first offset delivered at an instant or later, if it has one."""
        with translating_errors(self._files.uri):
            self._files.refresh()
        if not self._files.files:  # the epoch that makes the topic has not made its table yet
            return {}

        def read() -> dict[int, int]:
            minima = (
                self._files.dataset(self._files.files)
                .to_table(["queue_id", "queue_offset"], filter=pc.field("stored_at") >= at)
                .group_by("queue_id")
                .aggregate([("queue_offset", "min")])
            )
            return {row["queue_id"]: row["queue_offset_min"] for row in minima.to_pylist()}

        return self._files.retry_stale(read)

    def row_bytes(self) -> float:
        """Returns the mean size of the rows that were read ahead; 0 if none was."""
        rows = sum(table.num_rows for table in self._ahead.values())
        return sum(table.nbytes for table in self._ahead.values()) / rows if rows else 0.0

    def read_ahead(self, ends: Mapping[int, int]) -> None:
        """Reads ahead for the queues that have nothing read, as much as fits into memory.

        Input: where each queue ends.
        """
        positions = {
            queue_id: self.positions[queue_id]
            for queue_id, end in ends.items()
            if queue_id not in self._ahead and self.positions[queue_id] < end
        }
        if positions:
            self._reader.refresh()
            with _gaps_as_lake_errors():
                self._ahead.update(
                    self._reader.read(positions, ends, _COLUMNS, bytes_max=self.bytes_max)
                )

    def peek(
        self, ends: Mapping[int, int], rows_max: int, columns: Sequence[str]
    ) -> dict[int, pa.Table]:
        """Returns some columns of the queues' next rows; the positions stay.

        Input: where each queue ends; the number of rows of each queue.
        Output: by queue; one that has no rows from its position on is left out.
        """
        positions = {
            queue_id: self.positions[queue_id]
            for queue_id, end in ends.items()
            if self.positions[queue_id] < end
        }

        self._reader.refresh()
        with _gaps_as_lake_errors():
            return self._reader.read(
                positions, ends, ("queue_id", "queue_offset", *columns), rows_max
            )

    def take(self, until: Mapping[int, int]) -> Iterator[tuple[int, pa.Table]]:
        """Takes the rows up to an offset of each queue, and moves the positions there.

        Output: queues with pieces of their rows, each queue's in order.
        """
        while True:
            remaining = {q: end for q, end in until.items() if self.positions[q] < end}
            if not remaining:
                return
            self.read_ahead(remaining)

            for queue_id, end in remaining.items():
                rows = self._ahead.pop(queue_id, None)
                if rows is None or not rows.num_rows:
                    raise self.lacking_error(queue_id, end)

                count = min(rows.num_rows, end - self.positions[queue_id])
                self.positions[queue_id] += count
                if count < rows.num_rows:
                    self._ahead[queue_id] = rows.slice(count)
                yield queue_id, rows.slice(0, count)

    def lacking_error(self, queue_id: int, end: int) -> LakeError | OffsetOutOfRangeError:
        """Returns the error of a queue that has no rows from its position to its end.

        A read tells that they are deleted only where there are later ones.
        """
        where = f"topic {self._name} queue {queue_id}"
        position = self.positions[queue_id]
        begin = self.begins([queue_id])[queue_id]
        if position < begin:
            return OffsetOutOfRangeError(
                f"{where}: position {position}, and the queue begins at {begin}: older messages "
                "are deleted"
            )

        return LakeError(
            f"{where}: offsets up to {end} are committed, and the table ends at {position}: rows "
            "are missing; run `txlake verify`"
        )

    def place_and_body(self, queue_id: int, queue_offset: int) -> tuple[str, bytes | None] | None:
        """Returns the place and the body of a committed message; None if it is deleted."""
        if queue_offset < self.begins([queue_id])[queue_id]:
            return None

        self.seek(queue_id, queue_offset)
        try:
            ((_, row),) = self.take({queue_id: queue_offset + 1})
        except OffsetOutOfRangeError:  # retention has deleted it meanwhile
            return None
        place = f"{row['source'][0]}:{row['half_queue_id'][0]}-{row['half_queue_offset'][0]}"
        return place, row["body"][0].as_py()


@contextmanager
def _gaps_as_lake_errors() -> Iterator[None]:
    """Turns a gap in a queue into a LakeError: to a publisher it is the lake that is broken."""
    try:
        yield
    except OffsetGapError as error:
        raise LakeError(str(error)) from error


def open_lake(path: str, storage_options: Mapping[str, str]) -> Lake:
    """Returns a lake for reading. Errors: LakeError; StoreAwayError."""
    return Lake(path, storage_options)


def require_epochs(epochs: CommittedEpochs, path: str, *, epoch: int, digest: str) -> None:
    """Checks that a lake has the very epoch up to which a publisher has published.

    Errors: PublishError.
    """
    if epoch > epochs.epoch:
        raise PublishError(
            f"the newest committed epoch of the lake {path} is {epochs.epoch}, and epoch {epoch} "
            "is published: the lake was put back from an older copy"
        )

    found_digest = epochs.digest_of(epoch) if epoch else ""
    if found_digest is not None and found_digest != digest:
        raise PublishError(
            f"epoch {epoch} of the lake {path} has digest {found_digest or '(none)'}, and {digest} "
            "is published: the lake has another history"
        )


def require_same_messages(
    epochs: CommittedEpochs,
    rows: CommittedRows,
    progress: TopicProgress,
    last: Mapping[int, PublishedRecord],
) -> None:
    """Compares the last record of each partition with the lake, where its epoch tells nothing.

    The row of an epoch is deleted when it is old, and then `require_epochs` has no digest. So is a
    message: of a queue without it nothing can be said. After an adoption the last record can be
    one of another history.
    Input: the rows of the topic; its last records, by queue, as `require_same_end` takes them.
    Errors: PublishError.
    """
    if progress.follows or not progress.epoch or epochs.digest_of(progress.epoch) is not None:
        return

    for queue_id, record in sorted(last.items()):
        end = epochs.ends.get((progress.topic, queue_id), 0)
        message = (
            rows.place_and_body(queue_id, record.queue_offset)
            if record.queue_offset < end
            else ("nothing", None)
        )
        if message not in (None, (record.place, record.value)):
            raise PublishError(
                f"the last record of {progress.destination} partition {queue_id}, queue offset "
                f"{record.queue_offset}, is message {record.place}, and the lake has another one "
                "there: it has another history; `txlake publish adopt` says how it goes on"
            )

"""Deliver messages: read them where they were landed, write them where they go.

    deliver(a slice of placements) -> files of topic tables, each with what a commit says of it

The same function runs in a Spark task and in the driver. It streams: memory holds the bodies that
are being read and those that wait to fill a row group of their table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from storage import schemas
from storage.errors import LakeError
from storage.files.location import LakeLocation
from storage.files.messages import Tables, read_messages
from storage.files.row_groups import Bounds, FooterCache
from storage.rows import instant, to_rows
from storage.tasks.file_buffer import FileBuffer, Files, merge_files
from storage.wire.record_kinds import SCHEDULE

# Bytes of Arrow that become files, one of each table.
FILE_BYTES = 32 * 1024 * 1024
# Columns of PLACEMENTS that become part of a topic's rows, or name the topic.
_OF_PLACEMENTS = ("topic", "real_queue_id", "real_queue_offset", "source", "queue_id",
                  "queue_offset", "asked_queue_id", "reason")  # fmt: skip
_FEW_TEXTS = ("topic", "source", "reason")  # the same few come again and again


@dataclass(frozen=True)
class Delivery:
    """What delivering a slice needs; Spark sends it to where the task runs.

    `placements`: PLACEMENTS of the decision; `tables`: of each topic; `due`: when the first and the
    last of the delayed messages were due. Units: ms.
    """

    place: LakeLocation
    epoch: int
    epoch_at: int
    placements: pa.Table
    tables: Mapping[str, str]
    due: Bounds | None = None


@dataclass(frozen=True)
class LandedFiles:
    """Tables of which only some files are read: those that can hold a wanted message."""

    place: LakeLocation
    paths: Mapping[str, list[str]] = field(default_factory=dict)

    def dataset(self, table: str) -> ds.Dataset:
        """Returns a table as an Arrow dataset."""
        filesystem = self.place.reading(table)
        # It holds whole files: a store asks for that, each read is a request.
        parquet = ds.ParquetFileFormat(pre_buffer=not self.place.is_local)
        fragments = [parquet.make_fragment(path, filesystem) for path in self.paths[table]]
        return ds.FileSystemDataset(fragments, schemas.HALF, parquet, filesystem)


def deliver(delivery: Delivery, landed: Tables, opened: FooterCache | None = None) -> Files:
    """Writes messages into new files of their topics' tables.

    Input: `landed`: the tables to read from. Replay: writes other files with the same rows.
    Errors: LakeError when a message is not there.
    """
    waiting, written = FileBuffer(delivery.place, delivery.epoch), []
    for source in pc.unique(delivery.placements["source"]).to_pylist():
        placements = delivery.placements.filter(pc.equal(delivery.placements["source"], source))
        places, found = PlacementIndex(placements), 0
        for batch in read_messages(
            landed, source, placements.select(["queue_id", "queue_offset"]), schemas.HALF.names,
            due=delivery.due if source == SCHEDULE else None, footers=opened,
        ):  # fmt: skip
            found += batch.num_rows
            messages = pa.Table.from_batches([batch])
            goes_to = places.of(messages)
            rows = topic_rows(messages, goes_to, delivery.epoch, delivery.epoch_at)
            for topic, of_topic in by_topic(rows, goes_to["topic"]):
                waiting.add(delivery.tables[topic], of_topic)
            waiting.bytes += messages.nbytes
            if waiting.bytes >= FILE_BYTES:
                written.append(waiting.write())
        if found < placements.num_rows:
            lacking = placements.num_rows - found
            raise missing_messages(delivery.epoch, source, placements.num_rows, lacking)
    return merge_files([*written, waiting.write()])


def missing_messages(epoch: int, source: str, wanted: int, lacking: int) -> LakeError:
    """Returns the error of an epoch that delivers messages that were not landed."""
    return LakeError(
        f"epoch {epoch} delivers {wanted} messages that `{source}` has, but {lacking} of them are "
        "not there: run `txlake verify`"
    )


class PlacementIndex:
    """The placements of one source's messages, found by where these were landed."""

    def __init__(self, placements: pa.Table) -> None:
        self._numbers = schemas.row_keys(placements)
        columns = {name: placements[name] for name in _OF_PLACEMENTS}
        columns |= {name: placements[name].dictionary_encode() for name in _FEW_TEXTS}
        self._placements = pa.table(columns).combine_chunks()
        if (self._numbers[1:] < self._numbers[:-1]).any():
            order = np.argsort(self._numbers, kind="stable")
            self._numbers = self._numbers[order]
            self._placements = self._placements.take(pa.array(order))

    def of(self, messages: pa.Table) -> pa.Table:
        """Returns the placement of each message, in the same order. Each has one.

        Output: columns of PLACEMENTS that `topic_rows` and `by_topic` need.
        """
        at = np.searchsorted(self._numbers, schemas.row_keys(messages))
        return self._placements.take(pa.array(at))


def by_topic(rows: pa.Table, topics: pa.ChunkedArray) -> Iterator[tuple[str, pa.Table]]:
    """Returns rows topic by topic; those of a topic stay in their order.

    Input: `topics`: of each row, dictionary-encoded.
    """
    codes = topics.combine_chunks()
    names = codes.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    numbers = codes.indices.to_numpy()
    rows = rows.take(pa.array(np.argsort(numbers, kind="stable")))
    start = 0
    for name, count in zip(names, np.bincount(numbers, minlength=len(names)), strict=True):
        if count:
            yield name, rows.slice(start, int(count))
            start += int(count)


def topic_rows(messages: pa.Table, places: pa.Table, epoch: int, epoch_at: int) -> pa.Table:
    """Returns messages as rows of their topics' tables.

    Input: columns of HALF; the placement of each message. Output: TOPIC.
    """
    renamed = {
        "queue_id": places["real_queue_id"],
        "queue_offset": places["real_queue_offset"],
        "source": places["source"],
        "asked_queue_id": places["asked_queue_id"],
        "reason": places["reason"],
        "half_queue_id": places["queue_id"],
        "half_queue_offset": places["queue_offset"],
    }
    kept = [name for name in schemas.TOPIC.names if name in messages.column_names]
    frame = pa.table({**{name: messages[name] for name in kept}, **renamed})
    return to_rows(frame, schemas.TOPIC, stored_at=instant(epoch_at), epoch=epoch)

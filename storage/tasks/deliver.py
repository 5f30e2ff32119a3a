"""Deliver messages: read them from the tables that landed them, write them into their topics'.

    deliver(a slice of placements) -> files of topic tables, each with its entry for a commit

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
from txlake._counted import counted

# Bytes of Arrow that become files, one of each table.
FILE_BYTES = 32 * 1024 * 1024
# Columns of PLACEMENTS that become part of a topic's rows, or name the topic.
_OF_PLACEMENTS = (
    "topic",
    "real_queue_id",
    "real_queue_offset",
    "source",
    "queue_id",
    "queue_offset",
    "asked_queue_id",
    "reason",
)
_FEW_TEXTS = ("topic", "source", "reason")  # the same few come again and again


@dataclass(frozen=True)
class Delivery:
    """The delivery of a slice of an epoch's messages; Spark sends it to the worker.

    `placements`: PLACEMENTS of the decision; `tables`: the table of each topic; `due`: when the
    first and the last of the delayed messages were due. Units: ms.
    """

    location: LakeLocation
    epoch: int
    epoch_at: int
    placements: pa.Table
    tables: Mapping[str, str]
    due: Bounds | None = None


@dataclass(frozen=True)
class LandedFiles:
    """Tables of which only some files are read: those that can hold a wanted message."""

    location: LakeLocation
    paths: Mapping[str, list[str]] = field(default_factory=dict)

    def dataset(self, table: str) -> ds.Dataset:
        """Returns a table as an Arrow dataset."""
        filesystem = self.location.reading(table)
        # It reads files whole from a store, where each read is a request.
        parquet = ds.ParquetFileFormat(pre_buffer=not self.location.is_local)
        fragments = [parquet.make_fragment(path, filesystem) for path in self.paths[table]]
        return ds.FileSystemDataset(fragments, schemas.HALF, parquet, filesystem)


def deliver(delivery: Delivery, landed: Tables, opened: FooterCache | None = None) -> Files:
    """Writes messages into new files of their topics' tables.

    Input: `landed`: the tables to read from. Replay: writes other files with the same rows.
    Errors: LakeError when a message is missing.
    """
    buffer = FileBuffer(delivery.location, delivery.epoch)
    files: list[Files] = []

    for source in pc.unique(delivery.placements["source"]).to_pylist():
        placements = delivery.placements.filter(pc.equal(delivery.placements["source"], source))
        index = PlacementIndex(placements)
        batches = read_messages(
            landed,
            source,
            placements.select(["queue_id", "queue_offset"]),
            schemas.HALF.names,
            due=delivery.due if source == SCHEDULE else None,
            footers=opened,
        )

        message_count = 0
        for batch in batches:
            message_count += batch.num_rows
            messages = pa.Table.from_batches([batch])
            message_placements = index.of(messages)

            rows = topic_rows(messages, message_placements, delivery.epoch, delivery.epoch_at)
            for topic, rows_of_topic in by_topic(rows, message_placements["topic"]):
                buffer.add(delivery.tables[topic], rows_of_topic)
            buffer.bytes += messages.nbytes

            if buffer.bytes >= FILE_BYTES:
                files.append(buffer.write())

        missing = placements.num_rows - message_count
        if missing > 0:
            raise missing_messages(delivery.epoch, source, placements.num_rows, missing)

    return merge_files([*files, buffer.write()])


def missing_messages(epoch: int, source: str, wanted: int, missing: int) -> LakeError:
    """Returns the error of an epoch that delivers messages that were not landed."""
    return LakeError(
        f"epoch {epoch} delivers {counted(wanted, 'message')} of `{source}`, but {missing} could "
        "not be found there: run `txlake verify`"
    )


class PlacementIndex:
    """The placements of one source's messages, by the row key of each message where it landed."""

    def __init__(self, placements: pa.Table) -> None:
        self._keys = schemas.row_keys(placements)
        columns = {name: placements[name] for name in _OF_PLACEMENTS}
        columns |= {name: placements[name].dictionary_encode() for name in _FEW_TEXTS}
        self._placements = pa.table(columns).combine_chunks()

        if (self._keys[1:] < self._keys[:-1]).any():
            order = np.argsort(self._keys, kind="stable")
            self._keys = self._keys[order]
            self._placements = self._placements.take(pa.array(order))

    def of(self, messages: pa.Table) -> pa.Table:
        """Returns the placement of each message, in the same order. Each has one.

        Output: columns of PLACEMENTS that `topic_rows` and `by_topic` need.
        """
        at = np.searchsorted(self._keys, schemas.row_keys(messages))
        return self._placements.take(pa.array(at))


def by_topic(rows: pa.Table, topics: pa.ChunkedArray) -> Iterator[tuple[str, pa.Table]]:
    """Returns rows topic by topic; those of a topic stay in their order.

    Input: `topics`: the topic of each row, dictionary-encoded.
    """
    encoded = topics.combine_chunks()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return

    codes = encoded.indices.to_numpy()
    rows = rows.take(pa.array(np.argsort(codes, kind="stable")))

    start = 0
    for name, count in zip(names, np.bincount(codes, minlength=len(names)), strict=True):
        if count:
            yield name, rows.slice(start, int(count))
            start += int(count)


def topic_rows(messages: pa.Table, placements: pa.Table, epoch: int, epoch_at: int) -> pa.Table:
    """Returns messages as rows of their topics' tables.

    Input: columns of HALF; the placement of each message. Output: TOPIC.
    """
    columns = {
        name: messages[name] for name in schemas.TOPIC.names if name in messages.column_names
    }
    columns |= {
        "queue_id": placements["real_queue_id"],
        "queue_offset": placements["real_queue_offset"],
        "source": placements["source"],
        "asked_queue_id": placements["asked_queue_id"],
        "reason": placements["reason"],
        "half_queue_id": placements["queue_id"],
        "half_queue_offset": placements["queue_offset"],
    }
    frame = pa.table(columns)
    return to_rows(frame, schemas.TOPIC, stored_at=instant(epoch_at), epoch=epoch)

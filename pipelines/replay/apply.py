"""A replayed epoch applied: the same rows as the job's, without tasks and files of their own.

A replay reads its records from a lake or an archive. Few records are read whole, with their
messages; the messages of many are streamed from their tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import Decision
from checker.match.columns import find
from pipelines.epoch.apply import Applier
from pipelines.replay.source import HEAVY
from storage import schemas
from storage.files.messages import Tables, read_messages
from storage.lake.staged import StagedLake
from storage.rows import instant, to_rows
from storage.schemas import places
from storage.tasks.deliver import Places, not_there, topic_rows
from storage.wire.kinds import HALF, SCHEDULE

BYTES_MAX = 256 * 1024 * 1024  # memory for older messages that are delivered to one topic
_PLACE_NAMES = {
    "real_queue_id": "queue_id", "real_queue_offset": "queue_offset",
    "queue_id": "half_queue_id", "queue_offset": "half_queue_offset",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StreamingApplier(Applier):
    """The writer of an epoch into a lake whose appends wait.

    `source`: the half and schedule records with all heavy columns; `is_heavy`: the batch has its
    messages without heavy columns.
    """

    source: Tables
    is_heavy: bool = False

    def land(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Starts writing half and schedule records."""
        kinds = [kind for kind in (HALF, SCHEDULE) if self.batch.rows(kind).num_rows]
        return [pool.submit(self._land, kind) for kind in kinds]

    def _land(self, kind: str) -> None:
        rows, epoch = self.batch.rows(kind), self.plan.epoch
        if not self.is_heavy:
            self.append(kind, to_rows(rows, schemas.HALF, epoch=epoch))
            return
        named = rows.select(["queue_id", "queue_offset"])
        pieces = (to_rows(piece, schemas.HALF, epoch=epoch) for piece in self._read(kind, named))
        self._append_stream(kind, pieces)

    def _append_stream(self, table: str, pieces: Iterator[pa.Table]) -> None:
        cast(StagedLake, self.lake).append_stream(table, pieces, self.plan.epoch)

    def deliver(
        self, decision: Decision, landed: list[Future[None]], pool: ThreadPoolExecutor
    ) -> list[Future[None]]:
        """Starts writing messages, one append a topic."""
        topics = decision.state.topics
        numbers = zip(topics["topic"].to_pylist(), topics["table_id"].to_pylist(), strict=True)
        placements = decision.placements
        return [
            pool.submit(
                self._write_messages, f"topics/{number}",
                placements.filter(pc.equal(placements["topic"], topic)),
            )
            for topic, number in numbers
            if topic in set(pc.unique(placements["topic"]).to_pylist())
        ]  # fmt: skip

    def _write_messages(self, table: str, placements: pa.Table) -> None:
        messages = None if self.is_heavy else self._in_memory(placements)
        if messages is None:
            self._append_stream(table, self._streamed(placements))
        else:
            self.append(table, messages)

    def _in_memory(self, placements: pa.Table) -> pa.Table | None:
        """Returns messages in the order of their real queues; None if they are too large."""
        parts, size = [], 0
        for source in pc.unique(placements["source"]).to_pylist():
            of_source = placements.filter(pc.equal(placements["source"], source))
            here = self.batch.rows(source)
            is_new = find(places(of_source), places(here)) >= 0
            found = [to_rows(here, schemas.HALF)] if is_new.any() else []
            for batch in self._older(source, of_source.filter(pa.array(~is_new))):
                size += batch.nbytes
                if size > BYTES_MAX:
                    return None
                found.append(to_rows(pa.Table.from_batches([batch]), schemas.HALF))
            messages = pa.concat_tables([schemas.HALF.empty_table(), *found])
            at = find(places(of_source), places(messages))
            lacking = int((at < 0).sum())
            if lacking:
                raise not_there(self.plan.epoch, source, of_source.num_rows, lacking)
            when = self.plan.epoch, self.plan.epoch_at
            parts.append(topic_rows(messages.take(pa.array(at)), of_source, *when))
        rows = pa.concat_tables(parts)
        return rows.sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])

    def _older(self, source: str, named: pa.Table) -> Iterator[pa.RecordBatch]:
        if named.num_rows:
            yield from read_messages(
                self.lake, source, named, schemas.HALF.names, self.plan.epoch,
                self.due if source == SCHEDULE else None, self.lake.opened,
            )  # fmt: skip

    def _streamed(self, placements: pa.Table) -> Iterator[pa.Table]:
        """Returns messages with their real queues and offsets, piece by piece."""
        for source in pc.unique(placements["source"]).to_pylist():
            of_source = placements.filter(pc.equal(placements["source"], source))
            goes_to = Places(of_source)
            for piece in self._read(source, of_source.select(["queue_id", "queue_offset"])):
                yield topic_rows(piece, goes_to.of(piece), self.plan.epoch, self.plan.epoch_at)

    def _read(self, kind: str, named: pa.Table) -> Iterator[pa.Table]:
        there = self.source.dataset(kind).schema.names
        columns = [name for name in schemas.HALF.names if name in there]
        seen: set[int] = set()  # archives can overlap
        for batch in read_messages(self.source, kind, named, columns):
            fresh = []
            for place, key in enumerate(places(batch).tolist()):
                if key not in seen:
                    seen.add(key)
                    fresh.append(place)
            rows = pa.Table.from_batches([batch])
            yield rows if len(fresh) == rows.num_rows else rows.take(pa.array(fresh, pa.int64()))


@dataclass(frozen=True, kw_only=True)
class NarrowApplier(StreamingApplier):
    """The writer of decisions and of where messages go, without the messages."""

    def _write_messages(self, table: str, placements: pa.Table) -> None:
        names = [_PLACE_NAMES.get(name, name) for name in placements.column_names]
        frame = placements.rename_columns(names).drop_columns("topic")
        at = instant(self.plan.epoch_at)
        rows = to_rows(frame, schemas.TOPIC, stored_at=at, epoch=self.plan.epoch)
        self.append(table, rows)


def without_heavy(rows: pa.Table) -> pa.Table:
    """Returns rows with nulls in the heavy columns: bodies, properties, raw headers and keys."""
    for name in HEAVY:
        if name in rows.column_names:
            place, kind = rows.schema.get_field_index(name), rows.schema.field(name)
            rows = rows.set_column(place, kind, pa.nulls(rows.num_rows, kind.type))
    return rows

"""Apply a replayed epoch: as the job does, with streams where the job would need Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.apply import Applier
from pipelines.replay.source import HEAVY
from storage import schemas
from storage.messages import Tables, read_messages
from storage.recent import coordinates
from storage.rows import instant, to_rows
from storage.staged import StagedLake

_PLACE_NAMES = {
    "real_queue_id": "queue_id", "real_queue_offset": "queue_offset",
    "queue_id": "half_queue_id", "queue_offset": "half_queue_offset",
}  # fmt: skip


@dataclass(frozen=True)
class StreamingApplier(Applier):
    """Write an epoch whose messages are too large for the driver as streams, without Spark.

    `source`: where half and schedule records stand, with all that is heavy.
    """

    source: Tables
    lake: StagedLake

    def _land_by_spark(self, kind: str, records: Any, rows: int) -> None:
        named = self.batch.rows(kind).select(["queue_id", "queue_offset"])
        pieces = (
            to_rows(piece, schemas.HALF, epoch=self.plan.epoch) for piece in self._read(kind, named)
        )
        self.lake.append_stream(kind, pieces, self.plan.epoch)

    def _read(self, kind: str, named: pa.Table) -> Iterator[pa.Table]:
        there = self.source.dataset(kind).schema.names
        columns = [name for name in schemas.HALF.names if name in there]
        seen: set[int] = set()  # archives may overlap
        for batch in read_messages(self.source, kind, named, columns):
            fresh = []
            for place, key in enumerate(coordinates(batch).to_pylist()):
                if key not in seen:
                    seen.add(key)
                    fresh.append(place)
            rows = pa.Table.from_batches([batch])
            yield rows if len(fresh) == rows.num_rows else rows.take(pa.array(fresh, pa.int64()))

    def _by_spark(self, new: pa.Table, old: pa.Table) -> Any:
        """Give the messages in their places, piece by piece."""
        places = pa.concat_tables([new, old])
        for kind in pc.unique(places["source"]).to_pylist():
            of_kind = places.filter(pc.equal(places["source"], kind))
            for piece in self._read(kind, of_kind.select(["queue_id", "queue_offset"])):
                yield self._placed(piece, of_kind)

    def _write(self, table: str, rows: Any, count: int) -> None:
        self.lake.append_stream(table, rows, self.plan.epoch)


@dataclass(frozen=True)
class NarrowApplier(Applier):
    """Write what was decided and where messages go, without the messages."""

    def _write_messages(self, table: str, placements: pa.Table) -> None:
        names = [_PLACE_NAMES.get(name, name) for name in placements.column_names]
        frame = placements.rename_columns(names).drop_columns("topic")
        at = instant(self.plan.epoch_at)
        rows = to_rows(frame, schemas.TOPIC, stored_at=at, epoch=self.plan.epoch)
        self.append(table, rows)


def without_heavy(rows: pa.Table) -> pa.Table:
    """Give rows with nulls in the place of bodies and whatever else is heavy."""
    for name in HEAVY:
        if name in rows.column_names:
            place, kind = rows.schema.get_field_index(name), rows.schema.field(name)
            rows = rows.set_column(place, kind, pa.nulls(rows.num_rows, kind.type))
    return rows

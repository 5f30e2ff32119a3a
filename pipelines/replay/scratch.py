"""The scratch lake of a replay: it reads landed records from the lake and writes beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pipelines.replay.source import HEAVY, Source
from storage.files.messages import read_named
from storage.lake.buffered import BufferedLake
from storage.lake.table import LakeTable
from storage.rows import to_rows
from storage.wire.record_kinds import HALF, OP, SCHEDULE

_INPUT = (HALF, SCHEDULE, OP)
# The decided tables that later epochs look into, beside TRANS_UNDELIVERABLE_TOPIC.
LOOKED_UP = ("outcomes", "deliveries", "catalog")
OnStream = Callable[[str, Iterator[pa.Table], int], None]


class ScratchLake(BufferedLake):
    """A lake of decisions only: landed records are read from `source`.

    Decisions of epochs before `first_epoch` are read from `source`, too. `on_stream` takes messages
    that are streamed; a what-if, which decides on narrow rows, has none.
    """

    def __init__(
        self, path: str, source: Source, first_epoch: int, on_stream: OnStream | None = None
    ) -> None:
        super().__init__(path)
        self._source = source
        self._on_stream = on_stream
        self._first_epoch = first_epoch

    def append(self, table: str, rows: pa.Table, epoch: int | None = None) -> int:
        """Adds decided rows; landed rows are in the source, and are dropped here."""
        return 0 if table in _INPUT else super().append(table, rows, epoch)

    def dataset(self, table: str) -> ds.Dataset:
        """Returns a table as a dataset; tables of landed records are the source's."""
        return self._source.dataset(table) if table in _INPUT else super().dataset(table)

    def read(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Returns the rows that the replay decided, and those decided before it began."""
        if table in _INPUT or self._first_epoch == 1:
            return super().read(table, columns, where)
        before = pc.field("epoch") < self._first_epoch
        before = before if where is None else before & where
        names = list(columns) if columns else None

        earlier = self._source.retrying(
            table, lambda: self._source.dataset(table).to_table(columns=names, filter=before)
        )
        return pa.concat_tables([earlier, super().read(table, columns, where).cast(earlier.schema)])

    def read_named(
        self, table: str, keys: pa.Table, columns: Sequence[str], before_epoch: int
    ) -> pa.Table:
        """Returns rows by their keys: decided by the replay, and before it began."""
        if table in _INPUT or self._first_epoch == 1:
            return super().read_named(table, keys, columns, before_epoch)

        until = min(before_epoch, self._first_epoch)
        earlier = self._source.retrying(
            table, lambda: read_named(self._source, table, keys, columns, until)
        )
        decided = super().read_named(table, keys, columns, before_epoch)
        return pa.concat_tables([earlier, decided.cast(earlier.schema)])

    def append_stream(self, table: str, pieces: Iterable[pa.Table], epoch: int) -> None:
        """Hands large messages to `on_stream`, and keeps them without their bodies."""
        if table in _INPUT:
            return
        assert self._on_stream is not None, "only an applier that streams needs it"

        narrow_pieces = []

        def narrowed() -> Iterator[pa.Table]:
            for piece in pieces:
                narrow_pieces.append(_without_heavy(piece))
                yield piece

        self._on_stream(table, narrowed(), epoch)
        rows = pa.concat_tables([self.schema(table).empty_table(), *narrow_pieces])
        self.append(table, rows, epoch)

    def _open(self, table: str) -> LakeTable:
        opened = super()._open(table)
        opened.create(self.schema(table))
        return opened

    def create_table(self, table: str) -> None:
        """Does nothing: `_open` makes a table, and most are never opened."""

    def _epoch_on_disk(self, table: str) -> int:
        return 0

    def persist_lookup_tables(self, tables: Collection[str]) -> None:
        """Writes the tables that later epochs look into, without bodies, and drops the rest."""
        for table, rows in self.staged().items():
            if table in tables:
                self._write(table, _without_heavy(rows))
        self.drop_staged()


def _without_heavy(rows: pa.Table) -> pa.Table:
    """Returns rows with nulls in the heavy columns: bodies, properties, raw headers and keys."""
    light = [name for name in rows.column_names if name not in HEAVY]
    return to_rows(rows.select(light), rows.schema)

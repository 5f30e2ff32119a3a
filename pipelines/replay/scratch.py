"""The scratch lake of a replay: reads what was landed from the lake itself, writes beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from pipelines.replay.apply import without_heavy
from pipelines.replay.source import Source
from storage.errors import MissingTableError
from storage.kafka_rows import HALF, OP, SCHEDULE
from storage.staged import StagedLake

_INPUT = (HALF, SCHEDULE, OP)
# What later epochs look up of all that an epoch decides, beside TRANS_UNDELIVERABLE_TOPIC.
LOOKED_UP = ("outcomes", "deliveries", "catalog")
OnStream = Callable[[str, Iterator[pa.Table], int], None]


class ScratchLake(StagedLake):
    """A lake of decisions only: what was landed is read from `source`.

    Of epochs before `first_epoch` the decisions are those of `source` too.
    """

    def __init__(
        self, path: str, source: Source, first_epoch: int, on_stream: OnStream | None = None
    ) -> None:
        super().__init__(path)
        self._source = source
        self.on_stream = on_stream or _drain
        self._first_epoch = first_epoch

    def append(self, table: str, rows: pa.Table, epoch: int | None = None) -> int:
        """Take what was decided; what was landed is there."""
        return 0 if table in _INPUT else super().append(table, rows, epoch)

    def dataset(self, table: str) -> ds.Dataset:
        """Return a table as a dataset: of what was landed the source's."""
        return self._source.dataset(table) if table in _INPUT else super().dataset(table)

    def read(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Read what the replay decided, and what was decided before it began."""
        if table in _INPUT or self._first_epoch == 1:
            return super().read(table, columns, where)
        before = pc.field("epoch") < self._first_epoch
        before = before if where is None else before & where
        names = list(columns) if columns else None
        with self._source.lake.reading(table):
            earlier = self._source.dataset(table).to_table(columns=names, filter=before)
        return pa.concat_tables([earlier, super().read(table, columns, where).cast(earlier.schema)])

    def append_stream(self, table: str, pieces: Iterable[pa.Table], epoch: int) -> None:
        """Hand large messages to `on_stream`, and keep them without their bodies."""
        if table in _INPUT:
            return
        kept = []

        def seen() -> Iterator[pa.Table]:
            for piece in pieces:
                kept.append(without_heavy(piece))
                yield piece

        self.on_stream(table, seen(), epoch)
        self.append(table, pa.concat_tables([self.schema(table).empty_table(), *kept]), epoch)

    def handle(self, table: str) -> DeltaTable:
        """Return a table; one of a topic is made when it is looked for."""
        try:
            return super().handle(table)
        except MissingTableError:
            super().create_table(table)
            return super().handle(table)

    def create_table(self, table: str) -> None:
        """Make no table before it is needed."""

    def _held_epoch(self, table: str) -> int:
        return 0

    def keep(self, tables: Collection[str]) -> None:
        """Write what later epochs look up, without bodies, and drop the rest."""
        for table, rows in self.staged().items():
            if table in tables:
                self._write(table, without_heavy(rows))
        self.drop_staged()


def _drain(_table: str, pieces: Iterator[pa.Table], _epoch: int) -> None:
    for _ in pieces:
        pass

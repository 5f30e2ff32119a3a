"""A lake whose appends wait in memory, so that many epochs become one commit a table.

A replay knows all its epochs beforehand and can write a hundred of them at once. Rows that wait are
read as if they were written. A flush writes the tables side by side and `epochs` last. If the
process dies in between, some tables hold epochs that are not committed. The same epochs give the
same rows, so a table takes only epochs after the newest it holds; `epochs`, the last, takes all.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from storage.errors import LakeError, OwnerError
from storage.files.location import LakeLocation
from storage.lake.identity import lake_row
from storage.lake.lake import Lake, append_rows, transaction_of
from storage.lake.row_counts import RowCounts
from txlake._disk import require_room

_WRITERS = 4


class BufferedLake(Lake):
    """A lake that one replay writes; rows of an epoch come in the order of epochs."""

    def __init__(self, location: str | LakeLocation) -> None:
        super().__init__(location)

        self._versions: dict[str, int] = {}
        self.row_counts = RowCounts(  # rows that wait are counted; versions are those on disk
            lambda table: self._versions.get(table, 0), lambda table: self.table(table).rows()
        )

        self._lock = threading.RLock()
        self._staged: dict[str, list[pa.Table]] = {}
        self.staged_bytes = 0  # of rows that wait for the next flush
        self._writing: dict[str, list[pa.Table]] = {}
        self._on_disk: dict[str, ds.Dataset] = {}
        self._epochs_on_disk: dict[str, int] = {}

        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="txlake-flusher")
        self._flushing: Future[None] | None = None

    @contextmanager
    def hidden_until_done(self, now: dt.datetime) -> Iterator[None]:
        """Removes the `lake` row for the length of a block: others refuse the half-written lake.

        Makes the tables. After a block that fails the row stays removed; the next block goes on.
        """
        self.create_tables()

        rows = self.read("lake")
        if rows.num_rows:
            self.handle("lake").delete()
        else:
            rows = lake_row(self.majority_lake_id(), now)

        self._on_disk.pop("lake", None)

        yield

        self.append("lake", rows)

    def append(self, table: str, rows: pa.Table, epoch: int | None = None) -> int:
        """Lets the rows of an epoch wait for a flush, unless the table holds it already."""
        if epoch is None:
            return self.append_now(table, rows)

        self.row_counts.add(table, rows.num_rows)
        if rows.num_rows == 0 or (table != "epochs" and epoch <= self._epoch_on_disk(table)):
            return 0

        with self._lock:
            self._staged.setdefault(table, []).append(rows)
            self.staged_bytes += rows.nbytes
        return int(rows.num_rows)

    def append_now(self, table: str, rows: pa.Table) -> int:
        """Writes rows at once, also if others wait."""
        self._on_disk.pop(table, None)
        epoch = _newest_epoch([rows]) if "epoch" in rows.schema.names else None

        return int(rows.num_rows) if self._commit(table, rows, epoch) else 0

    def _epoch_on_disk(self, table: str) -> int:
        """Returns the newest epoch that the table's files hold."""
        with self._lock:
            if table not in self._epochs_on_disk:
                self._epochs_on_disk[table] = self.table(table).transaction()
            return self._epochs_on_disk[table]

    def has_epoch(self, table: str, epoch: int) -> bool:
        """Returns False: every epoch is decided again, and `append` leaves out rows on disk."""
        return False

    def dataset(self, table: str) -> ds.Dataset:
        """Returns the rows on disk and those that wait, as one Arrow dataset."""
        with self._lock:
            written = self._dataset_on_disk(table)
            waiting = [*self._writing.get(table, ()), *self._staged.get(table, ())]

        if not waiting:
            return written

        rows = ds.dataset(pa.concat_tables(waiting).cast(written.schema))
        return ds.dataset([written, rows])

    def _dataset_on_disk(self, table: str) -> ds.Dataset:
        """Returns the table's files; nobody else writes them, so the log is read once a flush."""
        if table not in self._on_disk:
            self._on_disk[table] = super().dataset(table)
        return self._on_disk[table]

    def staged(self) -> dict[str, pa.Table]:
        """Returns the rows that wait, by table."""
        with self._lock:
            return {table: pa.concat_tables(parts) for table, parts in self._staged.items()}

    def append_stream(self, table: str, pieces: Iterable[pa.Table], epoch: int) -> None:
        """Writes rows of an epoch that are too large to wait, in one commit of their own.

        Rows that wait for the same table are written first.
        Errors: those of `pieces` that are a LakeError; then nothing is committed.
        """
        if epoch <= self._epoch_on_disk(table):
            row_count = self.dataset(table).count_rows(filter=pc.field("epoch") == epoch)
            self.row_counts.add(table, row_count)
            return

        self.wait()
        with self._lock:
            waiting = self._staged.pop(table, [])
            self.staged_bytes -= sum(rows.nbytes for rows in waiting)
            self._epochs_on_disk[table] = epoch
        if waiting:
            self._write(table, pa.concat_tables(waiting))

        if self.location.is_local:
            require_room(self.table_path(table), 0)  # how many rows come is not known yet

        schema = self.schema(table)
        counts: list[int] = []
        errors: list[LakeError] = []  # delta-rs makes others of them

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for piece in pieces:
                    counts.append(piece.num_rows)
                    yield from piece.cast(schema).to_batches()
            except LakeError as error:
                errors.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, batches())

        def write(handle: DeltaTable, properties: CommitProperties) -> None:
            if counts:  # the stream is gone: a second try would write nothing
                raise OwnerError(f"another process writes the lake {self.path}; this one stops")
            try:
                append_rows(handle, table, reader, properties)
            except DeltaError:
                if errors:
                    raise errors[0] from None
                raise

        if not self.table(table).commit_once(epoch, write) and not counts:
            raise self._overtaken(table, epoch)
        self.row_counts.add(table, sum(counts))

        with self._lock:
            self._on_disk.pop(table, None)

    def begin_flush(self) -> None:
        """Writes the rows that wait, in one commit a table; `epochs` after all others.

        In the background, one flush at a time; `wait` raises its errors.
        """
        self.wait()

        with self._lock:
            for table, parts in self._staged.items():
                self._dataset_on_disk(table)  # before its rows are written, else they count twice
                self._epochs_on_disk[table] = _newest_epoch(parts)
            self._writing, self._staged = self._staged, {}
            self.staged_bytes = 0

        self._flushing = self._flusher.submit(self._write_all)

    def _write_all(self) -> None:
        rows = {table: pa.concat_tables(parts) for table, parts in self._writing.items()}
        epochs = rows.pop("epochs", None)

        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="txlake-writer") as pool:
            list(pool.map(self._write, rows, rows.values()))
        if epochs is not None:
            self._write("epochs", epochs)

        with self._lock:
            for table in self._writing:
                self._on_disk.pop(table, None)
            self._writing = {}

    def wait(self) -> None:
        """Waits for the flush in the background. Each call raises the error of one that failed.

        Several threads wait: none may write later epochs into a table that lacks earlier ones.
        """
        flushing = self._flushing
        if flushing is not None:
            flushing.result()

    def _write(self, table: str, rows: pa.Table) -> None:
        """Commits rows that waited. Errors: OwnerError if the table holds later ones."""
        epoch = _newest_epoch([rows])
        is_committed = self._commit(table, rows, epoch)

        # When a store's answer is lost, the log names these rows, though nobody saw them committed.
        transaction = transaction_of(table, rows, epoch)
        if not is_committed and self.table(table).transaction() != transaction:
            raise self._overtaken(table, epoch)

        self._versions[table] = self.table(table).version()

    def _overtaken(self, table: str, epoch: int) -> OwnerError:
        return OwnerError(
            f"{table} of the lake {self.path} holds later epochs, so rows up to epoch {epoch} were "
            "not written: another process writes the lake; this one stops"
        )

    def drop_staged(self) -> None:
        """Drops the rows that wait: those of a scratch lake that no later epoch looks into."""
        with self._lock:
            for table in self._staged:
                self._on_disk.pop(table, None)
            self._staged = {}
            self.staged_bytes = 0

    def reset(self, table: str | None = None) -> None:
        """Drops the handle of a table, or of all, so that the next use reads its log anew."""
        super().reset(table)
        with self._lock:
            self._on_disk.clear()
            self._epochs_on_disk.clear()


def _newest_epoch(parts: list[pa.Table]) -> int:
    return max(int(pc.max(rows["epoch"]).as_py()) for rows in parts)

"""Recorded epochs run again, and their rows compared with those of the lake.

State, outcomes and offsets come from the replay alone: one wrong row is one difference, whatever
followed from it in the lake.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import TableNotFoundError

from checker.frames import State
from checker.frames_ops.sql import run
from pipelines.epoch.recorded_state import FRAMES, restore
from pipelines.replay import compare
from pipelines.replay.compare import DIFFERENCES, Difference
from pipelines.replay.epochs import RecordedAsker, ReplayedEpochs
from pipelines.replay.kept_rows import KeptRows
from pipelines.replay.scratch import LOOKED_UP, ScratchLake
from pipelines.replay.source import ROW_ORDER, Chunk, ProgressCallback, Source
from storage.errors import LakeError
from storage.files.location import LakeLocation
from storage.files.messages import read_messages
from storage.files.row_groups import FooterCache
from storage.lake.aging import require_replayable
from storage.lake.epochs import COMMITTED, next_offsets_of
from storage.lake.history import Recorded
from storage.lake.integrity import require_recorded
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.lake.table import deleted_epoch
from storage.rows import to_rows
from storage.schemas import SNAPSHOT, TABLES
from storage.wire.record_kinds import KINDS

_EXTRA = "SELECT * FROM rows ANTI JOIN keys USING (queue_id, queue_offset) ORDER BY ALL"
NAMED_MAX = 1_000  # differences that are named; all are counted
_DECIDED = (
    "admin",
    "outcomes",
    "conflicts",
    "checks",
    "delayed",
    "deliveries",
    "catalog",
    "pending",
    "waiting",
)


@dataclass(frozen=True)
class Verified:
    """The result of a verification."""

    first_epoch: int
    last_epoch: int
    transactions: int
    seconds: float
    compared: pa.Table  # table, rows, differences
    differences: pa.Table

    @property
    def is_equal(self) -> bool:
        """Returns whether every replayed row is in the lake, bit for bit, and no other."""
        return not pc.sum(self.compared["differences"]).as_py()


class Comparison:
    """The comparison, chunk by chunk, in a thread of its own, and its differences so far."""

    def __init__(self, source: Source, topics: Mapping[str, str]) -> None:
        self.rows: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.differences: list[Difference] = []
        self.source = source
        self._topics = dict(topics)  # table -> topic
        self._streamed: set[tuple[str, int]] = set()
        self._footers = FooterCache()
        self._lock = threading.Lock()

    def add(self, difference: Difference) -> None:
        """Counts a difference, and names it up to a maximum."""
        with self._lock:
            self.counts[difference.table] += 1
            if len(self.differences) < NAMED_MAX:
                self.differences.append(difference)

    def _count(self, table: str, rows: int) -> None:
        with self._lock:
            self.rows[table] += rows

    def table(self, table: str, recorded: pa.Table, replayed: pa.Table) -> None:
        """Compares rows of one table."""
        self._count(table, replayed.num_rows)
        for difference in compare.differences(table, self._topics.get(table), recorded, replayed):
            self.add(difference)

    def chunk(self, chunk: Chunk, replayed: Mapping[str, pa.Table]) -> None:
        """Compares all rows that some epochs decided."""
        for kind, rows in chunk.duplicates.items():
            for row in rows.select(list(ROW_ORDER)).to_pylist():
                name = f"queue_id={row['queue_id']} queue_offset={row['queue_offset']}"
                self.add(Difference(kind, None, row["epoch"], name, compare.TWICE))

        for kind in KINDS:
            self._count(kind, sum(rows.num_rows for rows in chunk.landed[kind].values()))

        catalog = replayed.get("catalog")
        if catalog is not None:
            self._topics |= _tables_of_topics(catalog)

        first, last = chunk.bounds
        for table in (*_DECIDED, *self._topics):
            epochs = [n for n in range(first, last + 1) if (table, n) not in self._streamed]

            if epochs:
                is_wanted = pc.field("epoch").isin(epochs)
                recorded = self._recorded_rows(table, chunk.bounds, is_wanted)
                decided = replayed.get(table, Lake.schema(table).empty_table()).filter(is_wanted)
                is_kept = pc.field("epoch") > self._deleted_epoch(table)
                self.table(table, recorded.filter(is_kept), decided.filter(is_kept))

        self._epochs(chunk.epochs, replayed["epochs"])

    def stream(self, table: str, pieces: Iterator[pa.Table], epoch: int) -> None:
        """Compares the messages of a large epoch, piece by piece."""
        self._streamed.add((table, epoch))
        keys = []
        for piece in pieces:
            keys.append(piece.select(["queue_id", "queue_offset"]))
            recorded = self.source.retrying(table, partial(self._at_places, table, piece))
            if epoch > self._deleted_epoch(table):
                self.table(table, recorded.filter(pc.equal(recorded["epoch"], epoch)), piece)

        recorded = self.source.rows(table, (epoch, epoch), ROW_ORDER)
        extra = run(_EXTRA, rows=recorded, keys=pa.concat_tables(keys))

        for row in extra.to_pylist():
            name = f"queue_id={row['queue_id']} queue_offset={row['queue_offset']}"
            self.add(Difference(table, self._topics.get(table), epoch, name, compare.EXTRA))

    def _at_places(self, table: str, piece: pa.Table) -> pa.Table:
        """Returns the recorded messages at the places of a piece, and no others in memory."""
        schema = Lake.schema(table)
        messages = read_messages(self.source, table, piece, schema.names, footers=self._footers)
        rows = [to_rows(pa.Table.from_batches([batch]), schema) for batch in messages]
        return pa.concat_tables([schema.empty_table(), *rows])

    def _recorded_rows(self, table: str, bounds: tuple[int, int], where: pc.Expression) -> pa.Table:
        try:
            return self.source.rows(table, bounds, where=where)
        except TableNotFoundError:
            return Lake.schema(table).empty_table()

    def _deleted_epoch(self, table: str) -> int:
        """Returns up to which epoch a topic's messages are deleted, and not compared.

        It is asked after rows were read: a job deletes meanwhile.
        """
        if table not in self._topics or not self.source.lake.is_table(table):
            return 0
        return deleted_epoch(self.source.lake.handle(table))

    def _epochs(self, epochs: Sequence[Recorded], replayed: pa.Table) -> None:
        rows = {r["epoch"]: r for r in replayed.to_pylist() if r["state"] == COMMITTED}
        self._count("epochs", 2 * len(epochs))

        for epoch in epochs:
            committed = rows[epoch.plan.epoch]
            self._values(
                epoch.plan.epoch, "next_offsets", epoch.next_offsets, next_offsets_of(committed)
            )

            replayed_counts = dict(committed["counts"])
            counts = {name: replayed_counts.get(name, 0) for name in epoch.counts}
            self._values(epoch.plan.epoch, "counts", epoch.counts, counts)

    def _values(
        self, epoch: int, column: str, recorded: Mapping[Any, int], replayed: Mapping[Any, int]
    ) -> None:
        for name in sorted({*recorded, *replayed}, key=str):
            recorded_value = recorded.get(name)
            replayed_value = replayed.get(name)

            if recorded_value != replayed_value:
                label = name if isinstance(name, str) else f"{name[0]} queue {name[1]}"
                self.add(
                    Difference(
                        "epochs",
                        None,
                        epoch,
                        "state=committed",
                        compare.CHANGED,
                        f"{column}: {label}",
                        compare.text_of(recorded_value),
                        compare.text_of(replayed_value),
                    )
                )

    def result(self) -> tuple[pa.Table, pa.Table]:
        """Returns the tables `compared` and `differences`."""
        tables = [
            name for name in {**self.rows, **self.counts} if self.rows[name] or self.counts[name]
        ]

        labels = [f"{t} ({self._topics[t]})" if t in self._topics else t for t in tables]
        compared = pa.table(
            {
                "table": pa.array(labels, pa.string()),
                "rows": pa.array([self.rows[t] for t in tables], pa.int64()),
                "differences": pa.array([self.counts[t] for t in tables], pa.int64()),
            }
        )

        rows = [asdict(difference) for difference in self.differences]
        return compared, pa.Table.from_pylist(rows, schema=DIFFERENCES)


def verify(
    lake: Lake | LakeLocation | str,
    first_epoch: int = 1,
    last_epoch: int | None = None,
    progress: ProgressCallback | None = None,
) -> Verified:
    """Runs the recorded epochs of a lake again, in a scratch lake, and compares every row.

    The lake is only read. Epochs that are not committed are left out. Where rows below the floor
    are deleted, 1 means the first epoch above it.
    Errors: LakeError, also if something that was committed is missing, `first_epoch` is below the
    floor, or rows differ and the floor has moved meanwhile.
    """
    started = time.monotonic()
    lake = lake if isinstance(lake, Lake) else Lake(lake)
    lake.lake_id()

    kept = KeptRows(lake)
    newest = require_recorded(lake).last
    last = 0
    if newest is not None:
        last = min(last_epoch or newest.epoch, newest.epoch)
        first_epoch = newest.floor.first_epoch if first_epoch == 1 else first_epoch
        require_replayable(lake, newest.floor, first_epoch)
        if first_epoch > last:
            raise LakeError(
                f"nothing to run again: {lake.path} has epochs from {newest.floor.first_epoch} to "
                f"{newest.epoch}"
            )

    source = Source(lake)
    comparison = Comparison(source, _tables_of_topics(lake.read("catalog")))
    count = 0

    if newest is not None:
        report = source.progress_reporter(first_epoch, last, progress)
        with tempfile.TemporaryDirectory(prefix="txlake-replay-") as folder:
            scratch = ScratchLake(folder, source, first_epoch, comparison.stream)
            epochs = ReplayedEpochs(scratch, source, RecordedAsker())
            try:
                count = _replay(scratch, epochs, comparison, (first_epoch, last), report)
            except LakeError:
                kept.require_above(first_epoch)
                raise

        if comparison.counts:
            kept.require_above(first_epoch)

    compared, differences = comparison.result()
    return Verified(first_epoch, last, count, time.monotonic() - started, compared, differences)


def _replay(
    scratch: ScratchLake,
    epochs: ReplayedEpochs,
    comparison: Comparison,
    bounds: tuple[int, int],
    report: Callable[[int], None],
) -> int:
    source = comparison.source
    count = 0
    epochs.resume_from(source.progress_before(bounds[0]), source.lake)

    with ThreadPoolExecutor(1, thread_name_prefix="txlake-comparer") as comparer:
        comparing = None
        parts = (
            part for chunk in source.chunks(*bounds) for part in epochs.replay_chunk(chunk, report)
        )
        for part in parts:
            if comparing is not None:
                comparing.result()

            comparing = comparer.submit(comparison.chunk, part, scratch.staged())
            scratch.persist_lookup_tables((*LOOKED_UP, *epochs.undeliverable_tables()))
            count += part.transactions

        if comparing is not None:
            comparing.result()

    _compare_state(comparison, epochs.state, bounds[1])
    epochs.close()
    return count


def _compare_state(comparison: Comparison, state: State, last: int) -> None:
    """Compares the state in the job's memory with the one that a start would read from the lake."""
    progress = read_progress(comparison.source.lake, until=last)
    if progress.last is not None and progress.last.snapshot.epoch == last:
        return  # the snapshot's rows were compared with the tables

    recorded = restore(comparison.source.lake, progress)
    for table, name in FRAMES.items():
        schema = TABLES[table]
        comparison.table(
            table,
            to_rows(getattr(recorded, name), schema, epoch=last, change=SNAPSHOT),
            to_rows(getattr(state, name), schema, epoch=last, change=SNAPSHOT),
        )


def _tables_of_topics(catalog: pa.Table) -> dict[str, str]:
    return {
        f"topics/{row['table_id']}": row["topic"]
        for row in catalog.select(["table_id", "topic"]).to_pylist()
    }

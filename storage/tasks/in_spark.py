"""The tasks that Spark runs in its Python workers: landing and delivering."""

from __future__ import annotations

import contextlib
import functools
import gc
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from storage.tasks import malloc
from storage.tasks.arrow_bytes import from_bytes
from storage.tasks.deliver import Delivery, LandedFiles, deliver
from storage.tasks.file_buffer import Files, files_to_json, from_json, merge_files
from storage.tasks.kafka_reader import KafkaSource, RecordRange, close_consumer, read_records
from storage.tasks.land import Landing

FILES_DDL: Final = "files string"
# Under load a worker has a task every second or two. One that waits longer has little to do.
_IDLE_S = 30.0
# A task with more rows belongs to a large epoch. Its decision, which comes next, takes most of the
# memory that the job has.
_LARGE_ROWS = 250_000


@dataclass(frozen=True)
class LandTask:
    """A task that reads and lands one share of an epoch's Kafka records, for `mapInArrow`.

    `shares`: by index, the offsets that a task lands. All tasks have all of them; a row says whose
    turn it is.
    """

    landing: Landing
    source: KafkaSource
    shares: Sequence[Sequence[RecordRange]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lands records. Input: `id`: the index of a share. Output: LANDED."""
        row_count = 0

        def records(share: Sequence[RecordRange]) -> Iterator[pa.RecordBatch]:
            nonlocal row_count
            for batch in read_records(self.source, share):
                row_count += batch.num_rows
                yield batch

        with _task_running():
            for batch in batches:
                for index in batch.column("id").to_pylist():
                    yield from self.landing(records(self.shares[index]))

        if row_count > _LARGE_ROWS:
            _release_memory()


@dataclass(frozen=True)
class DeliverTask:
    """A task that delivers slices of an epoch's messages, for `mapInArrow`.

    `delivery`: of the epoch, without placements: each slice brings its own.
    """

    delivery: Delivery
    landed: LandedFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Delivers slices. Input: `placements`, a slice a row. Output: `files`, as JSON."""
        with _task_running():
            for batch in batches:
                for placements in batch.column("placements"):
                    of_slice = replace(self.delivery, placements=from_bytes(placements))
                    files = deliver(of_slice, self.landed)
                    yield pa.RecordBatch.from_pydict({"files": [files_to_json(files)]})


def read_files(batch: pa.RecordBatch) -> Files:
    """Returns the files that delivering tasks yielded."""
    return merge_files(map(from_json, batch.column("files").to_pylist()))


@contextlib.contextmanager
def _task_running() -> Iterator[None]:
    """Keeps free memory from one task to the next; a worker that waits for 30 s gives it back.

    Giving it back after each task costs new pages (DECISIONS.md 3).

    Garbage waits for the end of the task, when Spark's worker collects it: the headers of records
    made the collector run all the time, which took 6 % of a landing.

    A timer's signal does it, not a thread: Arrow's allocator gives back only memory of the calling
    thread. The signal interrupts the worker's wait for a task, which Python then resumes. Only a
    process's main thread handles signals; Spark's workers run tasks there.
    """
    _configure_worker()
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, _IDLE_S)


@functools.cache
def _configure_worker() -> None:
    """Sets up a worker's process for small tasks on one core, once.

    Spark's worker collects garbage after each task. Going through all modules took 20 to 40 ms of a
    core that the driver needs: `gc.freeze` hides them from the collector. And Arrow would take a
    thread for each core of the machine.
    """
    gc.collect()
    gc.freeze()
    pa.set_cpu_count(1)
    malloc.keep_free_arrays()
    signal.signal(signal.SIGALRM, lambda *_: _release_memory())


def _release_memory() -> None:
    """Closes Kafka's consumer, and gives free memory of Arrow and malloc back to the system."""
    close_consumer()
    pa.default_memory_pool().release_unused()
    malloc.release_memory()

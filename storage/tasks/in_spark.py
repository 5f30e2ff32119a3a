"""What Spark runs in its Python workers: landing and delivering, by name."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from storage.tasks.arrow_bytes import from_bytes
from storage.tasks.deliver import Delivery, LandedFiles, deliver
from storage.tasks.land import Landing
from storage.tasks.written import Files, as_json, from_json, together

FILES_IN_SPARK: Final = "files string"


@dataclass(frozen=True)
class LandTask:
    """Lands one partition of an epoch's Kafka records, as `mapInArrow` wants it."""

    landing: Landing

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lands records. Input: KAFKA_COLUMNS. Output: LANDED."""
        _settle()
        yield from self.landing(batches)
        pa.default_memory_pool().release_unused()  # the worker may be idle for a while


@dataclass(frozen=True)
class DeliverTask:
    """Delivers the slices of one partition, as `mapInArrow` wants it.

    `delivery`: what all slices have in common.
    """

    delivery: Delivery
    landed: LandedFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Delivers. Input: `placements`, a slice a row. Output: `files`: JSON, likewise."""
        _settle()
        for batch in batches:
            for placements in batch.column("placements"):
                slice_ = replace(self.delivery, placements=from_bytes(placements))
                files = deliver(slice_, self.landed)
                yield pa.RecordBatch.from_pydict({"files": [as_json(files)]})
        pa.default_memory_pool().release_unused()


def read_files(batch: pa.RecordBatch) -> Files:
    """Returns the files that delivering tasks yielded."""
    return together(map(from_json, batch.column("files").to_pylist()))


@functools.cache
def _settle() -> None:
    """Makes a worker's process one that runs small tasks on one core; does so once.

    A worker collects garbage after each task. Going through all modules took 20 to 40 ms of a
    core that the driver needs: they are hidden from the collector. And Arrow would take a thread
    for each core of the machine.
    """
    gc.collect()
    gc.freeze()
    pa.set_cpu_count(1)

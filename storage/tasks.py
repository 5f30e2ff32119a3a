"""What Spark runs in its Python workers: landing and delivering, by name."""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

import pyarrow as pa

from storage.arrow_bytes import from_bytes
from storage.data_files import DataFile
from storage.deliver import Delivery, Files, LandedFiles, deliver, together
from storage.land import Landing

FILES_IN_SPARK: Final = "files string"


@dataclass(frozen=True)
class LandTask:
    """Land one partition of an epoch's Kafka records, as `mapInArrow` wants it."""

    landing: Landing

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Land records. Input: KAFKA_COLUMNS. Output: LANDED."""
        _settle()
        yield from self.landing(batches)
        pa.default_memory_pool().release_unused()  # the worker may be idle for a while


@dataclass(frozen=True)
class DeliverTask:
    """Deliver the slices of one partition, as `mapInArrow` wants it.

    `delivery`: what all slices have in common.
    """

    delivery: Delivery
    landed: LandedFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Deliver. Input: `placements`, a slice a row. Output: `files`: JSON, likewise."""
        _settle()
        for batch in batches:
            for placements in batch.column("placements"):
                slice_ = replace(self.delivery, placements=from_bytes(placements))
                files = deliver(slice_, self.landed)
                told = {name: list(map(asdict, written)) for name, written in files.items()}
                yield pa.RecordBatch.from_pydict({"files": [json.dumps(told)]})
        pa.default_memory_pool().release_unused()


def read_files(batch: pa.RecordBatch) -> Files:
    """Read what delivering tasks yielded."""
    return together(
        {table: [DataFile(**file) for file in written] for table, written in json.loads(t).items()}
        for t in batch.column("files").to_pylist()
    )


@functools.cache
def _settle() -> None:
    """Take what is imported out of the collector's sight, once a process.

    A worker collects garbage after each task. With all modules to look through that took 20 to
    40 ms, beside the driver, which goes on meanwhile.
    """
    gc.collect()
    gc.freeze()

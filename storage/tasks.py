"""What Spark runs in its Python workers: landing and delivering, by name."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from storage.deliver import Delivery, Files, LandedFiles, deliver
from storage.land import Landing


@dataclass(frozen=True)
class LandTask:
    """Land one partition of an epoch's Kafka records, as `mapInArrow` wants it."""

    landing: Landing

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Land records. Input: KAFKA_COLUMNS. Output: LANDED."""
        _settle()
        yield from self.landing(batches)
        pa.default_memory_pool().release_unused()  # the worker may be idle for a while


def deliver_task(part: tuple[Delivery, LandedFiles]) -> Files:
    """Deliver one slice."""
    _settle()
    files = deliver(*part)
    pa.default_memory_pool().release_unused()
    return files


@functools.cache
def _settle() -> None:
    """Take what is imported out of the collector's sight, once a process.

    A worker collects garbage after each task. With all modules to look through that took 20 to
    40 ms, beside the driver, which goes on meanwhile.
    """
    gc.collect()
    gc.freeze()

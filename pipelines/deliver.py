"""Deliver an epoch's messages: few by the driver itself, many by the tasks of a Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.columns import places
from checker.frames import PLACEMENTS
from pipelines.arrow_batches import arrow_batches
from pipelines.land import described
from storage.arrow_bytes import as_bytes
from storage.deliver import Delivery, Files, LandedFiles, deliver, together
from storage.lake import Lake
from storage.messages import touched_ranges
from storage.tasks import FILES_IN_SPARK, DeliverTask, read_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE_ROWS = 500  # to write a file takes as long as to read so many messages


@dataclass(frozen=True)
class Deliverer:
    """Where deliveries run. `spark` is None where there is none."""

    spark: SparkSession | None

    def deliver(self, lake: Lake, delivery: Delivery, tasks: int) -> Files:
        """Write messages into files of their topics' tables; who commits them is the caller.

        Input: in how many tasks; 0: in the driver. The rows are the same.
        Errors: LakeError when a message is not there.
        """
        if self.spark is None or tasks == 0:
            return deliver(delivery, lake, lake.opened)
        files = LandedFiles(lake.place, _files(lake, delivery.placements))
        slices = [[as_bytes(part)] for part in _sliced(delivery.placements, tasks)]
        wanted = pa.table({"placements": pa.chunked_array(slices)})
        frame = self.spark.createDataFrame(wanted)  # a partition a chunk
        task = DeliverTask(replace(delivery, placements=PLACEMENTS.empty_table()), files)
        with described(self.spark, delivery.epoch, "deliver", len(slices)):
            return together(map(read_files, arrow_batches(frame.mapInArrow(task, FILES_IN_SPARK))))


def _files(lake: Lake, placements: pa.Table) -> Mapping[str, list[str]]:
    """Name the files in which messages may stand, by the statistics of the log."""
    found = {}
    for source in pc.unique(placements["source"]).to_pylist():
        named = placements.filter(pc.equal(placements["source"], source))
        fragments = lake.dataset(source).get_fragments(touched_ranges(named))
        found[source] = [fragment.path for fragment in fragments]
    return found


def _sliced(placements: pa.Table, tasks: int) -> Iterator[pa.Table]:
    """Cut placements where the messages were landed: a file is read by one or two tasks.

    Where each task would write a small file for each of many topics, they are cut by topic instead:
    to read a message in vain takes some us, to write a file 1 ms.
    """
    topics, sources = (
        placements[name].combine_chunks().dictionary_encode() for name in ("topic", "source")
    )
    keys = [places(placements), sources.indices.to_numpy()]
    if placements.num_rows < _FILE_ROWS * len(topics.dictionary) * tasks:
        keys.append(topics.indices.to_numpy())
    order = np.lexsort(keys)
    for part in np.array_split(order, tasks):
        if len(part):
            yield placements.take(pa.array(part))

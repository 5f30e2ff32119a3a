"""An epoch's messages delivered: few by the driver itself, many by the tasks of a Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import PLACEMENTS
from pipelines.epoch.arrow_batches import arrow_batches
from pipelines.epoch.land import job_description
from storage.files.messages import offset_filter
from storage.lake.lake import Lake
from storage.schemas import row_keys
from storage.tasks.arrow_bytes import as_bytes
from storage.tasks.deliver import Delivery, LandedFiles, deliver
from storage.tasks.file_buffer import Files, merge_files
from storage.tasks.in_spark import FILES_DDL, DeliverTask, read_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE_ROWS = 500  # writing a file takes as long as reading so many messages


@dataclass(frozen=True)
class MessageDelivery:
    """The runner of deliveries: the driver, or Spark's tasks. `spark` is None in a replay."""

    spark: SparkSession | None

    def deliver(self, lake: Lake, delivery: Delivery, tasks: int) -> Files:
        """Writes messages into files of their topics' tables; the caller commits them.

        Input: the number of tasks; 0: in the driver. The rows are the same.
        Errors: LakeError if a message is missing.
        """
        if self.spark is None or tasks == 0:
            return deliver(delivery, lake, lake.opened)

        files = LandedFiles(lake.location, _files(lake, delivery.placements))
        slices = [[as_bytes(part)] for part in _split(delivery.placements, tasks)]
        rows = pa.table({"placements": pa.chunked_array(slices)})
        frame = self.spark.createDataFrame(rows)  # each chunk becomes a partition

        task = DeliverTask(replace(delivery, placements=PLACEMENTS.empty_table()), files)
        with job_description(self.spark, delivery.epoch, "deliver", len(slices)):
            batches = arrow_batches(frame.mapInArrow(task, FILES_DDL))
            return merge_files(map(read_files, batches))


def _files(lake: Lake, placements: pa.Table) -> Mapping[str, list[str]]:
    """Returns the files that can hold the messages, by the statistics of the log."""
    files = {}
    for source in pc.unique(placements["source"]).to_pylist():
        of_source = placements.filter(pc.equal(placements["source"], source))
        fragments = lake.dataset(source).get_fragments(offset_filter(of_source))
        files[source] = [fragment.path for fragment in fragments]
    return files


def _split(placements: pa.Table, tasks: int) -> Iterator[pa.Table]:
    """Returns the placements in slices by row key: a file is read by one or two tasks.

    If each task would write small files of many topics, the slices are by topic instead: reading a
    message that is not wanted takes some µs, writing a file 1 ms.
    """
    topics = placements["topic"].combine_chunks().dictionary_encode()
    sources = placements["source"].combine_chunks().dictionary_encode()

    keys = [row_keys(placements), sources.indices.to_numpy()]
    if placements.num_rows < _FILE_ROWS * len(topics.dictionary) * tasks:
        keys.append(topics.indices.to_numpy())

    order = np.lexsort(keys)
    for part in np.array_split(order, tasks):
        if len(part):
            yield placements.take(pa.array(part))

"""Offsets that an epoch passes without a record, and whether Kafka's markers explain them.

The end of a Kafka transaction takes one offset, which no client is shown; a record of the
transaction stands before it. Nothing else leaves a gap in a topic that Kafka does not compact.
A record that was compacted away alone, between two that were not, cannot be told from a marker:
the topic's setting is checked for that (`pipelines/kafka_client/admin.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from pipelines.epoch.batch import Batch
from pipelines.kafka_client.connection import Partition
from storage.wire.record_kinds import ADMIN
from txlake._counted import counted


@dataclass(frozen=True)
class Gap:
    """Offsets of one partition without a record: `count` of them, from `first` to `last`."""

    topic: str
    partition: int
    first: int
    last: int
    count: int

    def __str__(self) -> str:
        return (
            f"{self.topic} partition {self.partition}: no record at "
            f"{counted(self.count, 'offset')} from {self.first} to {self.last}, more than the "
            "markers of Kafka's transactions explain, unless several producers had one open when "
            "the epoch before ended: else Kafka has deleted records before they were landed, and "
            "they are lost; look at cleanup.policy of the topic, past and present"
        )


def unexplained(
    batch: Batch, offset_ranges: Mapping[Partition, range], topics: Mapping[str, str]
) -> Iterator[Gap]:
    """Returns the gaps of a landed micro-batch that no marker explains, one of each partition.

    Input: the offsets that it lands; the Kafka topics by kind. The admin topic does not count:
    PINGs of the job's own are not read again.
    """
    for kind, topic in topics.items():
        if kind == ADMIN:
            continue

        rows = batch.rows(kind)
        ranges = {
            partition: offsets
            for (name, partition), offsets in offset_ranges.items()
            if name == topic and offsets
        }
        if rows.num_rows == sum(map(len, ranges.values())):
            continue

        for partition, offsets in ranges.items():
            of_queue = rows.filter(pc.equal(rows["queue_id"], partition))
            gap = _gap(topic, partition, offsets, of_queue["queue_offset"].to_numpy())
            if gap is not None:
                yield gap


def _gap(topic: str, partition: int, offsets: range, landed: Any) -> Gap | None:
    """Returns the gap of one partition; None if markers explain it.

    Two markers can stand side by side where two transactions ended, so their sum counts: up to any
    offset there are at most as many markers as records, and one for a transaction of the epoch
    before. Several producers can have had one open then; what is deleted looks the same.
    """
    missing = np.setdiff1d(np.arange(offsets.start, offsets.stop), landed, assume_unique=True)
    records_before = missing - offsets.start - np.arange(len(missing))
    markers = np.arange(1, len(missing) + 1)

    if (markers <= records_before + 1).all():
        return None
    return Gap(topic, partition, int(missing[0]), int(missing[-1]), len(missing))

"""The numbers beside the names of pages: what is pending, dead, delayed; topics and consumers."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pyarrow.compute as pc

from pipelines.epoch.recorded_state import read_state
from pipelines.explain.consumer_positions import read_positions
from pipelines.explain.rows import latest_committed
from pipelines.health.consumer_retries import count_refused
from pipelines.health.dead_letters import count_undeliverable
from pipelines.health.topics import catalog
from storage.errors import LakeError
from storage.lake.aging import snapshot_before
from storage.lake.lake import Lake


class PageCounts:
    """The counts of one lake's pages: counted once an epoch, however many pages are made.

    It is thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: tuple[tuple[str, int], Mapping[str, int]] = (("", 0), {})

    def of(self, lake: Lake | None) -> Mapping[str, int]:
        """Returns the count of each page, as of the newest committed epoch.

        Empty for a page without a lake, and for a lake that cannot be read: its pages say why.
        """
        if lake is None:
            return {}

        try:
            epoch, _ = latest_committed(lake)
            version = lake.majority_lake_id(), epoch  # another lake can stand at the place by now
            with self._lock:
                if self._counts[0] != version:
                    self._counts = version, _count(lake, epoch)
                return self._counts[1]
        except LakeError:
            return {}


def _count(lake: Lake, epoch: int) -> dict[str, int]:
    if epoch == 0:
        return {}

    snapshot = snapshot_before(lake, epoch)
    halves = read_state(lake, "pending", epoch, snapshot)
    discarded = pc.sum(pc.is_valid(halves["discard_cause"])).as_py() or 0
    readers = (*read_positions(lake), *count_refused(lake))
    groups = {row["consumer_group"] for row in readers}

    return {
        "/transactions": halves.num_rows - discarded,
        "/dead": discarded + count_undeliverable(lake),
        "/delayed": read_state(lake, "delayed", epoch, snapshot).num_rows,
        "/topics": len(catalog(lake)),
        "/consumers": len(groups),
    }

"""What the raw producer knows of the lake: which of its halves are given up, what is stuck."""

from __future__ import annotations

import time
from typing import Any

import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from bench.chaos.names import RAW_GROUP
from bench.chaos.raw_journal import RawRecord
from storage.errors import LakeError
from storage.files.location import LakeLocation
from storage.lake.lake import Lake

_PAUSE_S = 0.7
Place = tuple[int, int]


class LakeLook:
    """The ends and the undeliverable messages of the lake, at most so many seconds old."""

    def __init__(self, location: LakeLocation) -> None:
        self._lake = Lake(location)
        self._outcomes: dict[Place, str] = {}
        self._undeliverable: dict[Place, int] = {}
        self._epochs = {"outcomes": 0, "deliveries": 0}
        self._looked_at = 0.0

    def outcome_of(self, half: RawRecord) -> str | None:
        """Returns the outcome that holds for a half, as far as it is known."""
        self._refresh()
        return self._outcomes.get((half.queue_id, half.queue_offset or 0))

    def undeliverable_offset_of(self, half: RawRecord) -> int | None:
        """Returns where a message stands in TRANS_UNDELIVERABLE_TOPIC."""
        self._refresh()
        return self._undeliverable.get((half.queue_id, half.queue_offset or 0))

    def _refresh(self) -> None:
        if time.monotonic() < self._looked_at + _PAUSE_S:
            return
        self._looked_at = time.monotonic()
        for row in self._new("outcomes", ["outcome"], pc.field("producer_group") == RAW_GROUP):
            self._outcomes[row["queue_id"], row["queue_offset"]] = row["outcome"]
        stuck = (pc.field("action") == "UNDELIVERABLE") & (pc.field("source") == "half")
        for row in self._new("deliveries", ["real_queue_offset"], stuck):
            place = row["queue_id"], row["queue_offset"]
            self._undeliverable[place] = row["real_queue_offset"]

    def _new(self, table: str, columns: list[str], where: pc.Expression) -> list[dict[str, Any]]:
        since = pc.field("epoch") > self._epochs[table]
        columns = ["queue_id", "queue_offset", "epoch", *columns]
        try:
            found: list[dict[str, Any]] = self._lake.read(table, columns, since & where).to_pylist()
        except (DeltaError, LakeError, OSError):  # not made yet, or being merged: look again later
            self._lake.reset(table)
            return []
        found.sort(key=lambda row: row["epoch"])
        if found:
            self._epochs[table] = found[-1]["epoch"]
        return found

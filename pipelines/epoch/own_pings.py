"""The PINGs by which this process reads the broker's clock. The next epoch lands them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from storage.lake.epochs import Range
from storage.rows import instant
from txlake.protocol import PING


class OwnPings(dict[int, int]):
    """When the broker stored each own PING, in ms, by admin offset. Alone they make no epoch."""

    def covers(self, offsets: range) -> bool:
        """Returns whether all these admin records are PINGs of this process."""
        return all(offset in self for offset in offsets)

    def rows(self, ranges: Iterable[Range], topic: str, owner: str) -> list[dict[str, Any]]:
        """Returns the rows of the own PINGs in these ranges."""
        offsets = (
            (r.partition, offset)
            for r in ranges
            if r.topic == topic
            for offset in range(r.from_offset, r.to_offset)
        )

        return [
            {
                "queue_id": partition,
                "queue_offset": offset,
                "stored_at": instant(self[offset]),
                "command": PING,
                "actor": owner,
            }
            for partition, offset in offsets
            if offset in self
        ]

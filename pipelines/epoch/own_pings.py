"""The PINGs by which this process reads the broker's clock. The next epoch lands them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from storage.lake.epochs import Range
from storage.rows import instant
from txlake.protocol import PING

# So many together are landed. Kafka deletes old records some day, and what it deletes before it is
# landed counts as lost.
_WAITING_MAX: Final = 6


class OwnPings(dict[int, int]):
    """When the broker stored each own PING, in ms, by admin offset. A few make no epoch."""

    def can_wait(self, offsets: range) -> bool:
        """Returns whether these admin records are a few PINGs of this process."""
        return len(offsets) < _WAITING_MAX and self.covers(offsets)

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

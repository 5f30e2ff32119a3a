"""The PINGs of this process: what it asked the broker's clock by, and lands with the next epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from storage.epochs import Range
from storage.rows import instant
from txlake.protocol import PING


class OwnPings(dict[int, int]):
    """Admin offset -> when the broker stored it, in ms. They are no reason for an epoch."""

    def are(self, offsets: range) -> bool:
        """Return whether we wrote all these admin records ourselves, as PINGs."""
        return all(offset in self for offset in offsets)

    def rows(self, ranges: Iterable[Range], topic: str, owner: str) -> list[dict[str, Any]]:
        """Return the records of those that the ranges of the admin topic hold."""
        return [
            {
                "queue_id": r.partition,
                "queue_offset": offset,
                "stored_at": instant(self[offset]),
                "command": PING,
                "actor": owner,
            }
            for r in ranges
            if r.topic == topic
            for offset in range(r.from_offset, r.to_offset)
            if offset in self
        ]

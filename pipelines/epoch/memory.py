"""Memory that Arrow has free: it stays for the next epoch, unless this one is large."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

# More than twice the records of an epoch by default (`max_offsets_per_trigger`). With millions of
# records each step of the decision has frames of some hundred megabytes that no other step has.
LARGE_RECORDS: Final = 500_000


def release_memory(records: int) -> None:
    """Gives free memory back to the system if the epoch, of `records` records, is large.

    Between the steps of a usual epoch it stays: the next step would ask for as much again, and new
    pages cost more than what is done with them (DECISIONS.md 3).
    """
    if records > LARGE_RECORDS:
        pa.default_memory_pool().release_unused()

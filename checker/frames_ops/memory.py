"""Memory that Arrow has free: it stays for the next epoch, unless this one is large."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from checker.frames import Inputs

# More than twice what an epoch has by default (`max_offsets_per_trigger`). With millions of records
# each step has frames of some hundred megabytes, and others than the step after it.
LARGE_RECORDS: Final = 500_000


def record_count(inputs: Inputs) -> int:
    """Returns how many records an epoch lands."""
    frames = (inputs.halves, inputs.operations, inputs.schedules, inputs.commands)
    return sum(rows.num_rows for rows in frames)


def give_back(records: int) -> None:
    """Gives free memory back to the system in an epoch of so many records, if that is large.

    Between the steps of a usual epoch it stays: the next step would ask for as much again, and new
    pages cost more than what is done with them (DECISIONS.md 3).
    """
    if records > LARGE_RECORDS:
        pa.default_memory_pool().release_unused()

"""How long the memory that Arrow frees stays in the driver and in Spark's Python workers.

By itself Arrow's allocator gives it back after a second. The next portion of an epoch then gets new
pages: with bodies of 2 KiB a fifth of the processor time of everything (DECISIONS.md 3).
"""

from __future__ import annotations

import os
from typing import Final

# Read by the allocator, mimalloc, when it is loaded; ms. A worker without a task gives all of
# the memory back sooner (storage/tasks/in_spark.py), so does the driver between the steps of a
# large epoch (pipelines/epoch/memory.py).
ENVIRONMENT: Final = {"MIMALLOC_PURGE_DELAY": "60000"}


def keep_freed_pages() -> None:
    """Lets the child processes keep free memory, and this process if Arrow is imported later.

    A value that the environment already has stays.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)

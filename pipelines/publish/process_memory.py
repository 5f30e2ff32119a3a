"""The memory of a process that only publishes: one heap for Arrow, librdkafka and Python."""

from __future__ import annotations

import gc
import os
from typing import Final

from storage.tasks import malloc

# Read by Arrow when it is loaded. `pyarrow.set_memory_pool` does not reach its reader of Parquet.
_ARROW_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
# Headers are many short-lived tuples, none of them in a cycle: Python would look for cycles after
# each 700, and that took a third of the time of making records.
_GARBAGE_AFTER: Final = 200_000


def share_one_heap() -> None:
    """Lets Arrow and all threads take their memory from one heap.

    Call it before Arrow is imported and threads are started. An allocator of Arrow's own kept 60 to
    80 MB, and glibc's arenas of each thread 40 MB (DECISIONS.md 31). A value that the environment
    already has stays.
    """
    os.environ.setdefault(_ARROW_POOL, "system")
    malloc.use_one_arena()


def look_for_garbage_rarely() -> None:
    """Lets Python look for cycles after 200,000 new objects, and not at what it has imported."""
    gc.freeze()
    gc.set_threshold(_GARBAGE_AFTER)

"""Lakes as the notebooks' functions see them."""

from __future__ import annotations

import functools

from pipelines.notebooks.open_lake import OpenLake
from storage.lake.lake import Lake
from tests.support.in_memory_job import InMemoryJob
from tests.support.lake_rows import LakeRows
from tests.support.sound_lake import sound_rows


@functools.cache
def sound() -> LakeRows:
    """Return the rows of the lake in which everything happens that can: not to be changed."""
    return sound_rows()


def opened(job: InMemoryJob) -> OpenLake:
    """Open a job's lake as it is now."""
    return OpenLake(Lake(job.lake.path))

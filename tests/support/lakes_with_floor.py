"""Lakes whose floor has moved, and whether a lake is sound."""

from __future__ import annotations

import random
from pathlib import Path

from pipelines.replay import verification
from storage.lake.integrity import require_intact, require_recorded
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.maintenance.limits import Retention
from storage.verify.run import verify
from tests.support.aging_job import AgingJob, live
from txlake.protocol import COMMIT

LIMITS = {
    "check_max": 2,
    "half_retention_ms": 300_000,
    "orphan_operation_ttl_ms": 600_000,
    "topics_max": 1,
}


def make_aged_job(path: Path) -> AgingJob:
    """Return a job with a long past, whose old rows are deleted."""
    job = make_old_job(path)
    delete_old_rows(job)
    return job


def make_old_job(path: Path) -> AgingJob:
    """Return a job with a long past, all of it still there."""
    job = AgingJob(path / "lake", **LIMITS)
    for topic in ("orders", "nowhere"):  # of which topics_max allows one
        job.end(COMMIT, job.half("asks", real_topic=topic))
        job.run()
    live(job, random.Random(12), 18)
    return job


def delete_old_rows(job: AgingJob, topics: Retention = Retention()) -> None:  # noqa: B008
    """Delete what is below a job's floor, and the old messages of topics that keep them so long."""
    job.topics = topics
    job.maintain()
    assert job.floor.epoch > job.floor.deleted > 0


def require_sound(path: Path) -> None:
    """Check that a lake is whole, and that its epochs give the same rows again."""
    lake = Lake(str(path))
    require_intact(lake, read_progress(lake), is_exclusive=True)
    require_recorded(lake)
    assert {f.invariant.name: f.rows[:3] for f in verify(lake).findings if f.violations} == {}
    again = verification.verify(lake)
    assert again.is_equal, again.differences.to_pylist()[:5]

"""What is below the floor is deleted, and nothing else; what decides does not notice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pipelines.epoch.restore import restore
from pipelines.replay import verification
from storage.lake.epochs import read_progress
from storage.lake.lake import Lake
from storage.lake.whole import require_readable, require_recorded, require_whole
from storage.verify.run import verify
from tests.support.aging_job import AgingJob, live
from tests.support.job import plain_state

LIMITS = {"check_max": 2, "half_retention_ms": 300_000, "orphan_operation_ttl_ms": 600_000,
          "topics_max": 3}  # fmt: skip


def violations(lake: Lake) -> dict[str, Any]:
    return {f.invariant.name: f.rows[:3] for f in verify(lake).findings if f.violations}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_old_goes_and_the_job_goes_on_as_if_it_had_stayed(
    tmp_path: Path, seed: int
) -> None:
    job, chance = AgingJob(tmp_path / "lake", **LIMITS), random.Random(seed)
    for _ in range(5):
        live(job, chance, 8)
        job.maintain()
        lake = Lake(job.lake.path)
        progress = read_progress(lake)
        require_whole(lake, progress, is_alone=True)
        require_recorded(lake)
        require_readable(lake)
        assert plain_state(restore(lake, progress)) == plain_state(job.state)
        assert violations(lake) == {}
    assert job.maintained.rows_expired > 50
    assert job.floor.epoch > job.floor.deleted > 12
    found = verification.verify(lake, job.floor.epoch + 1)
    assert found.is_equal, found.differences.to_pylist()[:5]

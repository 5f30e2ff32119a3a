"""Other parameters above the floor: the state there is as history left it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from pipelines.cli.main import main
from pipelines.replay import what_if
from pipelines.settings import SettingsError
from storage.lake.lake import Lake
from tests.support.aging_job import AgingJob, live
from txlake.protocol import COMMIT

LIMITS = {"check_max": 3, "half_retention_ms": 3_000_000, "check_interval_ms": 60_000}


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> AgingJob:
    """Return a job with a long past, whose old rows nobody has deleted yet."""
    job = AgingJob(tmp_path_factory.mktemp("aged") / "lake", **LIMITS)
    live(job, random.Random(5), 24)
    assert job.floor.deleted > 0
    return job


def test_the_same_parameters_change_nothing_above_the_floor_whatever_is_deleted(
    aged: AgingJob,
) -> None:
    before = what_if(aged.lake.path, tick_ms=0)
    aged.maintain()
    assert aged.maintained.rows_expired > 0
    after = what_if(aged.lake.path, tick_ms=0)
    assert (after.first_epoch, after.last_epoch) == (aged.floor.epoch + 1, aged.epoch)
    later = pc.field("epoch") > aged.floor.epoch
    numbers = {row["measure"]: row for row in after.numbers.to_pylist()}
    assert numbers["checks"]["history"] == aged.lake.read("checks", where=later).num_rows > 0
    assert all(row["history"] == row["what_if"] for row in numbers.values())
    assert after.outcomes.num_rows == 0
    for name in ("numbers", "groups", "outcomes"):
        assert getattr(after, name).equals(getattr(before, name))


def test_without_checks_what_waits_at_the_floor_is_given_up_in_the_first_epoch_above(
    tmp_path: Path,
) -> None:
    job = AgingJob(tmp_path / "lake", **{**LIMITS, "check_max": 15})
    while not job.floor.deleted or job.floor.epoch < 12:
        if job.epoch == 11:  # it waits at the floor, and is asked above it
            job.half("silent", immunity_ms=90_000)
        job.end(COMMIT, job.half(f"tx{job.epoch}"))
        job.run(60_000)
    job.maintain()
    answer = what_if(job.lake.path, check_max=0, tick_ms=0)
    (silent,) = answer.outcomes.to_pylist()
    assert (silent["transaction_id"], silent["what_if_cause"]) == ("silent", "check_max")
    first = pc.field("epoch") == answer.first_epoch
    (at,) = set(Lake(job.lake.path).read("epochs", ["epoch_at"], first)["epoch_at"].to_pylist())
    assert silent["what_if_decided_at"] == at
    (checks,) = [row for row in answer.numbers.to_pylist() if row["measure"] == "checks"]
    assert (checks["history"] > 0, checks["what_if"]) == (True, 0)
    words = ["replay", "--lake", job.lake.path, "--what-if", "check_max=0"]
    said = CliRunner().invoke(main, words).stdout.splitlines()
    assert said[0] == f"epochs {answer.first_epoch} to {answer.last_epoch}"


def test_what_a_question_does_not_name_is_as_the_lake_has_it(aged: AgingJob) -> None:
    retention_ms = LIMITS["half_retention_ms"]
    with pytest.raises(SettingsError, match=f"half_retention_ms = {retention_ms} is below"):
        what_if(aged.lake.path, transaction_timeout_ms=retention_ms + 1)


def test_a_question_is_not_refused_for_a_setting_that_it_cannot_name(aged: AgingJob) -> None:
    month_ms = 30 * 86_400_000  # longer than ended halves are kept by default
    answer = what_if(aged.lake.path, half_retention_ms=month_ms)
    assert answer.parameters == {"half_retention_ms": month_ms}

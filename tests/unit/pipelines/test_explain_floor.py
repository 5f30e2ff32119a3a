"""What is told of halves and schedule records below the floor, whose ends are deleted sooner."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.health.transactions import Filters, list_stored
from storage.lake.lake import Lake
from tests.support.aging_job import EPOCH_MS, AgingJob
from tests.support.console_client import client
from tests.support.in_memory_job import START_AT
from tests.support.operator import said
from txlake.protocol import COMMIT

FAR = START_AT + 10 * 86_400_000


def make_old_lake(folder: Path) -> AgingJob:
    """Return a job whose first file of halves is held by one of them, while its ends are deleted.

    Half 0-0 and schedule record 0-0 wait; half 0-1 was delivered, half 0-2 and schedule record
    0-1 after a delay.
    """
    job = AgingJob(folder / "lake", half_retention_ms=10**9, check_max=1000)
    job.half("waits", keys="waits")
    job.end(COMMIT, job.half("paid", keys="paid"))
    job.end(COMMIT, job.half("later", keys="later", deliver_at=START_AT + 4 * EPOCH_MS))
    job.schedule(deliver_at=FAR)
    job.schedule(deliver_at=START_AT + 2 * EPOCH_MS)

    for _ in range(22):
        job.end(COMMIT, job.half(f"other{job.epoch}", queue=1), queue=1)
        job.run(EPOCH_MS)
        if job.epoch % 3 == 0:
            job.maintain()
    return job


@pytest.fixture(scope="module")
def old_lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    job = make_old_lake(tmp_path_factory.mktemp("old"))
    assert job.floor.deleted > 5
    ends = job.lake.read("outcomes")["epoch"].to_pylist()
    assert min(ends) > 1
    return str(job.lake.path)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("half:0-0", "PENDING"),
        ("half:0-1", "ENDED"),
        ("half:0-2", "ENDED"),
        ("schedule:0-0", "DELAYED"),
        ("schedule:0-1", "ENDED"),
    ],
)
def test_what_has_ended_is_not_told_as_pending_when_its_end_is_deleted(
    old_lake: str, target: str, status: str
) -> None:
    told = said("tx", "explain", target, "--lake", old_lake)
    assert told.splitlines()[0].endswith(f": {status}")
    assert "not committed yet" not in told
    assert ("is deleted" in told) == (status == "ENDED")

    page = client(old_lake).get(f"/story?of={target}").text
    offers = [name for name in ("ask", "commit", "rollback") if f'href="/{name}?' in page]
    assert offers == (["ask", "commit", "rollback"] if status == "PENDING" else [])


def test_a_list_has_a_status_for_what_has_ended_and_no_row_says_how(old_lake: str) -> None:
    listed, _ = list_stored(Lake(old_lake), Filters())
    statuses = {row["target"]: row["status"] for row in listed}
    assert {target: statuses[target] for target in ("half:0-0", "half:0-1", "half:0-2")} == {
        "half:0-0": "PENDING",
        "half:0-1": "ENDED",
        "half:0-2": "ENDED",
    }
    assert set(statuses.values()) == {"PENDING", "ENDED", "COMMITTED"}


@pytest.mark.parametrize("since_at", [None, START_AT - 86_400_000])
def test_a_list_since_before_the_oldest_epoch_has_the_halves_of_epochs_that_are_deleted(
    old_lake: str, since_at: int | None
) -> None:
    listed, _ = list_stored(Lake(old_lake), Filters(since_at=since_at))
    assert "half:0-0" in [row["target"] for row in listed]


def test_a_half_that_was_given_up_and_is_below_the_floor_is_ended_by_nothing(
    tmp_path: Path,
) -> None:
    job = AgingJob(tmp_path / "lake", half_retention_ms=EPOCH_MS, check_max=1000)
    job.half("given up")
    job.run(2 * EPOCH_MS)
    while job.floor.epoch == 0:
        job.end(COMMIT, job.half(f"other{job.epoch}", queue=1), queue=1)
        job.run(EPOCH_MS)

    told = said("tx", "explain", "0-0", "--lake", job.lake.path)
    assert "DISCARDED" in told.splitlines()[0]
    assert "given up (expired), and the floor has passed it since: nothing ends it any more" in (
        " ".join(told.split())
    )

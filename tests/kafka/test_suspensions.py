"""A driver is suspended at a write of an epoch while another commits ten: it writes nothing more.

`python -m bench.suspensions` does the same at every write.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from pipelines.local_broker.broker import Broker
from tests.support.job import PATIENT, settings_for
from tests.support.suspensions import (
    AFTER,
    BEFORE,
    CASES,
    DISK_CASES,
    MAINTENANCE,
    WITHIN,
    LightStory,
    Rows,
    reference_of,
    require_is_inactive,
    require_is_stopped,
    require_no_maintenance,
    require_no_more_writes,
    story_of,
)

SAMPLE = [
    ("append epochs planned", BEFORE),
    ("append epochs planned", AFTER),
    ("append epochs planned", WITHIN),
    ("append half", BEFORE),
    ("append half", WITHIN),
    ("append topics/2", BEFORE),
    ("append pending", AFTER),
    ("send checks", BEFORE),
    ("append epochs committed", BEFORE),
    ("append epochs committed", WITHIN),
    ("append epochs committed", AFTER),
]


@pytest.fixture(scope="module")
def story(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightStory]:
    folder = tmp_path_factory.mktemp("suspensions") / "lakes"
    folder.mkdir()
    settings = settings_for(
        broker,
        folder,
        f"suspensions-{time.time_ns()}",
        transaction={**PATIENT, "check_max": 1},
        lake={"pending_snapshot_epochs": 3},
    )
    yield story_of(settings, folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def reference(story: LightStory) -> Rows:
    return reference_of(story)


@pytest.mark.parametrize(("write", "mode"), SAMPLE)
def test_a_driver_suspended_at_a_write_writes_nothing_more_and_stops(
    story: LightStory, reference: Rows, write: str, mode: str
) -> None:
    assert (write, mode) in (*CASES, *DISK_CASES)
    require_is_stopped(require_no_more_writes(story, reference, write, mode))


@pytest.mark.parametrize("step", MAINTENANCE)
def test_a_driver_suspended_in_maintenance_replaces_and_deletes_no_file(
    story: LightStory, reference: Rows, step: str
) -> None:
    require_is_inactive(require_no_maintenance(story, reference, step))

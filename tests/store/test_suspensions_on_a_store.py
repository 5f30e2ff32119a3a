"""A driver is suspended at a write of an epoch on a store, while another commits ten.

On a store there is no lock. `python -m bench.suspensions --store s3` does it at every write.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import Store
from tests.support.job import settings_for
from tests.support.store import make_bucket
from tests.support.suspensions import (
    AFTER,
    BEFORE,
    MAINTENANCE,
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
    ("append epochs planned", AFTER),
    ("append topics/2", BEFORE),
    ("append epochs committed", BEFORE),
]


@pytest.fixture(scope="module")
def story(store: Store, broker: Broker) -> Iterator[LightStory]:
    bucket = make_bucket(store, f"suspensions-{time.time_ns()}")
    settings = settings_for(
        broker,
        bucket.folder,
        bucket.name,
        transaction={"check_max": 1},
        lake={"pending_snapshot_epochs": 3},
    )
    yield story_of(settings, bucket.folder, bucket.uri, bucket.options)
    shutil.rmtree(bucket.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def reference(story: LightStory) -> Rows:
    return reference_of(story)


@pytest.mark.parametrize(("write", "mode"), SAMPLE)
def test_a_driver_suspended_at_a_write_writes_nothing_more_and_stops(
    story: LightStory, reference: Rows, write: str, mode: str
) -> None:
    require_is_stopped(require_no_more_writes(story, reference, write, mode))


@pytest.mark.parametrize("step", MAINTENANCE)
def test_a_driver_suspended_in_maintenance_replaces_and_deletes_no_file(
    story: LightStory, reference: Rows, step: str
) -> None:
    require_is_inactive(require_no_maintenance(story, reference, step))

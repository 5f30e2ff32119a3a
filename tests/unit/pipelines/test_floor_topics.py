"""Where queues begin in a rebuilt lake: topics delete messages by a clock of their own."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from pipelines.replay import rebuild
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.lake.table import deleted_epoch, queue_floor
from storage.maintenance.limits import Retention
from storage.maintenance.topic_retention import alter, configs_of
from tests.support.aging_job import EPOCH_MS, AgingJob, live
from tests.support.epoch_harness import decided_rows_of
from tests.support.lakes_with_floor import LIMITS, delete_old_rows, make_old_job, require_sound
from txlake import Consumer, OffsetOutOfRangeError
from txlake._delta_log import LAKE_ID_PROPERTY
from txlake.protocol import RETENTION_MS

ORDERS = "topics/1"


@pytest.fixture(scope="module")
def old_job(tmp_path_factory: pytest.TempPathFactory) -> AgingJob:
    return make_old_job(tmp_path_factory.mktemp("old"))


def test_queues_begin_where_they_began_and_a_lost_topic_begins_at_the_floor(
    old_job: AgingJob, tmp_path: Path
) -> None:
    job = old_job.copy(tmp_path / "lake")
    delete_old_rows(job, Retention(ms=10 * EPOCH_MS))
    old = Lake(job.lake.path)
    floors = read_progress(old, until=job.floor.epoch)
    begin, end = queue_floor(old.handle(ORDERS), 0), floors.next_offsets["orders", 0]
    assert 0 < begin < end
    assert 0 < deleted_epoch(old.handle(ORDERS)) < job.floor.epoch
    alter(old, ORDERS, {RETENTION_MS: 86_400_000})
    rebuild(job.lake.path, str(tmp_path / "new"))
    new = Lake(str(tmp_path / "new"))
    assert queue_floor(new.handle(ORDERS), 0) == begin
    assert configs_of(new.handle(ORDERS)) == {RETENTION_MS: 86_400_000}
    assert decided_rows_of(tmp_path / "new") == decided_rows_of(Path(job.lake.path))
    require_sound(tmp_path / "new")

    with Consumer(new.path, "early", ["orders"]) as consumer:
        consumer.poll(0.0, max_records=1)
        consumer.commit()
    shutil.rmtree(Path(job.lake.path) / ORDERS)
    rebuild(job.lake.path, str(tmp_path / "lost"))
    assert queue_floor(Lake(str(tmp_path / "lost")).handle(ORDERS), 0) == end
    require_sound(tmp_path / "lost")
    shutil.copytree(tmp_path / "new" / "consumer_offsets", tmp_path / "lost" / "consumer_offsets")
    lost = Lake(str(tmp_path / "lost"))
    owner = {LAKE_ID_PROPERTY: lost.lake_id()}
    alteration = lost.handle("consumer_offsets").alter
    alteration.set_table_properties(owner, raise_if_not_exists=False)
    gone = pytest.raises(OffsetOutOfRangeError, match=r"position \d+, and the queue begins at \d+")
    with Consumer(str(tmp_path / "lost"), "early", ["orders"]) as consumer, gone:
        consumer.poll(0.0)


def test_messages_above_the_floor_come_back_when_their_topic_has_deleted_them(
    old_job: AgingJob, tmp_path: Path
) -> None:
    job = old_job.copy(tmp_path / "lake")
    delete_old_rows(job, Retention(ms=1))
    old, new = Lake(job.lake.path), tmp_path / "new"
    assert deleted_epoch(old.handle(ORDERS)) > job.floor.epoch
    rebuild(job.lake.path, str(new))
    begins = read_progress(old, until=job.floor.epoch).next_offsets
    queue_floors = {
        queue_id: queue_floor(Lake(str(new)).handle(ORDERS), queue_id)
        for topic, queue_id in begins
        if topic == "orders"
    }
    assert queue_floors == {
        queue: end for (topic, queue), end in begins.items() if topic == "orders"
    }
    came_back = Lake(str(new)).read(ORDERS, ["epoch"])["epoch"].to_pylist()
    assert came_back
    assert min(came_back) > job.floor.epoch
    require_sound(new)


def test_nothing_is_copied_while_nothing_is_deleted(tmp_path: Path) -> None:
    job = AgingJob(tmp_path / "lake", **LIMITS)
    chance = random.Random(3)
    while not job.floor.epoch:
        live(job, chance, 1)
    assert job.floor.deleted == 0
    done = rebuild(job.lake.path, str(tmp_path / "new"))
    assert (done.floor_epoch, done.first_epoch) == (0, 1)
    assert decided_rows_of(tmp_path / "new") == decided_rows_of(Path(job.lake.path))
    require_sound(tmp_path / "new")

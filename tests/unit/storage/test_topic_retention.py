"""A topic keeps messages for so long, or so many bytes; what is older goes, and no gap is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from pipelines.cli.main import main
from pipelines.replay import verification
from storage.errors import BrokenLakeError, OwnerError
from storage.lake.integrity import require_intact, require_readable, require_recorded
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.lake.table import deleted_epoch, queue_floor
from storage.maintenance import maintenance as maintaining
from storage.maintenance.limits import Retention, StepResult
from storage.maintenance.maintenance import Maintenance
from storage.maintenance.merge_plan import TableFile
from storage.maintenance.topic_retention import expired
from storage.verify.run import verify
from tests.support.damage import WholeJob
from tests.support.maintenance_rounds import NOW_GONE
from txlake import Consumer, OffsetOutOfRangeError
from txlake.protocol import COMMIT, RETENTION_BYTES, RETENTION_MS, UNDELIVERABLE_TOPIC

EPOCH_MS = 60_000
AT = 100


def file(first: int, last: int | None = None, *, size: int = 10, is_told: bool = True) -> TableFile:
    """Return a file of some epochs; each is 1 ms after the one before."""
    last = first if last is None else last
    told = (last, last) if is_told else (None, None)
    return TableFile(f"{first}-{last}", size, 1, first, *told)


@pytest.mark.parametrize(
    ("files", "retention", "gone"),
    [
        pytest.param([file(1), file(2)], Retention(), 0, id="without a limit all stay"),
        pytest.param([], Retention(ms=1), 0, id="an empty table"),
        pytest.param([file(49), file(50)], Retention(ms=50), 1, id="older than retention.ms"),
        pytest.param([file(98), file(1)], Retention(ms=50), 1, id="the oldest go, in any order"),
        pytest.param([file(1, 60), file(2)], Retention(ms=50), 0,
                     id="a file with one young message stays whole, and so does all after it"),
        pytest.param([file(1, 3), file(2, 60), file(4)], Retention(ms=50), 0,
                     id="of an epoch in two files neither goes before the other"),
        pytest.param([file(1, 3), file(3, 5), file(6)], Retention(ms=94), 2,
                     id="files that share an epoch go together"),
        pytest.param([file(1), file(2), file(3)], Retention(bytes=20), 1,
                     id="as many bytes as retention.bytes stay"),
        pytest.param([file(1), file(2), file(3)], Retention(bytes=21), 0,
                     id="a file that would leave fewer bytes stays"),
        pytest.param([file(1, size=1), file(60, size=99)], Retention(ms=50, bytes=1), 1,
                     id="either limit is enough"),
        pytest.param([file(1, is_told=False), file(2)], Retention(ms=1), 0,
                     id="a file whose epochs are not known stays, and all after it"),
    ],
)  # fmt: skip
def test_files_that_go(files: Sequence[TableFile], retention: Retention, gone: int) -> None:
    in_order = sorted(files, key=lambda one: one.first_epoch)
    assert list(expired(files, retention, AT)) == in_order[:gone]


def test_thousands_of_files_go_by_some_hundreds() -> None:
    files = [file(epoch) for epoch in range(1, 1_001)]
    assert len(expired(files, Retention(ms=1), 10_000)) == 256


@pytest.fixture(scope="module")
def eight_epochs(tmp_path_factory: pytest.TempPathFactory) -> WholeJob:
    """Return a job that delivered two messages in each of eight epochs, to two queues."""
    job = WholeJob(tmp_path_factory.mktemp("eight") / "lake", topics_max=1)
    job.end(COMMIT, job.half("first", real_topic="orders", real_queue_id=3))
    job.run(EPOCH_MS)
    for n in range(8):
        for real_queue_id in (0, 1):
            half = job.half(f"tx{n}", real_topic="orders", real_queue_id=real_queue_id)
            job.end(COMMIT, half)
        job.end(COMMIT, job.half("nowhere", real_topic=f"other{n}"))
        job.run(EPOCH_MS)
    return job


@pytest.fixture
def job(eight_epochs: WholeJob, tmp_path: Path) -> WholeJob:
    """Return a copy of that job."""
    return eight_epochs.copy(tmp_path / "lake")


def maintain(
    job: WholeJob,
    topics: Retention = Retention(),  # noqa: B008
    published: dict[int, int] | None = None,
    **configs: int,
) -> StepResult:
    """Take all steps of a round. Input: the settings' retention, and the configs of `orders`."""
    lake = Lake(job.lake.path, is_driver=True)
    maintenance = Maintenance(lake, replace(NOW_GONE, topics=topics), published=lambda _: published)
    plan = read_progress(lake).last
    assert plan is not None
    maintenance.resume_from(plan)
    if configs:
        maintenance.alter("orders", configs)
    done = StepResult()
    for table in maintenance.tables():
        done = sum(maintenance.steps(table, is_full=True), done)
    job.lake.reset()
    return done


def require_sound(job: WholeJob) -> None:
    """Check that nothing is taken for damage, and that epochs give the same rows again."""
    lake = Lake(job.lake.path)
    progress = read_progress(lake)
    require_intact(lake, progress, is_exclusive=True)
    require_recorded(lake)
    require_readable(lake, ["topics/1"])
    found = verify(lake).findings
    assert {f.invariant.name: f.rows[:3] for f in found if f.violations} == {}
    again = verification.verify(lake)
    assert again.is_equal, again.differences.to_pylist()[:5]


def offsets(job: WholeJob, queue_id: int = 0) -> list[int]:
    rows = Lake(job.lake.path).read("topics/1", ["queue_id", "queue_offset"]).to_pylist()
    return sorted(row["queue_offset"] for row in rows if row["queue_id"] == queue_id)


def test_a_driver_that_lost_the_lake_while_it_looked_at_messages_deletes_none(
    job: WholeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was suspended just then, while another altered the topic."""
    lost: list[str] = []
    floors = maintaining.floors

    def looking(*arguments: Any) -> Any:
        lost.append("suspended here")
        return floors(*arguments)

    def require_ours() -> None:
        if lost:
            raise OwnerError("another driver has the lake")

    monkeypatch.setattr(maintaining, "floors", looking)
    lake = Lake(job.lake.path, is_driver=True)
    limits = replace(NOW_GONE, topics=Retention(ms=1))
    maintenance = Maintenance(lake, limits, require_ours)
    plan = read_progress(lake).last
    assert plan is not None
    maintenance.resume_from(plan)
    before = offsets(job)
    with pytest.raises(OwnerError):
        list(maintenance.steps("topics/1", is_full=True))
    assert lost and offsets(job) == before


def test_old_messages_go_and_the_lake_is_as_sound_as_before(job: WholeJob) -> None:
    done = maintain(job, Retention(ms=3 * EPOCH_MS))
    assert done.rows_expired == 9
    assert offsets(job) == offsets(job, 1) == [4, 5, 6, 7]
    handle = Lake(job.lake.path).handle("topics/1")
    assert (deleted_epoch(handle), queue_floor(handle, 0), queue_floor(handle, 1)) == (5, 4, 4)
    require_sound(job)
    job.end(COMMIT, job.half("later", real_topic="orders", real_queue_id=0))
    job.run(EPOCH_MS)
    assert offsets(job) == [4, 5, 6, 7, 8]
    require_sound(job)


def test_what_a_publisher_has_not_published_stays_however_old_it_is(job: WholeJob) -> None:
    old = Retention(ms=3 * EPOCH_MS)
    maintain(job, old, {})
    assert offsets(job) == list(range(8))
    maintain(job, old, {0: 2, 1: 8, 3: 1})
    assert (offsets(job)[0], offsets(job, 1)[0]) == (2, 2)
    maintain(job, old, {0: 8, 1: 8, 3: 1})
    assert offsets(job) == [4, 5, 6, 7]
    require_sound(job)


def test_all_messages_can_be_old_and_the_queues_go_on_where_they_were(job: WholeJob) -> None:
    job.run(9 * EPOCH_MS)
    maintain(job, Retention(ms=EPOCH_MS))
    assert offsets(job) == []
    require_sound(job)
    with Consumer(job.lake.path, "new", ["orders"]) as consumer:
        assert consumer.position("orders", 0) == 8
        assert set(consumer.lag().values()) == {0}
    job.end(COMMIT, job.half("later", real_topic="orders", real_queue_id=0))
    job.run(EPOCH_MS)
    assert offsets(job) == [8]
    require_sound(job)


@pytest.mark.parametrize(
    ("own_ms", "of_settings", "first"),
    [(-1, Retention(ms=EPOCH_MS), 0), (5 * EPOCH_MS, Retention(), 2)],
)
def test_a_topics_own_retention_counts_and_forever_is_one(
    job: WholeJob, own_ms: int, of_settings: Retention, first: int
) -> None:
    maintain(job, of_settings, **{RETENTION_MS: own_ms})
    assert offsets(job) == list(range(first, 8))
    properties = Lake(job.lake.path).handle("topics/1").metadata().configuration
    assert properties["txlake.retention.ms"] == str(own_ms)


def test_a_topic_keeps_so_many_bytes(job: WholeJob) -> None:
    maintain(job, Retention(), **{RETENTION_BYTES: 1})  # merges come after: nine files
    assert offsets(job) == [7]
    require_sound(job)


def test_a_message_that_is_deleted_is_explained_as_one_that_was_delivered(job: WholeJob) -> None:
    maintain(job, Retention(ms=3 * EPOCH_MS))
    words = ["tx", "explain", "--lake", job.lake.path]
    gone = CliRunner().invoke(main, [*words, "tx0"]).output
    kept = CliRunner().invoke(main, [*words, "tx7"]).output
    said = "; deleted since: the topic keeps messages for some time only"
    assert gone.count(f"in epoch 2{said}") == 2, gone
    assert "in epoch 9" in kept
    assert said not in kept


def test_undeliverable_messages_stay(job: WholeJob) -> None:
    (table,) = [
        f"topics/{row['table_id']}"
        for row in job.lake.read("catalog").to_pylist()
        if row["topic"] == UNDELIVERABLE_TOPIC
    ]
    maintain(job, Retention(ms=EPOCH_MS, bytes=1))
    assert Lake(job.lake.path).read(table).num_rows == 8


def test_what_is_missing_beyond_the_floor_is_found(job: WholeJob) -> None:
    maintain(job, Retention(ms=3 * EPOCH_MS))
    DeltaTable(f"{job.lake.path}/topics/1").delete("queue_id = 0 AND queue_offset = 4")
    lake = Lake(job.lake.path)
    found = {f.invariant.name for f in verify(lake).findings if f.violations}
    assert {"queues_contiguous", "next_offsets_agree", "commits_arrive"} <= found
    assert {"rows_are_committed", "lake_is_whole"} <= found
    with pytest.raises(BrokenLakeError, match=r"the table topics/1 holds 16 rows, and held 17"):
        require_recorded(lake)


def test_a_crash_behind_any_step_leaves_a_sound_lake(job: WholeJob) -> None:
    limits = replace(NOW_GONE, topics=Retention(ms=3 * EPOCH_MS))
    plan = read_progress(job.lake).last
    assert plan is not None
    crashes = 0
    while True:
        maintenance = Maintenance(Lake(job.lake.path, is_driver=True), limits)
        maintenance.resume_from(plan)
        done = next(maintenance.steps("topics/1", is_full=True), StepResult())
        require_sound(job)
        if not (done.rows_expired or done.merges):
            break
        crashes += 1
    assert crashes == 1  # behind the deletion
    assert offsets(job) == [4, 5, 6, 7]


def consume(job: WholeJob, **options: Any) -> list[int]:
    """Return the offsets of queue 0 that a consumer with a commit at 2 gets."""
    with Consumer(job.lake.path, "points", ["orders"], queues={"orders": [0]}, **options) as one:
        return [message.queue_offset for message in one.poll(0.0)]


@pytest.fixture
def behind(job: WholeJob) -> WholeJob:
    """Return a job with a group that has read two messages, and whose next one is deleted."""
    with Consumer(job.lake.path, "points", ["orders"], queues={"orders": [0]}) as consumer:
        assert len(consumer.poll(0.0, max_records=2)) == 2
        consumer.commit()
    maintain(job, Retention(ms=3 * EPOCH_MS))
    return job


def test_a_consumer_whose_next_message_is_deleted_stops_and_names_both_offsets(
    behind: WholeJob,
) -> None:
    text = "topic orders queue 0: position 2, and the queue begins at 4: older messages are deleted"
    with pytest.raises(OffsetOutOfRangeError, match=text):
        consume(behind)
    require_sound(behind)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [4, 5, 6, 7]), ("latest", [])])
def test_or_goes_on_as_it_was_told_and_says_what_it_did_not_read(
    behind: WholeJob, policy: str, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert consume(behind, out_of_range_reset=policy) == expected
    (said,) = [record.getMessage() for record in caplog.records]
    assert "messages from 2 on are deleted, and were not read" in said


def test_the_log_is_asked_for_a_floor_only_where_a_queue_lacks_its_beginning(
    behind: WholeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = DeltaTable.transaction_version

    def asking(table: DeltaTable, app_id: str) -> int | None:
        asked.extend([app_id] if app_id.startswith("txlake-floor/") else [])
        return ask(table, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", asking)
    with Consumer(behind.lake.path, "new", ["orders"], queues={"orders": [0, 3]}) as consumer:
        assert asked == ["txlake-floor/0", "txlake-floor/3"]
        for _ in range(3):
            behind.end(COMMIT, behind.half("more", real_topic="orders", real_queue_id=0))
            behind.run(EPOCH_MS)
            assert consumer.poll(0.0)
            assert set(consumer.lag().values()) == {0}
    assert len(asked) == 2


def test_a_reader_of_a_queue_that_is_empty_again_and_again_knows_its_end(job: WholeJob) -> None:
    maintain(job, Retention(ms=0))
    with Consumer(job.lake.path, "points", ["orders"], queues={"orders": [3]}) as consumer:
        assert consumer.lag() == {("orders", 3): 0}
        for _ in range(2):
            job.end(COMMIT, job.half("rare", real_topic="orders", real_queue_id=3))
            job.run(EPOCH_MS)
            assert len(consumer.poll(0.0)) == 1

            job.run(EPOCH_MS)
            maintain(job, Retention(ms=0))
            assert consumer.lag() == {("orders", 3): 0}


def test_a_reader_under_which_messages_are_deleted_goes_on(job: WholeJob) -> None:
    with Consumer(job.lake.path, "points", ["orders"], queues={"orders": [0]}) as consumer:
        first = [message.queue_offset for message in consumer.poll(0.0, max_records=5)]
        maintain(job, Retention(ms=3 * EPOCH_MS))
        rest = [message.queue_offset for message in consumer.poll(0.0)]
    assert first + rest == list(range(8))
    with Consumer(job.lake.path, "new", ["orders"], queues={"orders": [0]}) as consumer:
        assert [message.queue_offset for message in consumer.poll(0.0)] == [4, 5, 6, 7]
        with pytest.raises(OffsetOutOfRangeError, match="offset 3; 4 to 8 are allowed"):
            consumer.seek("orders", 0, 3)

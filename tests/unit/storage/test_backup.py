"""A lake that is copied while it is written: the copy is the lake of one committed epoch, whole."""

from __future__ import annotations

import itertools
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from pipelines.replay import verify as replay
from storage.backup import back_up, copy, pinned
from storage.backup.copy import Backup
from storage.backup.pinned import pin
from storage.errors import BrokenLakeError, LakeError, NotALakeError
from storage.files.location import LakeLocation, lake_location
from storage.lake.integrity import require_intact
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.verify.run import verify
from tests.support.damage import ORDERS, WholeJob, consume, make_lake, run_job, txlake
from tests.support.decided_rows import EpochRows
from tests.support.maintenance_rounds import KEPT, NOW_GONE, rows_in, run_round
from tests.support.operator import said
from tests.support.wait import DEADLINE_S
from txlake import ConsumedMessage, Consumer
from txlake._dead_letters import DeadLetters
from txlake._retries import Attempt, ConsumerRetries, GroupRetries, RetryPolicy
from txlake.protocol import COMMIT, CREATE_TOPIC

EPOCHS, COPIES = 12, 4


def require_startable(path: Path) -> None:
    """Checks a lake as the start of a job does."""
    lake = Lake(str(path))
    lake.lake_id()
    require_intact(lake, read_progress(lake), is_exclusive=True)


def require_sound(path: Path) -> None:
    """Checks a lake as the start of a job does, and by all invariants."""
    require_startable(path)
    findings = verify(Lake(str(path))).findings
    assert [found.invariant.name for found in findings if found.violations] == []


def rows_until(path: Path, epoch: int) -> dict[str, list[str]]:
    """Returns the rows of each table that are of epochs up to one."""
    lake = Lake(str(path))
    found = {}
    for table in rows_in(path):
        rows = lake.read(table)
        kept = rows.filter(pc.less_equal(rows["epoch"], epoch))
        found[table] = sorted(map(repr, kept.to_pylist()))
    return found


def one_epoch(job: WholeJob) -> None:
    half = job.half(f"of epoch {job.epoch + 1}")
    job.half("pending", delay_level=2)
    job.end(COMMIT, half)
    job.run()


def test_copies_taken_beside_epochs_and_maintenance_are_each_one_committed_epoch(
    tmp_path: Path,
) -> None:
    job = run_job(tmp_path / "lake")
    failures: list[BaseException] = []
    enough = threading.Event()

    def work() -> None:
        try:
            for number in itertools.count():
                if number >= EPOCHS and enough.is_set():
                    return
                one_epoch(job)
                if number % 3 == 0:
                    run_round(tmp_path / "lake", KEPT, is_full=number % 6 == 0)
                    job.lake.reset()
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=work)
    writer.start()
    taken: list[int] = []
    try:
        while writer.is_alive() and len(taken) < COPIES:
            target = tmp_path / f"copy-{len(taken)}"
            taken.append(back_up(Lake(job.lake.path), lake_location(str(target))).epoch)
    finally:
        enough.set()
        writer.join()

    assert failures == []
    assert taken == sorted(taken)
    assert len(taken) == COPIES
    for number, epoch in enumerate(taken):
        target = tmp_path / f"copy-{number}"
        require_startable(target)
        assert rows_in(target) == rows_until(tmp_path / "lake", epoch)
    require_sound(tmp_path / "copy-0")
    assert replay(str(tmp_path / "copy-0")).is_equal


@pytest.mark.parametrize("is_first", [True, False], ids=["epochs first", "epochs last"])
def test_a_plain_copy_of_a_lake_that_is_written_is_refused(tmp_path: Path, is_first: bool) -> None:
    """It is why there is a command."""
    job = run_job(tmp_path / "lake")

    def plain_copy(of_epochs: bool) -> None:
        for table in (path.parent for path in (tmp_path / "lake").rglob("_delta_log")):
            if (table.name == "epochs") == of_epochs:
                shutil.copytree(table, tmp_path / "copy" / table.relative_to(tmp_path / "lake"))

    plain_copy(is_first)
    one_epoch(job)
    plain_copy(not is_first)

    with pytest.raises(BrokenLakeError):
        require_startable(tmp_path / "copy")


def test_an_epoch_that_is_half_written_is_left_out(tmp_path: Path) -> None:
    """Though consumers had all messages before it: some are read, and some refused."""
    job = run_job(tmp_path / "lake")
    listen(tmp_path / "lake", 1, is_good=False)
    consume(tmp_path / "lake")
    before = rows_in(tmp_path / "lake")
    half = job.half("later")
    job.end(COMMIT, half)
    job.run(commit=False)

    result = back_up(Lake(job.lake.path), lake_location(str(tmp_path / "copy")))

    assert result.epoch == job.epoch - 1
    require_sound(tmp_path / "copy")
    assert rows_in(tmp_path / "copy") == before


def test_a_copy_is_written_to_as_the_lake_was(tmp_path: Path) -> None:
    job = run_job(tmp_path / "lake")
    back_up(Lake(job.lake.path), lake_location(str(tmp_path / "copy")))
    job.go_on_in(Lake(str(tmp_path / "copy"), is_driver=True))
    one_epoch(job)
    run_round(tmp_path / "copy", NOW_GONE)
    require_sound(tmp_path / "copy")


def test_positions_of_consumers_are_never_ahead_of_the_copied_epoch(tmp_path: Path) -> None:
    """They are read before the epoch is chosen: what is committed later is not among them."""
    job = run_job(tmp_path / "lake")
    assert consume(tmp_path / "lake") > 0
    order = [table.name for table in pin(Lake(job.lake.path)).tables]
    assert (order[0], order[-2:]) == ("consumer_offsets", ["epochs", "lake"])

    back_up(Lake(job.lake.path), lake_location(str(tmp_path / "copy")))
    require_sound(tmp_path / "copy")
    assert consume(tmp_path / "copy") == 0  # the group goes on where it was


class ReadEarlyJob(WholeJob):
    """A paper job that is looked at when an epoch is written and not committed yet."""

    before_commit: Callable[[], None] = staticmethod(lambda: None)

    def _write(self, rows: EpochRows) -> None:
        super()._write(rows)
        self.before_commit()


def back_up_before_commit(job: ReadEarlyJob, target: Path, take: Callable[[], Any]) -> Backup:
    """Runs an epoch; before its commit consumers take of it, and a backup begins."""
    with ThreadPoolExecutor(1) as pool:
        copying: list[Future[Backup]] = []

        def begin() -> None:
            take()
            location = lake_location(str(target))
            copying.append(pool.submit(back_up, Lake(job.lake.path), location))
            wait(copying, timeout=1.0)

        job.before_commit = begin
        job.run()
        return copying[0].result()


def take_queues(path: Path) -> None:
    """Has a group take all queues of a topic, and read nothing."""
    with Consumer(str(path), "points", ["orders"]):
        pass


@pytest.mark.parametrize(
    ("act", "left"),
    [
        # Else a message that comes to the same offset later would be passed over.
        pytest.param(consume, 0, id="read its messages"),
        # Else the copy would lack the topic of these queues.
        pytest.param(take_queues, 1, id="taken its queues"),
    ],
)
def test_an_epoch_is_awaited_that_consumers_have_before_its_commit(
    tmp_path: Path, act: Callable[[Path], Any], left: int
) -> None:
    job = ReadEarlyJob(tmp_path / "lake")
    job.end(COMMIT, job.half("paid"))
    result = back_up_before_commit(job, tmp_path / "copy", lambda: act(tmp_path / "lake"))

    assert result.epoch == 1
    require_sound(tmp_path / "copy")
    assert consume(tmp_path / "copy") == left


def refuse(path: Path, *, retries_max: int = 16, is_settled: bool = True) -> None:
    """Writes of a message what a listener's refusal writes before the position passes it.

    Input: `is_settled`: with its row in `consumer_retries`, which comes after the dead letter.
    """
    with Consumer(str(path), "points", ["orders"]) as consumer:
        (message,) = consumer.poll(0.0)

    queue, at = (message.topic, message.queue_id), datetime.now(timezone.utc)
    attempts = [Attempt(queue, message.queue_offset, 0, 1, "no", at)]
    policy = RetryPolicy((1_000,), retries_max)
    retries = GroupRetries(ConsumerRetries(str(path / "consumer_retries")), "points")

    letters = [(row, message._asdict()) for row in retries.dying(attempts, policy)]
    DeadLetters(str(path / "consumer_dead_letters")).append(letters)
    if is_settled:
        retries.write(attempts, policy)


@pytest.mark.parametrize(
    "take",
    [
        pytest.param(consume, id="read"),
        pytest.param(refuse, id="refused"),
        pytest.param(partial(refuse, retries_max=0), id="given up"),
        pytest.param(partial(refuse, retries_max=0, is_settled=False), id="a dead letter alone"),
    ],
)
def test_an_epoch_of_which_consumers_have_messages_and_nobody_commits_is_named(
    tmp_path: Path, take: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = WholeJob(tmp_path / "lake")
    job.end(COMMIT, job.half("paid"))
    job.run()
    assert consume(tmp_path / "lake") == 1
    job.end(COMMIT, job.half("paid later"))
    job.run(commit=False)
    take(tmp_path / "lake")

    require_uncommitted_named(tmp_path, monkeypatch)


def test_an_epoch_that_has_made_queues_which_consumers_have_and_nobody_commits_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = WholeJob(tmp_path / "lake")
    job.command(CREATE_TOPIC, "topic:orders:2")
    job.run()
    take_queues(tmp_path / "lake")
    job.command(CREATE_TOPIC, "topic:orders:3")
    job.run(commit=False)

    assert back_up(Lake(job.lake.path), lake_location(str(tmp_path / "before"))).epoch == 1
    require_sound(tmp_path / "before")
    take_queues(tmp_path / "lake")
    require_uncommitted_named(tmp_path, monkeypatch)


def require_uncommitted_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that a backup awaits the commit of epoch 2 first, and then names it."""
    monkeypatch.setattr(pinned, "_COMMIT_S", 0.1)
    text = said("backup", str(tmp_path / "copy"), "--lake", str(tmp_path / "lake"), code=1)
    assert "have read messages or taken queues of epoch 2, which is not committed" in text
    assert not (tmp_path / "copy").exists()


def test_what_a_group_has_refused_comes_again_from_a_copy(tmp_path: Path) -> None:
    """The position is behind the message, which now stands in `consumer_retries` alone."""
    job = run_job(tmp_path / "lake")
    refused = listen(tmp_path / "lake", 1, is_good=False)
    consume(tmp_path / "lake")  # the others

    back_up(Lake(job.lake.path), lake_location(str(tmp_path / "copy")))

    require_sound(tmp_path / "copy")
    order = [table.name for table in pin(Lake(job.lake.path)).tables]
    assert order[:2] == ["consumer_offsets", "consumer_retries"]
    assert listen(tmp_path / "copy", len(refused), is_good=True) == refused


def listen(path: Path, messages_min: int, is_good: bool) -> set[str]:
    """Hands some messages to a listener, and returns the ids of all that it was handed."""
    handed: set[str] = set()

    with Consumer(str(path), "points", ["orders"]) as consumer:

        def listener(messages: Sequence[ConsumedMessage]) -> bool | None:
            handed.update(message.id for message in messages)
            if len(handed) >= messages_min:
                consumer.stop()
            return None if is_good else False

        deadline = threading.Timer(DEADLINE_S, consumer.stop)
        deadline.start()
        consumer.run(listener, batch_max=100, retry_delays_ms=[0 if is_good else 1_000])
        deadline.cancel()

    return handed


def test_an_interrupted_backup_is_no_lake_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run_job(tmp_path / "lake")
    target = lake_location(str(tmp_path / "copy"))
    real = copy._Copy._copy_file
    remaining = 0

    def stop_sometimes(self: copy._Copy, folder: str, name: str) -> int:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise InterruptedError
        return real(self, folder, name)

    monkeypatch.setattr(copy, "_THREADS", 1)
    monkeypatch.setattr(copy._Copy, "_copy_file", stop_sometimes)
    interrupted = 0
    while True:
        remaining = 10 * (interrupted + 1)
        try:
            result = back_up(Lake(job.lake.path), target)
            break
        except InterruptedError:
            interrupted += 1
        with pytest.raises(LakeError):
            Lake(target).lake_id()
        if interrupted == 1:
            one_epoch(job)  # it goes on at a later epoch

    assert interrupted > 1
    assert result.epoch == job.epoch
    assert result.copied_files < result.files
    require_sound(tmp_path / "copy")
    assert not (tmp_path / "copy" / copy._MARK).exists()


def test_a_backup_that_was_interrupted_in_its_last_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run_job(tmp_path / "lake")
    target = lake_location(str(tmp_path / "copy"))
    write_log = copy._Copy._write_log

    def stop_in_the_last(self: copy._Copy, table: str, log: Mapping[str, bytes]) -> None:
        if table != "lake":
            write_log(self, table, log)
            return
        write_log(self, table, dict([next(iter(log.items()))]))
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(copy._Copy, "_write_log", stop_in_the_last)
        with pytest.raises(InterruptedError):
            back_up(Lake(job.lake.path), target)

    back_up(Lake(job.lake.path), target)
    require_sound(tmp_path / "copy")

    # A lake stays as it is, whatever mark it has.
    (tmp_path / "copy" / copy._MARK).write_text(job.lake.lake_id())
    with pytest.raises(LakeError, match="is a lake already"):
        back_up(Lake(job.lake.path), target)


def test_logs_that_are_cut_while_files_are_copied_are_in_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run_job(tmp_path / "lake")
    before = rows_in(tmp_path / "lake")
    copy_all = copy._Copy._copy_all

    def copy_slowly(self: copy._Copy, *arguments: Any) -> None:
        copy_all(self, *arguments)
        one_epoch(job)
        run_round(tmp_path / "lake", replace(KEPT, log_retention_ms=0))

    monkeypatch.setattr(copy._Copy, "_copy_all", copy_slowly)
    back_up(Lake(job.lake.path), lake_location(str(tmp_path / "copy")))
    require_sound(tmp_path / "copy")
    assert rows_in(tmp_path / "copy") == before


def test_an_epoch_that_is_half_written_is_left_out_though_its_logs_were_cut_before(
    tmp_path: Path,
) -> None:
    job = run_job(tmp_path / "lake")
    run_round(tmp_path / "lake", replace(KEPT, log_retention_ms=0))
    job.lake.reset()
    before = rows_in(tmp_path / "lake")
    job.end(COMMIT, job.half("later"))
    job.run(commit=False)

    back_up(Lake(job.lake.path), lake_location(str(tmp_path / "copy")))
    require_sound(tmp_path / "copy")
    assert rows_in(tmp_path / "copy") == before


def test_a_place_where_something_is_stays_as_it_is(tmp_path: Path) -> None:
    lake = run_job(tmp_path / "lake").lake
    other = make_lake(tmp_path / "other")
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mine").write_text("mine")
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / copy._MARK).write_text(other.lake_id())

    for name, sentence in (
        ("other", "is a lake already"),
        ("files", "holds files that are no unfinished backup of this lake"),
        ("unfinished", "holds files that are no unfinished backup of this lake"),
        ("lake/inside", "lie in each other"),
        ("link/inside", "lie in each other"),
        ("lake", "lie in each other"),
        (".", "lie in each other"),
    ):
        before = sorted(map(str, tmp_path.rglob("*")))
        text = said("backup", str(tmp_path / name), "--lake", lake.path, code=1)
        assert sentence in text, name
        assert sorted(map(str, tmp_path.rglob("*"))) == before

    text = said("backup", "/proc/new", "--lake", lake.path, code=1)
    assert "the folder /proc/new cannot be made: No such file or directory" in text
    assert "is not a lake" in said(
        "backup", str(tmp_path / "x"), "--lake", str(tmp_path / "none"), code=1
    )


def test_of_two_backups_to_one_place_the_second_is_refused_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run_job(tmp_path / "lake")
    target = lake_location(str(tmp_path / "copy"))
    copy_all = copy._Copy._copy_all
    refused: list[str] = []

    def beside_another(self: copy._Copy, *arguments: Any) -> None:
        if not refused:
            text = said("backup", target.path, "--lake", job.lake.path, code=1)
            refused.append(text)
        copy_all(self, *arguments)

    monkeypatch.setattr(copy._Copy, "_copy_all", beside_another)
    back_up(Lake(job.lake.path), target)

    (text,) = refused
    assert re.fullmatch(rf"Error: the lake {target.path} is written by \S+:backup: .*\n", text)
    require_sound(tmp_path / "copy")

    # A run that ended between the lock and the mark has left a place that is free.
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "_driver.lock").touch()
    back_up(Lake(job.lake.path), lake_location(str(tmp_path / "new")))
    require_sound(tmp_path / "new")


def test_a_lake_that_cannot_be_read_is_named_and_not_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = run_job(tmp_path / "lake").lake
    reading = LakeLocation.reading
    listing = LakeLocation.filesystem
    refusal = PermissionError(13, "Permission denied", f"{lake.path}/half")

    class Refusing:
        def __getattr__(self, _: str) -> Any:
            raise refusal

    def refuse(method: Any, hidden: str) -> Any:
        def refusing(self: LakeLocation, table: str) -> Any:
            is_hidden = self.path == lake.path and table == hidden
            return Refusing() if is_hidden else method(self, table)

        return refusing

    for number, (name, method, hidden) in enumerate(
        [("filesystem", listing, "half/_delta_log"), ("reading", reading, "half")]
    ):
        with monkeypatch.context() as patch:
            patch.setattr(LakeLocation, name, refuse(method, hidden))
            target = str(tmp_path / f"copy-{number}")
            text = said("backup", target, "--lake", lake.path, code=1)
        assert text.startswith(f"Error: the disk of the lake {lake.path} refuses (Permission den")
        assert len(text.splitlines()) == 1


def test_what_the_lake_has_lost_is_named_and_no_copy_is_a_lake(tmp_path: Path) -> None:
    lake = run_job(tmp_path / "lake").lake
    (name, _), *_ = next(t for t in pin(lake).tables if t.name == ORDERS).files
    file = tmp_path / "lake" / ORDERS / name
    kept = file.read_bytes()

    file.unlink()
    text = said("backup", str(tmp_path / "copy"), "--lake", lake.path, code=1)
    assert f"has no file {ORDERS}/{name} any more" in text
    file.write_bytes(kept[:-1])
    text = said("backup", str(tmp_path / "copy"), "--lake", lake.path, code=1)
    assert f"{ORDERS}/{name} of the lake {lake.path} has {len(kept) - 1} bytes" in text
    file.write_bytes(kept)
    shutil.rmtree(tmp_path / "lake" / "outcomes")
    text = said("backup", str(tmp_path / "copy"), "--lake", lake.path, code=1)
    assert "the table outcomes of the lake" in text
    with pytest.raises(LakeError):
        Lake(str(tmp_path / "copy")).lake_id()


def test_a_log_that_is_cut_beyond_the_epoch_is_tried_again_and_named(tmp_path: Path) -> None:
    job = run_job(tmp_path / "lake")
    job.half("later")
    job.run(commit=False)
    run_round(tmp_path / "lake", NOW_GONE, tables=["half"])  # as nobody does beside a job
    text = said("backup", str(tmp_path / "copy"), "--lake", job.lake.path, code=1)
    assert "the log of table half" in text
    assert "log_retention_ms" in text
    with suppress(NotALakeError, BrokenLakeError):
        Lake(str(tmp_path / "copy")).lake_id()


def test_a_lake_without_an_epoch_and_the_commands_words(tmp_path: Path) -> None:
    job = WholeJob(tmp_path / "young")
    text = said("backup", str(tmp_path / "copy"), "--lake", job.lake.path)
    assert f"{tmp_path / 'copy'}: lake {job.lake.lake_id()} at epoch 0; " in text
    code, _ = txlake("verify", "--lake", str(tmp_path / "copy"))
    assert code == 0

    lake = run_job(tmp_path / "lake").lake
    output = said("backup", str(tmp_path / "json"), "--lake", lake.path, "-o", "json")
    assert '"epoch": 5' in output
    assert f'"target": "{tmp_path / "json"}"' in output

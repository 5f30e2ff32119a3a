"""A lake rebuilt from the landed records of another one, or filled from archived records.

Checks are not sent. The rows of an interrupted run stay: the next run goes on behind the last
committed epoch, and a table takes each epoch once.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pipelines.epoch.parameters import plan_limits, plan_parameters
from pipelines.errors import StartError
from pipelines.replay.archive import Archive, EpochBoundary, Partition
from pipelines.replay.epochs import RecordedAsker, ReplayedEpochs
from pipelines.replay.floor_copy import FloorCopy, below_floor
from pipelines.replay.kept_rows import KeptRows
from pipelines.replay.refill import OWNER, ArchiveRunner, Identity
from pipelines.replay.source import ProgressCallback, Source, read_ahead
from storage.errors import BrokenLakeError, LakeError
from storage.files.location import LakeLocation, lake_location
from storage.lake.aging import require_replayable
from storage.lake.buffered import BufferedLake
from storage.lake.epochs import Plan
from storage.lake.floor import Floor
from storage.lake.identity import infer_identity, require_empty
from storage.lake.integrity import require_intact, require_recorded, require_resumable
from storage.lake.lake import Lake
from storage.lake.lock import LakeLock
from storage.lake.open_table import changing
from storage.lake.progress import NO_PROGRESS, Progress, read_progress
from storage.schemas import DIGEST_FORMAT, FORMATS, TABLES
from storage.wire.record_kinds import KINDS


@dataclass(frozen=True)
class Rebuilt:
    """The epochs that a run added to the new lake; first and last are 0 if it added nothing.

    `floor_epoch`: the epoch up to which rows were copied; 0 if none were.
    """

    first_epoch: int
    last_epoch: int
    epochs: int
    transactions: int
    seconds: float
    floor_epoch: int = 0


def rebuild(
    lake: Lake | LakeLocation | str,
    into: LakeLocation | str,
    one_batch: bool = False,
    last_epoch: int | None = None,
    identity: Identity | None = None,
    progress: ProgressCallback | None = None,
) -> Rebuilt:
    """Makes a lake anew from the landed records of another one.

    The recorded epochs are run again, with their `epoch_at`, `known_at` and acknowledgements. With
    `one_batch` the records are put into as few epochs as memory allows, from half, op, schedule and
    admin alone. `identity` replaces the identity that the lake's own epochs give. The tables of
    landed records must be there, and for recorded epochs `checks` and `epochs`; the others can be
    lost. The rows below a floor are copied (`floor_copy.py`), so there all tables must be there.
    Errors: LakeError, StartError.
    """
    source = lake if isinstance(lake, Lake) else Lake(lake)
    target = lake_location(into)
    if target.overlaps(source.location):
        raise StartError(
            f"{target.path} and the lake {source.path} lie in each other, and no lake can be "
            "rebuilt into itself: name another place"
        )

    kept = KeptRows(source)
    below = below_floor(source)
    if one_batch:
        archive = Archive.of_lake(source, kept, 0 if below is None else below.floor.epoch)
        log_identity = identity or identity_of(source)
        return _with_lock(
            target, lambda lake: _rebuild_from(archive, lake, log_identity, progress, below)
        )

    _, format_version = infer_identity(source, FORMATS)
    if format_version >= DIGEST_FORMAT:  # format 1 cannot be checked
        require_recorded(source, (*KINDS, "checks", "epochs"))

    return _with_lock(
        target, lambda lake: _rebuild(Source(source), lake, kept, below, last_epoch, progress)
    )


def identity_of(lake: Lake) -> Identity:
    """Returns the log that a lake is made from. Errors: StartError if the lake has no epochs."""
    try:
        newest = read_progress(lake).last
    except BrokenLakeError:
        newest = None

    if newest is None:
        raise StartError(
            f"{lake.path} has no epochs that say which Kafka topics it is from: name the job's "
            "settings with --conf"
        )

    return Identity(
        newest.cluster_id, newest.topic_ids, plan_parameters(newest), plan_limits(newest)
    )


def fill(
    location: LakeLocation | str,
    archive: Archive,
    identity: Identity,
    progress: ProgressCallback | None = None,
) -> Rebuilt:
    """Lands and decides archived records in a lake, in new epochs.

    `epoch_at` of an epoch is when the broker stored its last record. An archive has no `known_at`,
    so time ends nothing: halves are neither checked nor discarded. Records that the lake has
    landed already are left out.
    Errors: StartError if records are missing between the lake's end and the archive's begin.
    """

    def write(lake: BufferedLake) -> Rebuilt:
        lake.create(_now())
        require_intact(lake, read_progress(lake), is_exclusive=True)
        return _fill(lake, archive, identity, progress)

    return _with_lock(lake_location(location), write)


def _with_lock(location: LakeLocation, write: Callable[[BufferedLake], Rebuilt]) -> Rebuilt:
    with ExitStack() as resources:
        lock = LakeLock(location, f"{socket.gethostname()}:{os.getpid()}:replay")
        resources.callback(lock.release)
        resources.enter_context(changing(location))

        target = BufferedLake(location)
        resources.callback(target.wait)
        return write(target)


def _rebuild(
    source: Source,
    target: BufferedLake,
    kept: KeptRows,
    below: FloorCopy | None,
    last_epoch: int | None,
    progress: ProgressCallback | None,
) -> Rebuilt:
    started = time.monotonic()
    newest = read_progress(source.lake).last
    if newest is None:
        raise LakeError(f"the lake {source.lake.path} has no committed epoch")

    epochs = ReplayedEpochs(target, source, RecordedAsker())
    last = min(last_epoch or newest.epoch, newest.epoch)
    held = read_progress(target) if target.is_table("epochs") else NO_PROGRESS
    floor_copy = below if held.last is None else None
    first = held.next_epoch if floor_copy is None else floor_copy.floor.epoch + 1

    if below is not None:
        require_replayable(source.lake, below.floor, min(first, last))
        _require_floor(source.lake, below.floor, last)
    if held.last is not None:
        require_resumable(target, held)

    target.create_tables()
    _check_same_history(source.lake, target, held)

    is_done = target.exists()
    if not is_done:
        _require_no_later_rows(target, held, last)

    count = 0
    floor_epoch = 0
    if first <= last or not is_done:  # all epochs can be there, and the `lake` row not yet
        with target.hidden_until_done(_now()):
            if floor_copy is not None:
                floor_copy.copy_into(target)
                floor_epoch = floor_copy.floor.epoch

            if first <= last:
                count = _add_epochs(source, target, epochs, kept, (first, last), progress)

    epochs.close()
    return to_result(first, last, count, started, floor_epoch)


def _add_epochs(
    source: Source,
    target: BufferedLake,
    epochs: ReplayedEpochs,
    kept: KeptRows,
    bounds: tuple[int, int],
    progress: ProgressCallback | None,
) -> int:
    """Runs recorded epochs again, and writes them. Output: the number of their transactions.

    Errors: LakeError if what they landed was deleted before it was read.
    """
    report = source.progress_reporter(*bounds, progress)
    epochs.resume_from(read_progress(target))
    count = 0

    for chunk in source.chunks(*bounds):
        for part in epochs.replay_chunk(chunk, report):
            kept.require(part.bounds[0] - 1)
            target.begin_flush()
            count += part.transactions

    target.wait()
    return count


def _require_no_later_rows(target: BufferedLake, held: Progress, last_epoch: int) -> None:
    """Checks that an interrupted run has written nothing of epochs after the last.

    It writes `epochs` after the other tables, and large messages of topics before all.
    Errors: StartError.
    """
    own = (table for table in TABLES if table not in ("lake", "epochs"))
    topics = itertools.takewhile(target.is_table, map("topics/{}".format, itertools.count(1)))
    written = [target.table(table).transaction() for table in (*own, *topics)]
    newest = max(held.next_epoch - 1, *written)

    if newest > last_epoch:
        raise StartError(
            f"{target.path} has rows of epoch {newest} of a rebuild that was interrupted: rebuild "
            "all epochs up to that one, or name a new place"
        )


def _require_floor(lake: Lake, floor: Floor, last_epoch: int) -> None:
    """Checks that the last epoch to rebuild knows the floor, since the rows below are deleted."""
    last = read_progress(lake, until=last_epoch).last
    if last is not None and last.floor != floor:
        raise StartError(
            f"epoch {last_epoch} of {lake.path} knows the floor at epoch {last.floor.epoch} only. "
            f"Its newest is at epoch {floor.epoch}, so a lake that ends there would lack rows: "
            "rebuild all epochs"
        )


def to_result(first: int, last: int, count: int, started: float, floor_epoch: int = 0) -> Rebuilt:
    """Returns the result of a run that began at `started` (monotonic)."""
    seconds = time.monotonic() - started
    if first > last:
        return Rebuilt(0, 0, 0, 0, seconds, floor_epoch)

    return Rebuilt(first, last, last - first + 1, count, seconds, floor_epoch)


def _check_same_history(source: Lake, target: Lake, held: Progress) -> None:
    """Checks that the epochs of a lake to go on with are those of the source."""
    newest = held.newest
    if newest is None:
        return

    plan = read_progress(source, until=newest.epoch).last
    if (
        held.unfinished is not None
        or plan is None
        or _identity_of_epoch(plan) != _identity_of_epoch(newest)
    ):
        raise StartError(
            f"{target.path} holds epoch {newest.epoch}, which is not that of {source.path}: it was "
            "made from something else, or a job went on with it; name a new place"
        )


def _identity_of_epoch(plan: Plan) -> tuple[object, ...]:
    return plan.epoch, plan.epoch_at, plan.ranges, plan.cluster_id, dict(plan.topic_ids)


def _rebuild_from(
    archive: Archive,
    target: BufferedLake,
    identity: Identity,
    progress: ProgressCallback | None,
    below: FloorCopy | None,
) -> Rebuilt:
    """Makes a lake of an archive, hidden until it is done; adds to one that was done before."""
    started = time.monotonic()
    floor_epoch = 0

    with ExitStack() as hidden:
        if target.exists():
            target.lake_id()
            require_intact(target, read_progress(target), is_exclusive=True)
        else:
            if below is None:
                _require_begun_here(target)
            hidden.enter_context(target.hidden_until_done(_now()))
            require_resumable(target, read_progress(target))
            if below is not None and read_progress(target).last is None:
                below.copy_into(target)
                floor_epoch = below.floor.epoch

        if below is not None:
            below.require_reached(target)
        filled = _fill(target, archive, identity, progress, below)

    return replace(filled, seconds=time.monotonic() - started, floor_epoch=floor_epoch)


def _require_begun_here(target: BufferedLake) -> None:
    """Checks that what stands in an unfinished lake is of a rebuild in one batch."""
    newest = read_progress(target).newest if target.is_table("epochs") else None
    if newest is None or newest.owner != OWNER:
        require_empty(target)


def _fill(
    target: BufferedLake,
    archive: Archive,
    identity: Identity,
    progress: ProgressCallback | None,
    below: FloorCopy | None = None,
) -> Rebuilt:
    started = time.monotonic()
    held = read_progress(target)
    if held.unfinished is not None and held.unfinished.owner != OWNER:
        raise StartError(
            f"epoch {held.unfinished.epoch} of {target.path} was begun by the job "
            f"({held.unfinished.owner}): let the job finish it first"
        )

    epochs = ReplayedEpochs(target, archive, RecordedAsker())
    epochs.resume_from(held)
    runner = ArchiveRunner(
        target, archive, identity, epochs, Floor() if below is None else below.floor
    )

    first = held.next_epoch
    if held.unfinished is not None:
        records, is_streamed = runner.read(held.unfinished.ranges)
        runner.run(held.unfinished, records, is_streamed, is_planned=True)

    boundaries = list(archive.boundaries())
    starts = _starts(archive, identity, below)
    total = _count(boundaries[-1], starts) if boundaries else 0

    for part in read_ahead(runner.slices(boundaries, starts)):
        if part.ranges:
            runner.run(runner.plan(part), part.records, part.is_streamed, is_planned=False)
        if progress is not None:
            progress(_count(part.boundary, starts), total)

    target.wait()
    epochs.close()
    last = epochs.progress.next_epoch - 1
    return to_result(first, last, runner.transactions, started)


def _starts(archive: Archive, identity: Identity, below: FloorCopy | None) -> dict[Partition, int]:
    """Returns where the records of each queue begin.

    Those of a lake with a floor begin where the floor's epoch ended, at the latest: offsets between
    that and the first record are a gap of the log, since no row above the floor is deleted.
    """
    starts = archive.first_offsets()
    at_floor = None if below is None else below.progress.last
    if at_floor is None:
        return starts

    topics = identity.limits.topics
    landed = at_floor.landed()
    return {
        (kind, queue): min(first, landed.get((topics[kind], queue), first))
        for (kind, queue), first in starts.items()
    }


def _count(boundary: EpochBoundary, starts: Mapping[Partition, int]) -> int:
    """Returns the number of records up to a boundary."""
    return sum(end - starts[partition] for partition, end in boundary.ends.items())


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)

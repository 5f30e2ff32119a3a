"""Rebuild a lake from what another one landed, or fill one from archived records.

No check is sent. What an interrupted run has written is kept: the next one goes on behind the last
committed epoch, and a table takes no row of an epoch that it holds already.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from checker.frames import RULE_VERSION, Parameters
from pipelines.epoch_settings import plan_limits, plan_parameters
from pipelines.errors import StartError
from pipelines.planned import offsets_of
from pipelines.replay.archive import Archive, Cut, Place
from pipelines.replay.epochs import RecordedAsker, ReplayedEpochs
from pipelines.replay.progress import Told, told, transactions
from pipelines.replay.source import Source, read_ahead
from storage.epochs import NO_PROGRESS, Plan, Progress, Range, read_progress
from storage.errors import BrokenLakeError
from storage.kafka_rows import ADMIN, HALF, KINDS, WireLimits
from storage.lake import Lake
from storage.lock import LakeLock
from storage.schemas import FORMAT_VERSION
from storage.staged import StagedLake
from storage.whole import require_begun, require_recorded, require_whole

OWNER = "replay"  # of epochs that were not run by a job
FORMATS = (1, FORMAT_VERSION)  # of lakes that can be rebuilt


@dataclass(frozen=True)
class Identity:
    """Which log a lake is made from, and the parameters of its epochs."""

    cluster_id: str
    topic_ids: Mapping[str, str]
    parameters: Parameters
    limits: WireLimits


@dataclass(frozen=True)
class Rebuilt:
    """What a run added to the new lake; first and last epoch are 0 when there was nothing to do."""

    first_epoch: int
    last_epoch: int
    epochs: int
    transactions: int
    seconds: float


def rebuild(
    lake: Lake | str,
    into: Lake | str,
    one_batch: bool = False,
    last_epoch: int | None = None,
    identity: Identity | None = None,
    progress: Told | None = None,
) -> Rebuilt:
    """Make a lake anew from what another one landed.

    The recorded epochs are run again, with their T, C(q) and acknowledgements; with `one_batch`
    the records are put into as few epochs as memory allows, from half, op, schedule and admin
    alone. `identity` stands for what the lake's own epochs would say. What is landed, and with
    recorded epochs `checks` and `epochs`, must be there; other tables may be lost.
    Errors: LakeError, StartError.
    """
    source = Lake(lake) if isinstance(lake, str) else lake
    path = into if isinstance(into, str) else into.path
    if Lake(path).path == source.path:
        raise StartError(f"{source.path} cannot be rebuilt into itself: name another place")
    if one_batch:
        return fill(path, Archive.of_lake(source), identity or identity_of(source), progress)
    _check_recorded(source)
    return _locked(path, lambda target: _rebuild(Source(source), target, last_epoch, progress))


def _check_recorded(source: Lake) -> None:
    """Check that what recorded epochs are run from is whole; format 1 did not write that down."""
    _, format_version = source.identity(FORMATS)
    if format_version == FORMAT_VERSION:
        require_recorded(source, (*KINDS, "checks", "epochs"))


def identity_of(lake: Lake) -> Identity:
    """Read which log a lake is made from. Errors: StartError when it has no epochs."""
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
    path: str,
    archive: Archive,
    identity: Identity,
    progress: Told | None = None,
) -> Rebuilt:
    """Land and decide archived records in a lake, in new epochs.

    T of an epoch is when the broker stored its last record. How far the operations were known is
    not recorded, so time does nothing: no check, no discard. Records that the lake has landed
    already add no rows.
    Errors: StartError where records are missing between the lake's end and the archive's begin.
    """
    return _locked(path, lambda target: _fill(target, archive, identity, progress))


def _locked(path: str, write: Callable[[StagedLake], Rebuilt]) -> Rebuilt:
    lock = LakeLock(path, f"{socket.gethostname()}:{os.getpid()}:replay")
    target = StagedLake(path)
    try:
        return write(target)
    finally:
        try:
            target.wait()
        finally:
            lock.release()


def _rebuild(
    source: Source, target: StagedLake, last_epoch: int | None, progress: Told | None
) -> Rebuilt:
    started = time.monotonic()
    newest = read_progress(source.lake).last
    epochs = ReplayedEpochs.over(source, target)
    assert newest is not None
    last = min(last_epoch or newest.epoch, newest.epoch)
    held = read_progress(target) if target.is_table("epochs") else NO_PROGRESS
    if held.last is not None:
        require_begun(target, held)
    target.create_tables()
    _check_same_history(source.lake, target, held)
    epochs.take_up(held)
    first = held.next_epoch
    count = 0
    if first <= last:
        tell = told(source.lake, first, last, progress)
        with target.unfinished(_now()):
            for chunk in source.chunks(first, last):
                epochs.replay_chunk(chunk, tell)
                target.begin_flush()
                count += transactions(chunk)
            target.wait()
    epochs.close()
    return added(first, last, count, started)


def added(first: int, last: int, count: int, started: float) -> Rebuilt:
    """Say what a run added that began at `started` (monotonic)."""
    seconds = time.monotonic() - started
    if first > last:
        return Rebuilt(0, 0, 0, 0, seconds)
    return Rebuilt(first, last, last - first + 1, count, seconds)


def _check_same_history(source: Lake, target: Lake, held: Progress) -> None:
    """Let a run go on only with what was begun from the same epochs."""
    if held.last is None and held.unfinished is None:
        return
    epoch = (held.unfinished or held.last).epoch  # type: ignore[union-attr]
    there = read_progress(source, until=epoch)
    plan = there.last if held.unfinished is None else None
    if plan is None or held.last is None or _log(plan) != _log(held.last):
        raise StartError(
            f"{target.path} holds epoch {epoch}, which is not that of {source.path}: it was made "
            "from something else, or a job went on with it; name a new place"
        )


def _log(plan: Plan) -> tuple[object, ...]:
    return plan.epoch, plan.epoch_at, plan.ranges, plan.cluster_id, dict(plan.topic_ids)


def _fill(
    target: StagedLake, archive: Archive, identity: Identity, progress: Told | None
) -> Rebuilt:
    started = time.monotonic()
    target.create(_now())
    held = read_progress(target)
    require_whole(target, held, is_alone=True)
    if held.unfinished is not None and held.unfinished.owner != OWNER:
        raise StartError(
            f"epoch {held.unfinished.epoch} of {target.path} was begun by the job "
            f"({held.unfinished.owner}): let the job finish it first"
        )
    epochs = ReplayedEpochs(target, identity.limits, archive, RecordedAsker())
    epochs.take_up(held)
    filler = _Filler(target, archive, identity, epochs)
    first = held.next_epoch
    if held.unfinished is not None:
        ranges = held.unfinished.ranges
        filler.run(held.unfinished, *filler.read(ranges), is_planned=True)
    cuts = list(archive.cuts())
    starts = archive.first_offsets()
    total = sum(end - starts[place] for place, end in cuts[-1].ends.items()) if cuts else 0
    for piece in read_ahead(filler.pieces(cuts, starts)):
        if piece.ranges:
            filler.run(filler.plan(piece), piece.records, piece.is_heavy, is_planned=False)
        if progress is not None:
            progress(sum(end - starts[place] for place, end in piece.cut.ends.items()), total)
    target.wait()
    epochs.close()
    last = first - 1 if epochs.last is None else epochs.last.epoch
    return added(first, last, filler.transactions, started)


@dataclass(frozen=True)
class _Piece:
    """A cut, the ranges of it that the lake has not, and their records; no ranges: none are new."""

    cut: Cut
    ranges: tuple[Range, ...]
    records: Mapping[str, pa.Table]
    is_heavy: bool


@dataclass
class _Filler:
    target: StagedLake
    archive: Archive
    identity: Identity
    epochs: ReplayedEpochs
    transactions: int = 0

    def pieces(self, cuts: Sequence[Cut], starts: Mapping[Place, int]) -> Iterator[_Piece]:
        """Read what each cut has and the lake has not."""
        last = self.epochs.last
        landed = {} if last is None else last.landed()
        for cut in cuts:
            ranges = self._ranges(cut, starts, landed)
            if all(r.from_offset == r.to_offset for r in ranges):
                yield _Piece(cut, (), {}, False)
                continue
            yield _Piece(cut, ranges, *self.read(ranges))
            landed = {r.place: r.to_offset for r in ranges}

    def _ranges(
        self, cut: Cut, starts: Mapping[Place, int], landed: Mapping[Place, int]
    ) -> tuple[Range, ...]:
        topics = self.identity.limits.topics
        ends = {(topics[kind], queue): end for (kind, queue), end in cut.ends.items()}
        begins = {(topics[kind], queue): offset for (kind, queue), offset in starts.items()}
        ranges = []
        for topic, queue in sorted({*landed, *ends}):
            place = topic, queue
            start = landed.get(place, begins.get(place, 0))
            end = max(start, ends.get(place, 0))
            if place in landed and begins.get(place, 0) > start:
                raise StartError(
                    f"{self.target.path} has landed {topic} partition {queue} up to offset "
                    f"{start}, and the records begin at {begins[place]}: what is between is missing"
                )
            ranges.append(Range(topic, queue, start, end, end))
        return tuple(ranges)

    def read(self, planned: Sequence[Range]) -> tuple[dict[str, pa.Table], bool]:
        """Read the records of some ranges, and say whether they are too large to be read whole."""
        records: dict[str, pa.Table] = {}
        is_heavy = False
        for kind in KINDS:
            topic = self.identity.limits.topics[kind]
            ranges = [r for r in planned if r.topic == topic and r.to_offset > r.from_offset]
            if ranges:
                rows, is_large = self.archive.read(kind, ranges)
                is_heavy = is_heavy or is_large
                records[kind] = rows.drop_columns("result") if kind == ADMIN else rows
        return records, is_heavy

    def plan(self, piece: _Piece) -> Plan:
        """Plan the epoch that lands a piece."""
        last = self.epochs.last
        return Plan(
            epoch=1 if last is None else last.epoch + 1,
            epoch_at=max(piece.cut.epoch_at, 0 if last is None else last.epoch_at),
            known_at={} if last is None else last.known_at,
            halves_known_at={} if last is None else last.halves_known_at,
            ranges=piece.ranges,
            cluster_id=self.identity.cluster_id,
            topic_ids=self.identity.topic_ids,
            next_offsets=offsets_of(self.epochs.state),
            parameters={**asdict(self.identity.parameters), "wire": asdict(self.identity.limits)},
            owner=OWNER,
            rule_version=RULE_VERSION,
        )

    def run(
        self, plan: Plan, records: Mapping[str, pa.Table], is_heavy: bool, *, is_planned: bool
    ) -> None:
        """Run an epoch and begin to write it; its plan is written before any other row of it.

        The epoch before may still be written meanwhile, unless this one's messages are too large
        to wait.
        """
        row = None if is_planned else self.epochs.chain_plan(plan)
        if is_heavy:
            self._write_plan(row)
        self.epochs.replay(plan, records, is_heavy=is_heavy, is_planned=True)
        if not is_heavy:
            self._write_plan(row)
        self.target.begin_flush()
        self.transactions += records[HALF].num_rows if HALF in records else 0

    def _write_plan(self, row: pa.Table | None) -> None:
        self.target.wait()  # the epoch before is committed first
        if row is not None:
            self.target.append_now("epochs", row)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)

"""Archived records put into new epochs of a lake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from checker.frames import RULE_VERSION, Parameters
from pipelines.errors import StartError
from pipelines.replay.archive import Archive, EpochBoundary, Partition
from pipelines.replay.epochs import ReplayedEpochs
from storage.lake.buffered import BufferedLake
from storage.lake.epochs import Plan, Range
from storage.lake.floor import FLOOR, Floor
from storage.lake.snapshots import Snapshot
from storage.schemas import SNAPSHOT
from storage.wire.record_kinds import ADMIN, HALF, KINDS, WireLimits

OWNER = "replay"  # of epochs that a replay runs


@dataclass(frozen=True)
class Identity:
    """The log that a lake is made from, and the parameters of its epochs."""

    cluster_id: str
    topic_ids: Mapping[str, str]
    parameters: Parameters
    limits: WireLimits


@dataclass(frozen=True)
class EpochSlice:
    """A boundary, the ranges up to it that are new to the lake, and their records."""

    boundary: EpochBoundary
    ranges: tuple[Range, ...]
    records: Mapping[str, pa.Table]
    is_streamed: bool


@dataclass
class ArchiveRunner:
    """The runner of an archive's records in new epochs of a lake, one after the other."""

    target: BufferedLake
    archive: Archive
    identity: Identity
    epochs: ReplayedEpochs
    copied_floor: Floor  # up to where the remaining rows were copied, else no floor
    transactions: int = 0

    def slices(
        self, boundaries: Sequence[EpochBoundary], starts: Mapping[Partition, int]
    ) -> Iterator[EpochSlice]:
        """Returns the ranges that are new to the lake with their records, one slice a boundary."""
        landed: Mapping[Partition, int] = self.epochs.progress.landed()

        for boundary in boundaries:
            ranges = tuple(self._ranges(boundary, starts, landed))
            new = ranges if any(r.from_offset < r.to_offset for r in ranges) else ()
            records, is_streamed = self.read(new)
            yield EpochSlice(boundary, new, records, is_streamed)
            landed = {r.topic_partition: r.to_offset for r in ranges}

    def _ranges(
        self,
        boundary: EpochBoundary,
        starts: Mapping[Partition, int],
        landed: Mapping[Partition, int],
    ) -> Iterator[Range]:
        topics = self.identity.limits.topics
        ends = {(topics[kind], queue): end for (kind, queue), end in boundary.ends.items()}
        first_offsets = {(topics[kind], queue): offset for (kind, queue), offset in starts.items()}

        for partition in sorted({*landed, *ends}):
            start = landed.get(partition, first_offsets.get(partition, 0))
            end = max(start, ends.get(partition, 0))
            if partition in landed and first_offsets.get(partition, 0) > start:
                raise StartError(
                    f"{self.target.path} has landed {partition[0]} partition {partition[1]} up to "
                    f"offset {start}, and the records begin at {first_offsets[partition]}: what is "
                    "between is missing"
                )

            yield Range(*partition, start, end, end)

    def read(self, planned: Sequence[Range]) -> tuple[dict[str, pa.Table], bool]:
        """Returns the records of some ranges, and whether they are too large to be read whole."""
        topics = self.identity.limits.topics
        new = [r for r in planned if r.to_offset > r.from_offset]
        ranges = {kind: [r for r in new if r.topic == topics[kind]] for kind in KINDS}
        read = {
            kind: self.archive.read(kind, of_kind) for kind, of_kind in ranges.items() if of_kind
        }

        records = {
            kind: rows.drop_columns("result") if kind == ADMIN else rows
            for kind, (rows, _) in read.items()
        }
        return records, any(is_large for _, is_large in read.values())

    def plan(self, part: EpochSlice) -> Plan:
        """Returns the plan of the epoch that lands a slice."""
        progress = self.epochs.progress
        last = progress.last
        floor = Floor() if last is None else last.floor
        snapshot = Snapshot() if last is None else last.snapshot

        if last is not None and last.epoch == self.copied_floor.epoch:
            # A job's floor rises later, but the deleted rows are not there.
            floor = self.copied_floor
        if last is not None and snapshot.epoch != last.epoch:
            snapshot = replace(snapshot, changes=snapshot.changes + progress.changes)

        return Plan(
            epoch=progress.next_epoch,
            epoch_at=max(part.boundary.epoch_at, 0 if last is None else last.epoch_at),
            known_at={} if last is None else last.known_at,
            halves_known_at={} if last is None else last.halves_known_at,
            ranges=part.ranges,
            cluster_id=self.identity.cluster_id,
            topic_ids=self.identity.topic_ids,
            parameters={
                **asdict(self.identity.parameters),
                "wire": asdict(self.identity.limits),
                FLOOR: floor.as_parameter(),
                SNAPSHOT: snapshot.as_parameter(),
            },
            owner=OWNER,
            rule_version=RULE_VERSION,
        )

    def run(
        self, plan: Plan, records: Mapping[str, pa.Table], is_streamed: bool, *, is_planned: bool
    ) -> None:
        """Runs an epoch and begins to write it; its plan is written before any other row of it.

        The write of the epoch before can still run, unless this one's messages are too large.
        """
        row = None if is_planned else self.epochs.begin(plan)

        if is_streamed:
            self._write_plan(row)

        self.epochs.replay(plan, records, is_streamed=is_streamed, is_planned=True)
        if not is_streamed:
            self._write_plan(row)

        self.target.begin_flush()
        self.transactions += records[HALF].num_rows if HALF in records else 0

    def _write_plan(self, row: pa.Table | None) -> None:
        self.target.wait()  # the epoch before is committed first
        if row is not None:
            self.target.append_now("epochs", row)

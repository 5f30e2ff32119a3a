"""The plan of an epoch: `epoch_at`, `known_at` of each queue, and whether there is work to do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from checker.decide import is_something_due
from checker.frames import QUEUES, RULE_VERSION, Instants, State
from checker.rules.known_at import EndOffsetSample, known_at, unreached
from pipelines.epoch.parameters import EpochSettings
from pipelines.kafka_client.connection import Partition
from pipelines.kafka_client.source_log import SourceLog
from storage.lake.epochs import Plan, Range
from storage.lake.floor import Floor
from storage.lake.progress import Progress
from storage.lake.snapshots import Snapshot
from storage.wire.record_kinds import HALF, OP


class Planner:
    """The maker of plans; it keeps the end offsets that it has asked Kafka for in advance."""

    def __init__(
        self, kafka: SourceLog, settings: EpochSettings, now_ms: Callable[[], int]
    ) -> None:
        self._kafka = kafka
        self._settings = settings
        self._now_ms = now_ms
        self._prefetched: EndOffsetSample | None = None

    def prefetch_end_offsets(self, partitions: Mapping[Partition, object]) -> None:
        """Asks Kafka for its end offsets before the next micro-batch is cut.

        That micro-batch lands all records up to them. So under load `known_at` of the next epoch is
        this instant, not `epoch_at` of the epoch before.
        Errors: KafkaAwayError.
        """
        queried_at = self._now_ms()
        self._prefetched = EndOffsetSample(queried_at, self._kafka.end_offsets(partitions))

    def drop_prefetched(self) -> None:
        """Drops the prefetched end offsets: a plan has them, or the epochs begin anew."""
        self._prefetched = None

    def plan(self, offset_ranges: Mapping[Partition, range], progress: Progress) -> Plan:
        """Returns a plan without its parameters: fixes `epoch_at`, then asks for end offsets.

        Input: the offsets that the epoch lands; where the epochs stand.
        """
        epoch = progress.next_epoch
        epoch_at = self._now_ms()
        ranges = self._ranges(offset_ranges)
        ends_queried_at = None if self._prefetched is None else self._prefetched.asked_at

        recorded = itertools.chain(*map(_recorded_samples, progress.recent))
        earlier = unreached(recorded, progress.landed())
        samples = (*earlier, *_samples(epoch_at, ends_queried_at, ranges))
        known, halves_known = self._known_at(epoch_at, samples, ranges, progress.last)

        return Plan(
            epoch=epoch,
            epoch_at=epoch_at,
            known_at=known,
            halves_known_at=halves_known,
            ranges=ranges,
            cluster_id=self._kafka.cluster_id,
            topic_ids=self._kafka.topic_ids,
            parameters={},
            owner=self._settings.owner,
            rule_version=RULE_VERSION,
            asked_at=ends_queried_at,
        )

    def with_parameters(self, plan: Plan, floor: Floor, snapshot: Snapshot) -> Plan:
        """Returns a plan as it is written. Input: its floor, and the newest snapshot up to it."""
        losses = self._kafka.accepted.values()
        return replace(plan, parameters=self._settings.plan_parameters(floor, snapshot, losses))

    def _ranges(self, offset_ranges: Mapping[Partition, range]) -> tuple[Range, ...]:
        """Returns the ranges of a plan, with Kafka's end offsets: now, and as prefetched."""
        ends = self._kafka.end_offsets(offset_ranges)
        prefetched = {} if self._prefetched is None else self._prefetched.end_offsets

        return tuple(
            Range(
                topic,
                partition,
                from_offset=offsets.start,
                to_offset=offsets.stop,
                end_offset=ends[topic, partition],
                asked_end_offset=prefetched.get((topic, partition)),
            )
            for (topic, partition), offsets in offset_ranges.items()
        )

    def _known_at(
        self,
        epoch_at: int,
        samples: tuple[EndOffsetSample, ...],
        ranges: tuple[Range, ...],
        last: Plan | None,
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Returns `known_at` and `halves_known_at` of each queue."""
        topics = self._settings.limits.topics
        landed = {r.topic_partition: r.to_offset for r in ranges}
        known_before = {} if last is None else last.known_at
        halves_known_before = {} if last is None else last.halves_known_at

        known = known_at(samples, landed, known_before, topics[OP])
        halves_known = known_at(samples, landed, halves_known_before, topics[HALF])

        # An op queue without a half queue of its number has no halves to wait for.
        half_queues = {r.partition for r in ranges if r.topic == topics[HALF]}
        op_queues = {r.partition for r in ranges if r.topic == topics[OP]}
        halves_known |= dict.fromkeys(op_queues - half_queues, epoch_at)
        return known, halves_known

    def is_due(self, plan: Plan, state: State) -> bool:
        """Returns whether an epoch is due without records: a check, discard, delivery or orphan.

        It does not depend on the floor.
        """
        instants = to_instants(plan, None, self._settings.limits.topics[HALF])
        return is_something_due(state, instants, self._settings.parameters)


def _recorded_samples(plan: Plan) -> tuple[EndOffsetSample, ...]:
    return _samples(plan.epoch_at, plan.asked_at, plan.ranges)


def _samples(
    epoch_at: int, ends_queried_at: int | None, ranges: tuple[Range, ...]
) -> tuple[EndOffsetSample, ...]:
    """Returns Kafka's end offsets for an epoch: before the batch was cut, and at `epoch_at`."""
    at_epoch = EndOffsetSample(epoch_at, {r.topic_partition: r.end_offset for r in ranges})
    if ends_queried_at is None:
        return (at_epoch,)

    prefetched = {
        r.topic_partition: r.asked_end_offset for r in ranges if r.asked_end_offset is not None
    }
    return EndOffsetSample(ends_queried_at, prefetched), at_epoch


def to_instants(plan: Plan, before: Plan | None, half_topic: str) -> Instants:
    """Returns `epoch_at`, and of each queue its `known_at`, its next offset and its floor.

    Input: `before`: the plan of the epoch before; None where nothing lands, or there is none.
    """
    earlier_known_at = {} if before is None else before.known_at
    half_ends = plan.queue_ends(half_topic)

    ids = sorted({*half_ends, *plan.known_at, *plan.halves_known_at})
    queues = pa.Table.from_pylist(
        [
            {
                "queue_id": queue,
                "known_at": plan.known_at.get(queue),
                "earlier_known_at": earlier_known_at.get(queue),
                "halves_known_at": plan.halves_known_at.get(queue),
                "half_end": half_ends.get(queue, 0),
                "floor": plan.floor.offsets.get(queue, 0),
            }
            for queue in ids
        ],
        schema=QUEUES,
    )
    return Instants(plan.epoch_at, queues)

"""One turn of a publisher: from its election until something ends it. It may begin at any time.

1. The lake and its newest committed epoch; who else publishes there, before anybody is fenced.
2. Kafka fences the process before, and ends its open transaction (`init_transactions`).
3. The progress is read. Before step 2 it could still change.
4. Progress, lake and destination are compared; topics are made, or grow.
5. What is committed is published, one Kafka transaction after the other. Each holds whole message
   transactions and the progress behind them.

Whatever fails ends the turn: its open transaction is aborted, and the next turn begins at step 1.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.publish.batch_limits import ALONE, QueueRows, cuts, has_large_epoch
from pipelines.publish.committed import (
    AHEAD_BYTES,
    CommittedEpochs,
    CommittedRows,
    Queue,
    open_lake,
    require_epochs,
)
from pipelines.publish.destination import (
    Destination,
    KafkaTopic,
    require_fit,
    require_same_end,
    require_same_topic,
    require_unpublished,
)
from pipelines.publish.errors import PublishError, RefusedRecordError
from pipelines.publish.progress import (
    NOTHING,
    ProgressLog,
    Stop,
    TopicProgress,
    stop_key,
    stop_record,
    topic_record,
)
from pipelines.publish.records import Record, RecordMaker
from pipelines.publish.stored_times import StoredTimes
from pipelines.publish.topics import (
    PublishedTopic,
    record_bytes_max,
    require_nobody_else,
    wanted_topics,
)
from pipelines.publish.transactions import RecordRefusedError, Sent, Transactions
from pipelines.settings import PublisherSettings, Settings
from pipelines.settings.publish import EARLIEST, LATEST, begin_at
from txlake import protocol as p
from txlake._lake import Lake, Topic
from txlake._paths import is_in_store
from txlake.errors import OffsetOutOfRangeError

log = logging.getLogger("txlake.publish")

_LOOK_S: Final = 0.02  # a look at a lake on a disk takes 0.05 ms
_STORE_LOOK_S: Final = 0.1  # there each look is a request
_STORE_LOOK_MAX_S: Final = 0.5
_GROWTH: Final = 1.5
_PLAN_ROWS: Final = 200_000  # what is looked at, of a backlog, to find where to cut
_PLAN_ROWS_MIN: Final = 1_000
_AHEAD_BYTES_MIN: Final = 262_144  # that a topic reads ahead where many are behind
_SLICE_ROWS: Final = 2_048  # that are Python's values at a time


class Turn:
    """One turn. Input: `is_active`: whether this process still is the elected one.

    Errors: FencedError; PublishError; RefusedRecordError; KafkaAwayError; LakeError, StoreAwayError
    (those of `txlake`).
    """

    def __init__(
        self,
        settings: Settings,
        publisher: PublisherSettings,
        stop: threading.Event,
        is_active: Callable[[], bool],
    ) -> None:
        self._settings, self._publisher = settings, publisher
        self._stop, self._is_active = stop, is_active
        self._record_bytes_max = record_bytes_max(settings, publisher)
        self._lake: Lake = open_lake(settings.lake.path, settings.lake.store)
        self._epochs = CommittedEpochs(self._lake)
        self._times = StoredTimes(self._lake)
        self._destination = Destination(publisher)
        self._transactions = self._new_transactions()
        self._log = ProgressLog()
        self._topics: dict[str, PublishedTopic] = {}
        self._begun_at: int | None = None  # the epoch of the first look
        self._is_done = False
        self.published = 0

    def run(self) -> None:
        """Publishes until the process is stopped or another one is elected."""
        try:
            self.begin()
            pause_s = self._first_pause_s()
            while not self._stop.is_set() and self._is_active():
                if self.publish_committed():
                    pause_s = self._first_pause_s()
                    continue
                self._stop.wait(pause_s)
                pause_s = self._next_pause_s(pause_s)
        finally:
            self.close()

    def close(self) -> None:
        """Lets go of Kafka: an open transaction is aborted."""
        self._transactions.close()

    def begin(self) -> None:
        """Takes the publisher over from the process before. Steps 1 to 4."""
        self._epochs.refresh()
        self._require_nobody_else(self._destination.progress())  # 1
        self._destination.make_progress_topic()
        self._transactions.init()  # 2
        self._log = self._destination.progress(is_patient=True)  # 3
        self._epochs.refresh()  # the process before may have published a newer one meanwhile
        self._require_nobody_else(self._log)
        for progress in self._mine().values():  # 4
            require_epochs(
                self._epochs, self._lake.path, epoch=progress.epoch, digest=progress.digest
            )
        self._open_topics()
        self._begun_at = self._epochs.epoch
        log.info(
            "publisher %s publishes %d topics from epoch %d on",
            self._publisher.name, len(self._topics), self._epochs.epoch,
        )  # fmt: skip

    def publish_committed(self) -> bool:
        """Publishes what is committed and not published yet. Output: whether there was any. 5"""
        if self._epochs.refresh():
            self._times.refresh()
            self._open_topics()
            self._is_done = False
        if self._is_done:  # 1,000 topics take a millisecond to look at
            return False
        behind = self._behind()
        self._is_done = not behind
        if not behind:
            return False

        try:
            for cut in self._cuts(behind):
                if self._stop.is_set() or not self._is_active():
                    break
                self._publish(cut)
        except OffsetOutOfRangeError as error:
            raise self._deleted() or error from error
        return True

    # What is published, and how far it is.

    def _mine(self) -> dict[str, TopicProgress]:
        return self._log.of(self._lake.lake_id, self._publisher.name)

    def _require_nobody_else(self, found: ProgressLog) -> None:
        for topic in wanted_topics(self._publisher, self._lake.topics()):
            require_nobody_else(found, self._lake.lake_id, self._publisher, topic)

    def _open_topics(self) -> None:
        """Opens topics that are new, or have more queues: destinations are made, and compared."""
        new = {
            name: topic
            for name, topic in wanted_topics(self._publisher, self._lake.topics()).items()
            if name not in self._topics or self._topics[name].queues < topic.queue_count
        }
        if not new:
            return
        for name in new:
            self._require_free_name(name)
            require_nobody_else(self._log, self._lake.lake_id, self._publisher, name)
            self._lake.require_whole(name)

        begun = self._open_destinations(new)
        for name, topic in new.items():
            progress = self._progress_of(name)
            rows = CommittedRows(self._lake, name, topic)
            if progress is None:
                progress = self._begun(name, topic, rows, begun[name])
            maker = RecordMaker(name, self._lake.lake_id, has_keys=self._publisher.key == "keys")
            skips = self._log.skipped(self._lake.lake_id, self._publisher.name, name)
            self._topics[name] = PublishedTopic(
                name, topic.queue_count, progress, rows, maker, skips
            )
            self._topics[name].seek()
        if begun:
            self._write_progress([self._topics[name].progress for name in begun])

    def _progress_of(self, name: str) -> TopicProgress | None:
        return self._topics[name].progress if name in self._topics else self._mine().get(name)

    def _open_destinations(self, topics: Mapping[str, Topic]) -> dict[str, KafkaTopic]:
        """Makes destinations, or lets them grow, and compares those that were there.

        Output: of the topics that were never published, their destinations.
        """
        names = {name: self._publisher.destination_of(name) for name in topics}
        found = self._destination.describe(names.values())
        there: dict[str, int] = {}

        for name, topic in topics.items():
            destination, queues = names[name], topic.queue_count
            progress, described = self._progress_of(name), found.get(names[name])
            if progress is None and described is None:
                self._destination.make(name, queues, self._record_bytes_max)
                continue
            if progress is not None:
                require_same_topic(progress, destination, described)
            assert described is not None  # it is the one that was published to
            if progress is not None and described.partitions < queues:
                self._destination.grow(destination, queues)
                self._transactions.hear_of(destination, queues)
                described = replace(described, partitions=queues)
            require_fit(name, queues, described, self._publisher, self._record_bytes_max)
            there[destination] = queues

        ends = self._destination.ends(there)
        for name in topics:
            if names[name] not in there:
                continue
            progress = self._progress_of(name)
            if progress is None:
                require_unpublished(name, names[name], ends[names[name]])
            else:
                require_same_end(progress, self._lake.lake_id, ends[names[name]].last)

        begun = [name for name in topics if self._progress_of(name) is None]
        now = self._destination.describe(names[name] for name in begun)
        return {name: now[names[name]] for name in begun}

    def _require_free_name(self, name: str) -> None:
        """Checks that a destination is none of our own topics. Errors: PublishError."""
        destination = self._publisher.destination_of(name)
        is_own_kafka = self._publisher.bootstrap_servers == self._settings.kafka.bootstrap_servers
        own = set(self._settings.kafka.topics().values()) if is_own_kafka else set()
        prefix = self._settings.kafka.check_topic_prefix if is_own_kafka else "\0"
        if destination == self._publisher.progress_topic or p.is_own_topic(
            destination, own, prefix
        ):
            raise PublishError(
                f"topic {name} would be published to {destination}, which is a Kafka topic of "
                "txlake's own; name another destination"
            )

    def _begun(
        self, name: str, topic: Topic, rows: CommittedRows, destination: KafkaTopic
    ) -> TopicProgress:
        """Returns the progress of a topic that was never published: where it begins."""
        ends = {q: self._epochs.ends.get((name, q), 0) for q in range(topic.queue_count)}
        begins = rows.begins(ends) if any(ends.values()) else dict.fromkeys(ends, 0)
        begin = self._publisher.begin
        known_epochs = [one.epoch for one in self._mine().values()]
        if self._begun_at is not None:
            known_epochs.append(self._begun_at)
        is_new = bool(known_epochs) and topic.epoch > max(known_epochs)

        if begin == EARLIEST or is_new:
            first = begins
        elif begin == LATEST:
            first = ends
        else:
            at = begin_at(begin)
            assert at is not None  # the settings were read
            first = {**ends, **rows.first_since(at)}
        return TopicProgress(
            name,
            self._publisher.destination_of(name),
            destination.topic_id,
            tuple(min(first[q], ends[q]) for q in sorted(ends)),
            tuple(NOTHING for _ in ends),
            self._epochs.epoch,
            self._epochs.digest,
        )

    def _behind(self) -> dict[Queue, int]:
        """Returns where each queue ends that has committed messages which are not published."""
        return {
            (name, queue_id): end
            for name, topic in self._topics.items()
            for queue_id in range(topic.queues)
            if (end := self._epochs.ends.get((name, queue_id), 0))
            > topic.progress.next_offset(queue_id)
        }

    def _deleted(self) -> PublishError | None:
        """Returns the error of a queue whose next message is deleted, if there is one."""
        for name, topic in self._topics.items():
            begins = topic.rows.begins(range(topic.queues))
            for queue_id, begin in begins.items():
                position = topic.progress.next_offset(queue_id)
                if position < begin:
                    return PublishError(
                        f"topic {name} queue {queue_id}: {position} is to be published next, and "
                        f"the queue begins at {begin}: older messages are deleted; `txlake publish "
                        f"skip --name {self._publisher.name} --topic {name} --queue {queue_id} "
                        f"--offset {position} --to {begin - 1}` goes past them"
                    )
        return None

    # Where it is cut.

    def _cuts(self, behind: Mapping[Queue, int]) -> Iterator[dict[Queue, int]]:
        """Yields where each transaction ends: by queue, the offset that comes after it."""
        messages = self._count(behind)
        if messages <= min(_PLAN_ROWS_MIN, self._publisher.transaction_messages_max):
            yield dict(behind)
            return

        ends_by_topic = _by_topic(behind)
        for name, ends in ends_by_topic.items():
            rows = self._topics[name].rows
            rows.bytes_max = max(_AHEAD_BYTES_MIN, AHEAD_BYTES // len(ends_by_topic))
            rows.read_ahead(ends)
        rows_max = self._rows_max()
        if messages <= rows_max:
            yield dict(behind)
            return
        yield from self._planned_cuts(behind, rows_max)

    def _planned_cuts(
        self, behind: Mapping[Queue, int], rows_max: int
    ) -> Iterator[dict[Queue, int]]:
        """Yields the cuts of what comes next of a backlog."""
        behind = {  # but for queues whose last messages were skipped
            (name, queue_id): end
            for (name, queue_id), end in behind.items()
            if self._topics[name].rows.positions[queue_id] < end
        }
        queues = list(behind)
        starts = [self._topics[name].rows.positions[queue_id] for name, queue_id in queues]
        looked_at = max(_PLAN_ROWS, 2 * rows_max)
        found: list[tuple[int, ...]] = []

        while not found:
            each = max(_PLAN_ROWS_MIN, looked_at // len(queues))
            rows = self._queue_rows(behind, each, has_units=False)
            if has_large_epoch(rows, rows_max):
                rows = self._queue_rows(behind, each, has_units=True)
            found = cuts(rows, rows_max)
            looked_at *= 2
        for counts in found:
            yield {
                queue: start + count
                for queue, start, count in zip(queues, starts, counts, strict=True)
            }

    def _queue_rows(
        self, behind: Mapping[Queue, int], rows_max: int, *, has_units: bool
    ) -> list[QueueRows]:
        """Returns what says where queues can be cut.

        Input: where each queue ends; how many rows of each; whether message transactions are told
        apart: else each message counts as one.
        """
        columns = ["epoch", *(("producer_group", "transaction_id") if has_units else ())]
        tables = {
            (name, queue_id): rows
            for name, ends in _by_topic(behind).items()
            for queue_id, rows in self._topics[name].rows.look(ends, rows_max, columns).items()
        }
        units = _units(tables[queue] for queue in behind) if has_units else None
        found, start = [], 0
        for queue, end in behind.items():
            count = tables[queue].num_rows
            name, queue_id = queue
            found.append(
                QueueRows(
                    tables[queue]["epoch"].to_numpy(),
                    np.full(count, ALONE) if units is None else units[start : start + count],
                    self._topics[name].rows.positions[queue_id] + count >= end,
                )
            )
            start += count
        return found

    def _rows_max(self) -> int:
        sizes = [topic.rows.row_bytes() for topic in self._topics.values()]
        largest = max(sizes, default=0.0)
        by_bytes = self._publisher.transaction_bytes_max / largest if largest else float("inf")
        return max(1, int(min(self._publisher.transaction_messages_max, by_bytes)))

    def _count(self, until: Mapping[Queue, int]) -> int:
        return sum(
            end - self._topics[name].rows.positions[queue_id]
            for (name, queue_id), end in until.items()
        )

    # One transaction.

    def _publish(self, cut: Mapping[Queue, int]) -> None:
        """Publishes up to a cut: messages and progress are one Kafka transaction.

        Errors: those of `Turn`; a record that is refused ends the turn with its name.
        """
        count = 0
        try:
            self._transactions.begin()
            for topic, queue_id, records in self._records(cut):
                count += self._transactions.send(topic.progress.destination, queue_id, records)
            moved = self._moved(cut)
            self._commit(moved)
        except RecordRefusedError as refused:
            raise self._name_refused(cut, refused) from refused

        for progress in moved:
            self._topics[progress.topic].progress = progress
        self.published += count

    def _commit(self, moved: list[TopicProgress]) -> None:
        """Writes the progress as the last of a transaction, and commits it."""
        who = (self._lake.lake_id, self._publisher.name)
        records: list[tuple[bytes, bytes | None]] = [
            topic_record(*who, progress) for progress in moved
        ]
        if who in self._log.stops:
            records.append((stop_key(*who), None))
        self._transactions.send_progress(self._publisher.progress_topic, records)
        self._transactions.commit()
        self._log.stops.pop(who, None)

    def _write_progress(self, moved: list[TopicProgress]) -> None:
        self._transactions.begin()
        self._commit(moved)

    def _records(
        self, cut: Mapping[Queue, int]
    ) -> Iterator[tuple[PublishedTopic, int, Iterator[Record]]]:
        for name, until in _by_topic(cut).items():
            topic = self._topics[name]
            for queue_id, taken in topic.rows.take(until):
                kept = topic.kept(queue_id, taken)
                for start in range(0, kept.num_rows, _SLICE_ROWS):
                    rows = kept.slice(start, _SLICE_ROWS)
                    yield topic, queue_id, topic.maker.records(rows, self._times.at_ms(rows))

    def _moved(self, cut: Mapping[Queue, int]) -> list[TopicProgress]:
        """Returns the progress of the topics that move up to a cut."""
        return [
            self._topics[name].moved(until, self._epochs.epoch, self._epochs.digest)
            for name, until in _by_topic(cut).items()
        ]

    # A record that is refused.

    def _name_refused(self, cut: Mapping[Queue, int], refused: Exception) -> Exception:
        """Returns the error that names the message, after writing down that the publisher stops."""
        self._transactions.close()
        careful = self._new_transactions(**{"batch.num.messages": 1})
        careful.init()
        for topic in self._topics.values():
            topic.seek()
        found = careful.find_refused(self._sent(cut))
        careful.close()

        self._transactions = self._new_transactions()
        if found is None:
            return PublishError(
                f"the destination refuses a batch of records and none of them alone ({refused}): "
                "was its max.message.bytes lowered?"
            )
        sent, text = found
        error = self._refusal(sent, text)
        self._transactions.init()
        self._transactions.begin()
        stop = Stop(str(error), error.topic, error.queue_id, error.queue_offset, _now_ms())
        record = stop_record(self._lake.lake_id, self._publisher.name, stop)
        self._transactions.send_progress(self._publisher.progress_topic, [record])
        self._transactions.commit()
        return error

    def _sent(self, cut: Mapping[Queue, int]) -> Iterator[Sent]:
        for topic, queue_id, records in self._records(cut):
            for record in records:
                yield Sent(topic.progress.destination, queue_id, record)

    def _refusal(self, sent: Sent, text: str) -> RefusedRecordError:
        headers = dict(reversed(sent.record.headers))
        topic = headers[p.REAL_TOPIC].decode()
        offset = int(headers[p.QUEUE_OFFSET])
        name = next(n for n, t in self._topics.items() if t.progress.destination
                    == sent.destination)  # fmt: skip
        return RefusedRecordError(
            f"the Kafka topic {sent.destination} does not take message {headers[p.PLACE]} of "
            f"transaction {headers.get(p.UNIQ_KEY)} (topic {topic}, queue {sent.partition}, offset "
            f"{offset}): {text}; let it, or `txlake publish skip --name {self._publisher.name} "
            f"--topic {name} --queue {sent.partition} --offset {offset}` goes past it",
            name,
            sent.partition,
            offset,
        )

    def _new_transactions(self, **more: int) -> Transactions:
        return Transactions(self._publisher, self._lake.lake_id, self._record_bytes_max, **more)

    def _first_pause_s(self) -> float:
        return _STORE_LOOK_S if is_in_store(self._lake.path) else _LOOK_S

    def _next_pause_s(self, pause_s: float) -> float:
        if not is_in_store(self._lake.path):
            return pause_s
        return min(pause_s * _GROWTH, _STORE_LOOK_MAX_S)


def _by_topic(offsets: Mapping[Queue, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (name, queue_id), offset in offsets.items():
        found.setdefault(name, {})[queue_id] = offset
    return found


def _units(tables: Iterable[pa.Table]) -> Any:
    """Returns the message transaction of each row as a number, ALONE where it has none."""
    names = pa.chunked_array(
        [
            chunk
            for rows in tables
            for chunk in pc.binary_join_element_wise(
                pc.fill_null(rows["producer_group"], ""), rows["transaction_id"], "\0"
            ).chunks
        ],
        pa.string(),
    )
    encoded = pa.concat_arrays(names.chunks).dictionary_encode()
    return pc.fill_null(encoded.indices, ALONE).to_numpy().astype(np.int64)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

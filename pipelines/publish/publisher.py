"""One turn of a publisher: from its election until something ends it. It may begin at any time.

1. The lake and its newest committed epoch; other publishers there, before any is fenced.
2. Kafka fences the process before, and ends its open transaction (`init_transactions`).
3. The progress is read. Before step 2 it could still change.
4. Progress, lake and destination are compared; topics are made, or grow.
5. Committed messages are published, one Kafka transaction after the other. Each holds whole message
   transactions and the progress behind them.

Whatever fails ends the turn: its open transaction is aborted, and the next turn begins at step 1.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pipelines.errors import JobError, KafkaAwayError, StartError
from pipelines.publish.batch_planner import BatchPlanner
from pipelines.publish.committed import CommittedEpochs, Queue, open_lake, require_epochs
from pipelines.publish.destination import Destination
from pipelines.publish.errors import FencedError, PublishError, RefusedRecordError
from pipelines.publish.operate import skip_command
from pipelines.publish.progress import (
    BROKEN_LAKE,
    NOTHING,
    REFUSED_START,
    ProgressLog,
    Stop,
    TopicProgress,
    start_record,
    stop_key,
    stop_record,
    topic_record,
)
from pipelines.publish.records import Record, own_headers
from pipelines.publish.stored_times import StoredTimes
from pipelines.publish.topic_opener import TopicOpener
from pipelines.publish.topics import PublishedTopic, group_by_topic, record_bytes_max
from pipelines.publish.transaction_limit import TransactionLimit
from pipelines.publish.transactions import (
    EACH_ALONE,
    AddressedRecord,
    RecordRefusedError,
    Transactions,
)
from pipelines.settings import PublisherSettings, Settings
from txlake import protocol as p
from txlake._counted import counted
from txlake._lake import Lake
from txlake._paths import is_in_store
from txlake.errors import LakeError, OffsetOutOfRangeError, StoreAwayError

log = logging.getLogger("txlake.publish")

_SURE_LOOK_S: Final = 10.0  # only a whole look finds what a clean-up of the log hides
_SLICE_ROWS: Final = 2_048  # that are Python's values at a time


@dataclass(frozen=True)
class _Pauses:
    """Between looks for news: the first one, the longest, and by how much one is longer."""

    first_s: float
    max_s: float
    growth: float


_DISK_PAUSES: Final = _Pauses(0.02, 0.05, 1.02)  # after two seconds without news the longest
_STORE_PAUSES: Final = _Pauses(0.1, 0.5, 1.5)  # there each look is a request


class Turn:
    """One turn. Input: `is_active`: whether this process still is the elected one; the limit of its
    transactions, which the turns of a process share.

    Errors: FencedError; PublishError; RefusedRecordError; KafkaAwayError; LakeError, StoreAwayError
    (those of `txlake`).
    """

    def __init__(
        self,
        settings: Settings,
        publisher: PublisherSettings,
        stop: threading.Event,
        is_active: Callable[[], bool],
        limit: TransactionLimit,
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._limit = limit
        self._stop = stop
        self._is_active = is_active
        self._record_bytes_max = record_bytes_max(settings, publisher)

        self._lake: Lake = open_lake(settings.lake.path, settings.lake.store)
        self._epochs = CommittedEpochs(self._lake)
        self._times = StoredTimes(self._lake)

        self._destination = Destination(publisher)
        self._transactions = self._new_transactions()
        self._log = ProgressLog()

        self._opener = TopicOpener(settings, publisher, self._lake, self._epochs, self._destination)
        self._topics = self._opener.topics
        self._planner = BatchPlanner(publisher, limit, self._topics)
        self._is_done = False
        self._look_at = 0.0
        self.published = 0

    def run(self) -> None:
        """Publishes until the process is stopped or another one is elected."""
        try:
            self.begin()
            pauses = _STORE_PAUSES if is_in_store(self._lake.path) else _DISK_PAUSES
            pause_s = pauses.first_s

            while not self._stop.is_set() and self._is_active():
                if self._may_have_news() and self.publish_committed():
                    pause_s = pauses.first_s
                    continue

                self._stop.wait(pause_s)
                pause_s = min(pause_s * pauses.growth, pauses.max_s)
        finally:
            self.close()

    def _may_have_news(self) -> bool:
        """Returns whether there might be messages to publish: a quick look, now and then True."""
        now = time.monotonic()
        if self._is_done and now < self._look_at and not self._epochs.may_have_news():
            return False

        self._look_at = now + _SURE_LOOK_S
        return True

    def close(self) -> None:
        """Closes the producer: an open transaction is aborted."""
        self._transactions.close()

    def begin(self) -> None:
        """Takes the publisher over from the process before. Steps 1 to 4."""
        with self._recording_stop():
            self._begin()

    def publish_committed(self) -> bool:
        """Publishes the messages that are committed and not published yet. Step 5.

        Output: whether there were any.
        """
        with self._recording_stop():
            return self._publish_committed()

    def record_refusal(self, error: Exception) -> bool:
        """Writes that Kafka has refused a request, which ended `run`.

        Output: whether Kafka takes that.
        """
        try:
            self._destination.progress()  # a client that is not let in at all is told at once
        except JobError:
            return False

        self._transactions = self._new_transactions()
        try:
            return self._write_stop(_stop_of(error))
        finally:
            self.close()

    @contextmanager
    def _recording_stop(self) -> Iterator[None]:
        """Writes an error that waiting does not mend into the progress topic, for the status."""
        try:
            yield
        except (StartError, RefusedRecordError, LakeError) as error:
            if not isinstance(error, StoreAwayError) and self._is_active():
                self._write_stop(_stop_of(error))
            raise

    def _begin(self) -> None:
        # 1. The lake, and other publishers.
        self._epochs.refresh()
        self._opener.require_nobody_else(self._destination.progress())
        self._destination.make_progress_topic()

        # 2. Kafka fences the process before.
        self._transactions.init()

        # 3. The progress.
        self._log = self._destination.progress(is_patient=True)
        self._epochs.refresh()  # the process before may have published a newer one meanwhile
        self._opener.require_nobody_else(self._log)

        # 4. Progress, lake and destination are compared.
        for progress in self._log.of(self._lake.lake_id, self._publisher.name).values():
            require_epochs(
                self._epochs, self._lake.path, epoch=progress.epoch, digest=progress.digest
            )
        self._open_topics()

        log.info(
            "publisher %s publishes %s from epoch %d on",
            self._publisher.name,
            counted(len(self._topics), "topic"),
            self._epochs.epoch,
        )

    def _publish_committed(self) -> bool:
        if self._epochs.refresh():
            self._times.refresh()
            self._open_topics()
            self._is_done = False
        if self._is_done:  # 1,000 topics take a millisecond to look at
            return False

        behind = self._unpublished_ends()
        self._is_done = not behind
        if not behind:
            self._clear_stop()
            return False

        try:
            for cut in self._planner.cuts(behind):
                if self._stop.is_set() or not self._is_active():
                    break
                self._publish(cut)
        except OffsetOutOfRangeError as error:
            raise self._deleted_error() or LakeError(str(error)) from error
        return True

    def _open_topics(self) -> None:
        """Opens new topics; writes the progress of those that begin now, and the first start."""
        new = self._opener.new()
        if new and self._opener.start is not None:
            # Since the start another publisher can have begun with their destinations.
            self._log = self._destination.progress(is_patient=True)

        begun = self._opener.open(new, self._log, self._transactions)
        if begun or self._has_new_start():
            self._transactions.begin()
            self._commit(begun)

    def _has_new_start(self) -> bool:
        """Returns whether the progress topic lacks since when the publisher has its topics."""
        publisher = (self._lake.lake_id, self._publisher.name)
        return self._log.starts.get(publisher) != self._opener.start

    def _clear_stop(self) -> None:
        """Deletes the record of why the publisher had stopped, if there is one."""
        if (self._lake.lake_id, self._publisher.name) in self._log.stops:
            self._transactions.begin()
            self._commit([])

    def _unpublished_ends(self) -> dict[Queue, int]:
        """Returns the ends of the queues that have committed messages which are not published."""
        behind = {}
        for name, topic in self._topics.items():
            for queue_id in range(topic.queues):
                end = self._epochs.ends.get((name, queue_id), 0)
                if end > topic.progress.next_offset(queue_id):
                    behind[name, queue_id] = end
        return behind

    def _deleted_error(self) -> PublishError | None:
        """Returns the error of a queue whose next message is deleted, if there is one."""
        for name, topic in self._topics.items():
            begins = topic.rows.begins(range(topic.queues))
            for queue_id, begin in begins.items():
                position = topic.next_offset(queue_id)
                if position < begin:
                    command = skip_command(
                        self._publisher.name, name, queue_id, position, begin - 1
                    )
                    return PublishError(
                        f"topic {name} queue {queue_id}: {position} is to be published next, and "
                        f"the queue begins at {begin}: older messages are deleted; `{command}` "
                        "goes past them"
                    )

        return None

    def _write_stop(self, stop: Stop) -> bool:
        """Writes down why the publisher stops; an open transaction is aborted.

        Output: whether Kafka takes that.
        """
        record = stop_record(self._lake.lake_id, self._publisher.name, stop)
        try:
            self._transactions.close()
            self._transactions = self._new_transactions()
            self._transactions.init()
            self._transactions.begin()
            self._transactions.send_progress(self._publisher.progress_topic, [record])
            self._transactions.commit()
        except JobError as error:
            log.warning("why the publisher stops is not in the progress topic: %s", error)
            return False
        return True

    # One transaction.

    def _publish(self, cut: Mapping[Queue, int]) -> None:
        """Publishes up to a cut: messages and progress are one Kafka transaction.

        Errors: those of `Turn`; a record that is refused ends the turn with its name.
        """
        count = 0
        messages = self._planner.count(cut)
        began_at = time.monotonic()

        try:
            self._transactions.begin()
            for topic, queue_id, records in self._records(cut):
                count += self._transactions.send(topic.progress.destination, queue_id, records)
            moved = self._progress_at(cut)
            self._commit(moved)
        except RecordRefusedError as refused:
            raise self._name_refused(cut, messages, refused) from refused
        except (FencedError, KafkaAwayError):
            self._limit.count_failed(time.monotonic() - began_at, messages)
            raise

        self._limit.count_committed(time.monotonic() - began_at)
        for progress in moved:
            self._topics[progress.topic].progress = progress
        self.published += count

    def _commit(self, moved: list[TopicProgress]) -> None:
        """Writes the progress as the last of a transaction, and commits it."""
        publisher = (self._lake.lake_id, self._publisher.name)
        records: list[tuple[bytes, bytes | None]] = [
            topic_record(*publisher, progress) for progress in moved
        ]
        start = self._opener.start
        if start is not None and self._has_new_start():
            records.append(start_record(*publisher, start))
        if publisher in self._log.stops:
            records.append((stop_key(*publisher), None))

        self._transactions.send_progress(self._publisher.progress_topic, records)
        self._transactions.commit()
        self._log.stops.pop(publisher, None)
        if start is not None:
            self._log.starts[publisher] = start

    def _records(
        self, cut: Mapping[Queue, int]
    ) -> Iterator[tuple[PublishedTopic, int, Iterator[Record]]]:
        """Yields the records up to a cut, some of one queue at a time."""
        for name, until in group_by_topic(cut).items():
            topic = self._topics[name]
            for queue_id, taken in topic.rows.take(until):
                kept = topic.without_skipped(queue_id, taken)
                at_ms = self._times.at_ms(kept)  # a look-up goes through the files that are kept
                for start in range(0, kept.num_rows, _SLICE_ROWS):
                    rows = kept.slice(start, _SLICE_ROWS)
                    times = at_ms.slice(start, _SLICE_ROWS)
                    yield topic, queue_id, topic.maker.records(rows, times)

    def _progress_at(self, cut: Mapping[Queue, int]) -> list[TopicProgress]:
        """Returns the progress of the topics that move up to a cut."""
        return [
            self._topics[name].progress_at(until, self._epochs.epoch, self._epochs.digest)
            for name, until in group_by_topic(cut).items()
        ]

    # A record that is refused.

    def _name_refused(
        self, cut: Mapping[Queue, int], messages: int, refused: Exception
    ) -> Exception:
        """Returns the error that names the message that the destination does not take."""
        self._transactions.close()
        self._transactions = finder = self._new_transactions(**EACH_ALONE)
        finder.init()
        for topic in self._topics.values():
            topic.seek()

        began_at = time.monotonic()
        try:
            refusal = finder.find_refused(self._addressed_records(cut))
        except (FencedError, KafkaAwayError):  # each alone, they took longer than Kafka allows
            self._limit.count_failed(time.monotonic() - began_at, messages)
            raise

        finder.close()
        self._transactions = self._new_transactions()
        if refusal is None:
            return PublishError(
                f"the destination refuses a batch of records and none of them alone ({refused}): "
                "was its max.message.bytes lowered?"
            )

        return self._refused_error(*refusal)

    def _addressed_records(self, cut: Mapping[Queue, int]) -> Iterator[AddressedRecord]:
        for topic, queue_id, records in self._records(cut):
            for record in records:
                yield AddressedRecord(topic.progress.destination, queue_id, record)

    def _refused_error(self, refused: AddressedRecord, text: str) -> RefusedRecordError:
        *_, headers = refused.record
        own = own_headers(headers)
        topic = own[p.REAL_TOPIC]
        offset = int(own[p.QUEUE_OFFSET])
        name = next(
            name
            for name, published in self._topics.items()
            if published.progress.destination == refused.destination
        )

        command = skip_command(self._publisher.name, name, refused.partition, offset, offset)
        return RefusedRecordError(
            f"the Kafka topic {refused.destination} does not take message {own[p.PLACE]} of "
            f"transaction {own.get(p.UNIQ_KEY)} (topic {topic}, queue {refused.partition}, "
            f"offset {offset}): {text}; let it, or `{command}` goes past it",
            name,
            refused.partition,
            offset,
        )

    def _new_transactions(self, **more: int) -> Transactions:
        return Transactions(
            self._publisher,
            self._lake.lake_id,
            self._record_bytes_max,
            self._stop.is_set,
            **more,
        )


def _stop_of(error: Exception) -> Stop:
    """Returns the record of an error that ends a publisher."""
    at = time.time_ns() // 1_000_000
    if isinstance(error, RefusedRecordError):
        return Stop(str(error), error.topic, error.queue_id, error.queue_offset, at)

    cause = BROKEN_LAKE if isinstance(error, LakeError) else REFUSED_START
    return Stop(str(error), "", NOTHING, NOTHING, at, cause)

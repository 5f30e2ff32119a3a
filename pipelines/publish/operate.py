"""The changes of operators to a publisher: messages to skip, or where another lake goes on.

Both write to the progress topic in one Kafka transaction, under the publisher's transactional id: a
publisher that runs is fenced, and begins again behind the new records. The change, its actor and
reason stay there as a record of its own.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, replace
from typing import Final

from pipelines.errors import OperatorError
from pipelines.publish.committed import (
    CommittedEpochs,
    CommittedRows,
    open_lake,
    require_epochs,
    require_same_messages,
)
from pipelines.publish.destination import (
    Destination,
    DestinationEnds,
    KafkaTopic,
    require_same_end,
    require_same_topic,
    require_unpublished,
)
from pipelines.publish.errors import PublishError
from pipelines.publish.progress import (
    NOTHING,
    Adoption,
    Key,
    ProgressLog,
    Skip,
    Stop,
    TopicProgress,
    adoption_record,
    skip_record,
    start_record,
    stop_key,
    topic_key,
    topic_record,
)
from pipelines.publish.topics import begin_of, first_offsets, record_bytes_max, wanted_topics
from pipelines.publish.transactions import Transactions
from pipelines.settings import PublisherSettings, Settings
from pipelines.settings.publish import EARLIEST, LATEST
from txlake._lake import Lake, Topic

PUBLISHED: Final = "published"
POSITIONS: Final = (PUBLISHED, EARLIEST, LATEST)
_OTHERS: Final = "say --position earliest or latest"
Record = tuple[bytes, bytes | None]


def skip_command(publisher: str, topic: str, queue_id: int, first: int, last: int) -> str:
    """Returns the command line that skips messages of a queue, as an operator can paste it."""
    words = ["txlake", "publish", "skip", "--name", publisher, "--topic", topic]
    words += ["--queue", str(queue_id), "--offset", str(first)]
    if last > first:
        words += ["--to", str(last)]
    return f'{shlex.join(words)} --reason "..." --conf job.toml'


@dataclass(frozen=True)
class Change:
    """The changes of an operator's command, in words and as records.

    `fences`: the lakes and publishers whose processes must write no more. `stop`: why the publisher
    has stopped, if it has.
    """

    lines: tuple[str, ...]
    records: tuple[Record, ...]
    fences: tuple[tuple[str, str], ...]
    stop: Stop | None = None


class Operator:
    """One publisher, as operators change it.

    Errors: OperatorError; PublishError; KafkaAwayError; LakeError.
    """

    def __init__(
        self, settings: Settings, publisher: PublisherSettings, actor: str, reason: str
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._actor = actor
        self._reason = reason

        self._lake: Lake = open_lake(settings.lake.path, settings.lake.store)
        self._owner = (self._lake.lake_id, publisher.name)
        self._epochs = CommittedEpochs(self._lake)
        self._destination = Destination(publisher)

    def skip(
        self, topic: str, queue_id: int, first: int, last: int, *, dry_run: bool = False
    ) -> Change:
        """Excludes messages from publishing: from one queue offset to another, inclusive.

        Errors: OperatorError for messages that are published, or not committed.
        """

        def change(log: ProgressLog) -> Change:
            self._epochs.refresh()
            progress = log.of(*self._owner).get(topic)
            if progress is None:
                raise OperatorError(
                    f"publisher {self._publisher.name} has not published topic {topic} yet"
                )

            position = progress.next_offset(queue_id)
            end = self._epochs.ends.get((topic, queue_id), 0)
            if not position <= first <= last < end:
                raise OperatorError(
                    f"topic {topic} queue {queue_id}: {_range(first, last)}; those that are "
                    f"committed and not published begin at {position} and end before {end}"
                )

            skip = Skip(topic, queue_id, first, last, self._actor, self._reason, _now_ms())
            # A lake that is put back without these messages is refused, as without published ones.
            seen = replace(progress, epoch=self._epochs.epoch, digest=self._epochs.digest)
            records = (
                skip_record(*self._owner, skip),
                topic_record(*self._owner, seen),
                self._start_record(log),
                (stop_key(*self._owner), None),
            )

            verb = "is" if first == last else "are"
            line = f"topic {topic} queue {queue_id}: {_range(first, last)} {verb} not published"
            return Change((line,), records, (), log.stops.get(self._owner))

        return self._write(change, dry_run=dry_run)

    def adopt(self, position: str, *, dry_run: bool = False) -> Change:
        """Sets where this lake goes on with the destinations that a start refuses.

        Input: `published`: behind the last records, which must be messages of this lake, too; a
        queue of which nothing was published begins where it did. `earliest`, `latest`: where the
        tables begin or end: the messages follow the records that are in the destination.

        A topic that a start refuses, and that is not published any more, has no position: its
        progress is deleted.
        """

        def change(log: ProgressLog) -> Change:
            self._epochs.refresh()
            topics = wanted_topics(self._publisher, self._lake.topics())
            names = {name: self._publisher.destination_of(name) for name in topics}
            existing = self._destination.describe(names.values())

            lines: list[str] = []
            records: list[Record] = []
            fences: set[tuple[str, str]] = set()

            for name, topic in topics.items():
                others = log.others(*self._owner, names[name])
                described = existing.get(names[name])
                if not others and not self._is_refused(name, topic, described, log):
                    continue
                if described is None and not dry_run:
                    described = self._make_topic(name, topic)

                published = self._ends(names[name], described.partitions if described else 0)
                progress = self._adopted_progress(name, topic, described, published, position, log)
                records += [(topic_key(*key), None) for key in others]
                records.append(topic_record(*self._owner, progress))
                records.append(self._adoption_record(position, progress, published))
                fences |= {key[:2] for key in others}
                lines.append(_adopted_line(progress, others))

            for name, progress in log.of(*self._owner).items():
                if name in topics or not self._is_of_another_history(progress):
                    continue
                records.append((topic_key(*self._owner, name), None))
                adoption = Adoption(name, position, self._actor, self._reason, _now_ms())
                records.append(adoption_record(*self._owner, adoption))
                lines.append(f"topic {name}: not published any more; how far it was is forgotten")

            if not records:
                raise OperatorError("there is nothing to adopt: a start refuses no destination")

            records.append(self._start_record(log))
            records.append((stop_key(*self._owner), None))
            return Change(tuple(lines), tuple(records), tuple(sorted(fences)))

        return self._write(change, dry_run=dry_run)

    def _start_record(self, log: ProgressLog) -> Record:
        """Returns the record of the first start, as it is before.

        Progress that is written with it has a newer epoch, in which topics can be that no start has
        seen.
        """
        start = log.start_of(*self._owner, self._publisher.topics, self._epochs.epoch)
        return start_record(*self._owner, start)

    def _adoption_record(
        self, position: str, progress: TopicProgress, published: DestinationEnds
    ) -> Record:
        adoption = Adoption(
            progress.topic,
            position,
            self._actor,
            self._reason,
            _now_ms(),
            progress.next_offsets,
            progress.topic_id,
            tuple(end for _, end in sorted(published.ends.items())),
        )
        return adoption_record(*self._owner, adoption)

    def _is_refused(
        self, name: str, topic: Topic, described: KafkaTopic | None, log: ProgressLog
    ) -> bool:
        """Returns whether a publisher that starts would refuse a topic's destination."""
        destination = self._publisher.destination_of(name)
        mine = log.of(*self._owner).get(name)
        if mine is not None and self._is_of_another_history(mine):
            return True

        try:
            if mine is not None:
                require_same_topic(mine, destination, described)
            if described is None:
                return False

            ends = self._ends(destination, min(described.partitions, topic.queue_count))
            if mine is None:
                require_unpublished(name, destination, ends)
            else:
                require_same_end(mine, self._lake.lake_id, ends.last)
                rows = CommittedRows(self._lake, name, topic)
                require_same_messages(self._epochs, rows, mine, ends.last)
        except PublishError:
            return True
        return False

    def _is_of_another_history(self, progress: TopicProgress) -> bool:
        """Returns whether the lake does not have the epoch up to which a topic is published."""
        try:
            require_epochs(
                self._epochs, self._lake.path, epoch=progress.epoch, digest=progress.digest
            )
        except PublishError:
            return True
        return False

    def _ends(self, destination: str, partitions: int) -> DestinationEnds:
        return self._destination.ends({destination: partitions})[destination]

    def _make_topic(self, name: str, topic: Topic) -> KafkaTopic:
        destination = self._publisher.destination_of(name)
        bytes_max = record_bytes_max(self._settings, self._publisher)
        self._destination.make(name, topic.queue_count, bytes_max)
        return self._destination.describe_made([destination])[destination]

    def _adopted_progress(
        self,
        name: str,
        topic: Topic,
        described: KafkaTopic | None,
        published: DestinationEnds,
        position: str,
        log: ProgressLog,
    ) -> TopicProgress:
        destination = self._publisher.destination_of(name)
        queues = range(topic.queue_count)
        ends = {q: self._epochs.ends.get((name, q), 0) for q in queues}
        rows = CommittedRows(self._lake, name, topic)

        # Whatever the position: a start compares them with the destination.
        lasts = dict.fromkeys(queues, NOTHING) | {
            q: last.queue_offset
            for q, last in published.last.items()
            if last.lake_id == self._lake.lake_id
        }

        if position == PUBLISHED:
            nexts = {
                q: self._after_last(name, q, published, ends[q], rows)
                if q in published.last
                else self._first_offset(name, topic, q, published, ends[q], rows, log)
                for q in queues
            }
        else:
            nexts = first_offsets(position, rows, ends)

        return TopicProgress(
            name,
            destination,
            "" if described is None else described.topic_id,
            tuple(nexts[q] for q in queues),
            tuple(lasts[q] for q in queues),
            self._epochs.epoch,
            self._epochs.digest,
            follows=True,
        )

    def _after_last(
        self, name: str, queue_id: int, published: DestinationEnds, end: int, rows: CommittedRows
    ) -> int:
        """Returns the queue offset behind a partition's last record, which this lake must have."""
        where = f"{self._publisher.destination_of(name)} partition {queue_id}"
        last = published.last[queue_id]
        if last.queue_offset >= end:
            raise OperatorError(
                f"the last record of {where} is queue offset {last.queue_offset}, and the queue "
                f"ends at {end} in this lake; {_OTHERS}"
            )

        message = rows.place_and_body(queue_id, last.queue_offset)
        if message is None:
            raise OperatorError(
                f"the last record of {where}, queue offset {last.queue_offset}, is deleted in this "
                f"lake: whether it is the same message cannot be known; {_OTHERS}"
            )
        if message != (last.place, last.value):
            raise OperatorError(
                f"the last record of {where}, queue offset {last.queue_offset}, is message "
                f"{last.place}; in this lake it is {message[0]}, or another body: it is another "
                f"topic, or another history; {_OTHERS}"
            )
        return last.queue_offset + 1

    def _first_offset(
        self,
        name: str,
        topic: Topic,
        queue_id: int,
        published: DestinationEnds,
        end: int,
        rows: CommittedRows,
        log: ProgressLog,
    ) -> int:
        """Returns where a queue begins whose partition has no record of a publisher."""
        destination = self._publisher.destination_of(name)
        where = f"{destination} partition {queue_id}"
        if published.begins.get(queue_id, 0) > 0:
            raise OperatorError(
                f"{where} has no record of a publisher any more: Kafka has deleted what was "
                f"published; {_OTHERS}"
            )

        # Who published there before knew where the queue begins.
        mine = log.of(*self._owner).get(name)
        others = [log.topics[key] for key in log.others(*self._owner, destination)]
        known = others if mine is None else [mine]
        if len(known) == 1 and known[0].last_offset(queue_id) == NOTHING:
            return min(known[0].next_offset(queue_id), end)

        start = log.start_of(*self._owner, self._publisher.topics, self._epochs.epoch)
        begin = begin_of(self._publisher, start, name, topic)
        if begin == LATEST and end > 0:
            raise OperatorError(
                f"{where} has no record of a publisher, and begin = 'latest' does not say where "
                f"queue {queue_id} of topic {name} began: give `begin` the instant at which the "
                f"publisher began, or {_OTHERS}"
            )
        return first_offsets(begin, rows, {queue_id: end})[queue_id]

    def _write(self, change, *, dry_run: bool) -> Change:  # type: ignore[no-untyped-def]
        """Returns the change; without `dry_run` writes it, after fencing who publishes."""
        if dry_run:
            return change(self._destination.progress())  # type: ignore[no-any-return]

        self._destination.make_progress_topic()
        before = change(self._destination.progress())
        for lake_id, name in before.fences:
            other = self._transactions(lake_id, replace(self._publisher, name=name))
            other.init()
            other.close()

        transactions = self._transactions(self._lake.lake_id, self._publisher)
        try:
            transactions.init()
            done: Change = change(self._destination.progress(is_patient=True))
            transactions.begin()
            transactions.send_progress(self._publisher.progress_topic, done.records)
            transactions.commit()
        finally:
            transactions.close()
        return done

    def _transactions(self, lake_id: str, publisher: PublisherSettings) -> Transactions:
        return Transactions(publisher, lake_id, record_bytes_max(self._settings, publisher))


def _range(first: int, last: int) -> str:
    return f"message {first}" if first == last else f"messages {first} to {last}"


def _adopted_line(progress: TopicProgress, others: list[Key]) -> str:
    taken_from = "".join(
        f", taken from publisher {name} of lake {lake}" for lake, name, _ in others
    )
    at = ", ".join(map(str, progress.next_offsets))
    return f"topic {progress.topic}: queues go on at {at} in {progress.destination}{taken_from}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


__all__ = ["EARLIEST", "LATEST", "POSITIONS", "PUBLISHED", "Change", "Operator", "skip_command"]

"""How far publishers are: the records of the progress topic, which Kafka compacts.

A publisher writes one record for each of its topics, in the Kafka transaction of the messages that
it is about. The key has lake, publisher and topic. Beside it stand records of the first start of a
publisher, of why it has stopped, and of the messages that operators have skipped and the
destinations they have adopted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, TypeVar

TOPIC, START, STOP, SKIP, ADOPTION = "topic", "start", "stop", "skip", "adoption"
ALL_TOPICS: Final = ""  # of a publisher whose settings name none
NOTHING: Final = -1  # of a queue of which no message was published
# Why a publisher stops: a message that the destination does not take; destination, progress and
# lake that do not fit together, or a request that Kafka refuses; a lake that is not whole.
REFUSED_RECORD, REFUSED_START, BROKEN_LAKE = "refused_record", "refused_start", "broken_lake"
CAUSES: Final = (REFUSED_RECORD, REFUSED_START, BROKEN_LAKE)

Key = tuple[str, str, str]  # lake id, publisher, topic
# The types of the members of a record's content, as the classes below name them.
_OFFSETS: Final = "tuple[int, ...]"
_TYPES: Final[Mapping[str, type]] = {"str": str, "int": int, "bool": bool, _OFFSETS: int}


@dataclass(frozen=True)
class TopicProgress:
    """How far one topic is published.

    `next_offsets`, `last_offsets`: by queue, the queue offset that comes next, and that of the
    newest record that was written, NOTHING if none was. `epoch`, `digest`: the newest committed
    epoch when this was written, and its row's digest. `topic_id`: Kafka's, of the destination.
    `follows`: whether records of another lake may stand before ours.
    """

    topic: str
    destination: str
    topic_id: str
    next_offsets: tuple[int, ...]
    last_offsets: tuple[int, ...]
    epoch: int
    digest: str
    follows: bool = False

    def next_offset(self, queue_id: int) -> int:
        """Returns the queue offset that comes next; a queue that came later begins at 0."""
        return self.next_offsets[queue_id] if queue_id < len(self.next_offsets) else 0

    def last_offset(self, queue_id: int) -> int:
        """Returns the queue offset of the newest record that was written, or NOTHING."""
        return self.last_offsets[queue_id] if queue_id < len(self.last_offsets) else NOTHING


@dataclass(frozen=True)
class Start:
    """Since when a publisher has its topics.

    `epochs`: the newest committed epoch at the start that had a topic in the settings first, by the
    topic's name, or by ALL_TOPICS. What is made after that epoch is new to the publisher.
    """

    epochs: Mapping[str, int] = field(default_factory=dict)

    def is_new(self, topic: str, epoch: int) -> bool:
        """Returns whether a topic was made after the publisher had it first."""
        named = [self.epochs[name] for name in (topic, ALL_TOPICS) if name in self.epochs]
        return bool(named) and epoch > min(named)

    def with_topics(self, topics: Collection[str], epoch: int) -> Start:
        """Returns the start of a publisher whose settings may name other topics now.

        Input: the topics that they name; the epoch of those that they did not name before. None is
        newer: the epochs of a lake that was put back from an older copy begin again there.
        """
        names = topics or (ALL_TOPICS, *self.epochs)
        of_all = self.epochs.get(ALL_TOPICS, epoch)
        return Start({name: min(self.epochs.get(name, epoch), of_all, epoch) for name in names})


@dataclass(frozen=True)
class Stop:
    """Why a publisher has stopped. Units: `at`, epoch ms.

    `cause`: one of CAUSES; `topic`, `queue_id`, `queue_offset`: of the message that is refused; ""
    and NOTHING if it is not one message.
    """

    reason: str
    topic: str
    queue_id: int
    queue_offset: int
    at: int
    cause: str = REFUSED_RECORD


@dataclass(frozen=True)
class Skip:
    """Messages that an operator said are not to be published: from `from_offset` to `to_offset`.

    Units: `at`, epoch ms; `to_offset` is inclusive.
    """

    topic: str
    queue_id: int
    from_offset: int
    to_offset: int
    actor: str
    reason: str
    at: int


@dataclass(frozen=True)
class Adoption:
    """An operator's decision that a lake goes on with a destination. Units: `at`, epoch ms.

    `next_offsets`: by queue, where it goes on; a queue that is not named begins at 0. `topic_id`:
    Kafka's, of the destination. `ends`: by its partition, Kafka's offset where it ended, behind
    the records of earlier runs; a partition that is not named had none.
    """

    topic: str
    position: str
    actor: str
    reason: str
    at: int
    next_offsets: tuple[int, ...] = ()
    topic_id: str = ""
    ends: tuple[int, ...] = ()

    def end_of(self, partition: int) -> int:
        """Returns the Kafka offset from which on a partition's records are of the new run."""
        return self.ends[partition] if partition < len(self.ends) else 0

    def rest_of(self, skip: Skip) -> Skip | None:
        """Returns what an earlier skip still skips: messages before those that come now.

        From there on the lake can have other messages at its offsets than when it was written.
        """
        named = skip.queue_id < len(self.next_offsets)
        end = self.next_offsets[skip.queue_id] if named else 0
        if skip.topic != self.topic or skip.to_offset < end:
            return skip
        return replace(skip, to_offset=end - 1) if skip.from_offset < end else None


Content = TypeVar("Content", TopicProgress, Stop, Skip, Adoption)


@dataclass
class ProgressLog:
    """The content of the progress topic. By lake and publisher; topics by topic, too."""

    topics: dict[Key, TopicProgress] = field(default_factory=dict)
    starts: dict[tuple[str, str], Start] = field(default_factory=dict)
    stops: dict[tuple[str, str], Stop] = field(default_factory=dict)
    skips: dict[tuple[str, str], list[Skip]] = field(default_factory=dict)
    adoptions: dict[tuple[str, str], list[Adoption]] = field(default_factory=dict)

    def of(self, lake_id: str, publisher: str) -> dict[str, TopicProgress]:
        """Returns the progress of one publisher by topic."""
        return {
            topic: progress
            for (lake, name, topic), progress in self.topics.items()
            if (lake, name) == (lake_id, publisher)
        }

    def start_of(self, lake_id: str, publisher: str, topics: Collection[str], newest: int) -> Start:
        """Returns since when a publisher that starts now has the topics of its settings.

        Those that its settings name now and did not name before: since now. All of a publisher
        that has published and has no record of its start, as older versions wrote none: since the
        newest epoch that it knew. Input: the topics that its settings name; the newest committed
        epoch.
        """
        owner = (lake_id, publisher)
        if owner in self.starts:
            return self.starts[owner].with_topics(topics, newest)

        known = [progress.epoch for progress in self.of(*owner).values()]
        return Start().with_topics(topics, min(max(known, default=newest), newest))

    def skips_of(self, lake_id: str, publisher: str, topic: str) -> dict[int, list[Skip]]:
        """Returns the skips of a topic, by queue, in the order of offsets."""
        skips_by_queue: dict[int, list[Skip]] = {}
        for skip in self.skips.get((lake_id, publisher), ()):
            if skip.topic == topic:
                skips_by_queue.setdefault(skip.queue_id, []).append(skip)

        for skips in skips_by_queue.values():
            skips.sort(key=lambda skip: skip.from_offset)
        return skips_by_queue

    def adoptions_of(self, topic_id: str) -> list[tuple[str, Adoption]]:
        """Returns the adoptions of a destination by any lake, the oldest first.

        Kafka's ends say which is older: they grow, and operators' clocks can be apart.
        Input: Kafka's id of the topic: one that is made anew has none. Output: with the lake's id.
        """
        adoptions = [
            (lake_id, adoption)
            for (lake_id, _), of_owner in self.adoptions.items()
            for adoption in of_owner
            if adoption.topic_id == topic_id
        ]
        return sorted(adoptions, key=lambda each: (sum(each[1].ends), each[1].at))

    def others(self, lake_id: str, publisher: str, destination: str) -> list[Key]:
        """Returns the other publishers of a destination, those of former times too."""
        return [
            key
            for key, progress in self.topics.items()
            if progress.destination == destination and key[:2] != (lake_id, publisher)
        ]


def after_skips(offset: int, skips: Iterable[Skip]) -> int:
    """Returns the first queue offset from this one on that is not skipped.

    Input: the skips of its queue, in the order of offsets.
    """
    for skip in skips:
        if skip.from_offset <= offset <= skip.to_offset:
            offset = skip.to_offset + 1
    return offset


def before_skips(offset: int, skips: Sequence[Skip]) -> int:
    """Returns the last queue offset up to this one that is not skipped. Input: as above."""
    for skip in reversed(skips):
        if skip.from_offset <= offset <= skip.to_offset:
            offset = skip.from_offset - 1
    return offset


def topic_record(lake_id: str, publisher: str, progress: TopicProgress) -> tuple[bytes, bytes]:
    """Returns the key and the value of a topic's record."""
    return topic_key(lake_id, publisher, progress.topic), _json(asdict(progress))


def topic_key(lake_id: str, publisher: str, topic: str) -> bytes:
    """Returns the key of a topic's progress."""
    return _json([TOPIC, lake_id, publisher, topic])


def is_topic_of(key: bytes | None, lake_id: str, publisher: str) -> bool:
    """Returns whether a key is that of a topic's progress, by its beginning."""
    begin = topic_key(lake_id, publisher, "").removesuffix(b'""]')
    return key is not None and key.startswith(begin)


def start_record(lake_id: str, publisher: str, start: Start) -> tuple[bytes, bytes]:
    """Returns the record of since when a publisher has its topics."""
    return _json([START, lake_id, publisher]), _json(asdict(start))


def stop_key(lake_id: str, publisher: str) -> bytes:
    """Returns the key of a publisher's stop."""
    return _json([STOP, lake_id, publisher])


def stop_record(lake_id: str, publisher: str, stop: Stop) -> tuple[bytes, bytes]:
    """Returns the record of a publisher's stop."""
    return stop_key(lake_id, publisher), _json(asdict(stop))


def skip_record(lake_id: str, publisher: str, skip: Skip) -> tuple[bytes, bytes]:
    """Returns the record of a skip; its key is its own, so that compaction keeps it."""
    key = [SKIP, lake_id, publisher, skip.topic, skip.queue_id, skip.from_offset, skip.at]
    return _json(key), _json(asdict(skip))


def adoption_record(lake_id: str, publisher: str, adoption: Adoption) -> tuple[bytes, bytes]:
    """Returns the record of an adoption; its key is its own, so that compaction keeps it."""
    return (
        _json([ADOPTION, lake_id, publisher, adoption.topic, adoption.at]),
        _json(asdict(adoption)),
    )


def read_log(records: Iterable[tuple[bytes | None, bytes | None]]) -> ProgressLog:
    """Returns the content of the progress topic; of a key the newest record holds.

    Of skips it has what the adoptions behind them leave.
    Input: records in the order in which they were written.
    Records of other writers, and of kinds that this version does not know, are skipped.
    """
    newest: dict[bytes, bytes | None] = {}
    for key, value in records:
        if key is not None:
            newest[key] = value

    log = ProgressLog()

    for key, value in newest.items():
        if value is not None:
            _add_record(log, key, value)
    return log


def _add_record(log: ProgressLog, key: bytes, value: bytes) -> None:
    try:
        kind, lake_id, publisher, *rest = json.loads(key)
        content = json.loads(value)
        if not isinstance(lake_id, str) or not isinstance(publisher, str):
            return

        owner = (lake_id, publisher)
        if kind == TOPIC:
            progress = _content_of(TopicProgress, content)
            if rest == [progress.topic]:
                log.topics[(*owner, progress.topic)] = progress
        elif kind == START:
            log.starts[owner] = Start({name: int(at) for name, at in content["epochs"].items()})
        elif kind == STOP:
            log.stops[owner] = _content_of(Stop, content)
        elif kind == SKIP:
            log.skips.setdefault(owner, []).append(_content_of(Skip, content))
        elif kind == ADOPTION:
            adoption = _content_of(Adoption, content)
            rests = map(adoption.rest_of, log.skips.get(owner, ()))
            log.skips[owner] = [rest for rest in rests if rest is not None]
            log.adoptions.setdefault(owner, []).append(adoption)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return


def _content_of(kind: type[Content], content: Any) -> Content:
    """Returns the content of a record as its class. Errors: TypeError if it is another's."""
    if not isinstance(content, dict):
        raise TypeError(content)

    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    made = kind(**values)

    for member in fields(kind):
        value = getattr(made, member.name)
        is_tuple = isinstance(value, tuple)
        parts = value if is_tuple else (value,)
        wanted_type = _TYPES[str(member.type)]
        if is_tuple != (member.type == _OFFSETS) or any(type(v) is not wanted_type for v in parts):
            raise TypeError(member.name)
    return made


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

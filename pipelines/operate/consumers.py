"""The offset from which a consumer group reads on, set by an operator: the SDK's compare-and-set.

Each queue gets a new generation without an owner. So a consumer that holds it, and was not seen,
learns at its next commit that its generation is over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from pipelines.amounts import parse_instant
from pipelines.errors import OperatorError
from pipelines.explain.consumer_positions import TABLE
from pipelines.explain.rows import Row
from pipelines.health.consumers import read_lags
from pipelines.health.topics import read_queues
from storage.lake.lake import Lake
from txlake._consumer_offsets import Commit, ConsumerOffsets, Key, OwnerSessions
from txlake._lake import Lake as SdkLake
from txlake._topic_reader import TopicReader

EARLIEST, LATEST = "earliest", "latest"
COLUMNS: Final = ("consumer_group", "topic", "queue_id", "queue_offset", "new_offset", "owner")


def parse_position(text: str) -> str | datetime:
    """Returns EARLIEST, LATEST or an offset as text, or an instant.

    Errors: ValueError with a sentence.
    """
    if text in (EARLIEST, LATEST) or re.fullmatch("[0-9]{1,18}", text):
        return text

    try:
        at = parse_instant(text)
    except ValueError:
        raise ValueError(
            f"{text!r}: earliest, latest, an offset, or an instant as 2026-01-31T12:00Z"
        ) from None
    if at.tzinfo is None:
        raise ValueError(f"{text!r}: say its time zone, as in ...Z")
    return at


def plan_reset(
    lake: Lake, group: str, topic: str, to: str | int | datetime, queues: Sequence[int]
) -> list[Row]:
    """Returns the offsets of a topic's queues for a group, now and after a reset. Output: COLUMNS.

    Input: `to`: EARLIEST, LATEST, an offset or an instant, as of `Consumer.seek_to_time`; `queues`:
    empty for all that the group has had.
    Errors: OperatorError when the group has not read such a queue, the queue has no such offset, or
    no committed epoch has made it.
    """
    held = {
        row["queue_id"]: row
        for row in read_lags(lake)
        if (row["consumer_group"], row["topic"]) == (group, topic)
    }
    ends = {row["queue_id"]: row for row in read_queues(lake, topic)}

    missing = sorted(set(queues) - held.keys())
    if not held or missing:
        subject = f"queue {missing[0]} of {topic}" if missing else f"topic {topic}"
        raise OperatorError(
            f"group {group} has read nothing of {subject} in the lake {lake.path}: nothing was "
            "written; `txlake lag` names what it reads"
        )

    queue_ids = list(queues or sorted(held))
    early = sorted(set(queue_ids) - ends.keys())
    if early:
        raise OperatorError(
            f"queue {early[0]} of {topic} is of an epoch that is not committed: nothing was "
            "written; start the job, which finishes the epoch, or name other queues"
        )

    at_instant = _offsets_at(lake, topic, queue_ids, to) if isinstance(to, datetime) else {}

    rows = []
    for queue_id in queue_ids:
        begin = ends[queue_id]["begin_offset"]
        end = ends[queue_id]["end_offset"]
        if isinstance(to, datetime):
            offset = max(begin, at_instant[queue_id])
        else:
            offset = int({EARLIEST: begin, LATEST: end}.get(str(to), to))
        if not begin <= offset <= end:
            raise OperatorError(
                f"queue {queue_id} of {topic} has offsets {begin} to {end}, not {offset}: nothing "
                "was written"
            )

        row = {
            "consumer_group": group,
            "topic": topic,
            "queue_id": queue_id,
            "queue_offset": held[queue_id]["queue_offset"],
            "new_offset": offset,
            "owner": held[queue_id]["owner"],
        }
        rows.append(row)

    return rows


def _offsets_at(lake: Lake, topic: str, queue_ids: Sequence[int], at: datetime) -> dict[int, int]:
    """Returns each queue's first offset at or after an instant, by the rule of the SDK."""
    location = lake.location
    sdk = SdkLake(location.path, location.storage_options)
    epoch = sdk.epoch_from(at)
    uri = sdk.uri(f"topics/{sdk.topics()[topic].table_id}")
    reader = TopicReader(topic, uri, sdk.storage_options)
    reader.refresh()

    if epoch == 0:
        return reader.begins(queue_ids)
    if epoch is None:
        return reader.ends(list(queue_ids))
    return reader.offsets_from_epoch(queue_ids, epoch)


def write_reset(lake: Lake, rows: Sequence[Row], session_ms: int) -> None:
    """Writes the rows that `plan_reset` returned, all or nothing.

    Input: `session_ms`: the session timeout of an owner that does not record its own, of an SDK
    before lake format 5. Errors: OperatorError when an owner is active; txlake.LakeError.
    """

    def decide(newest: Mapping[Key, Commit], now: datetime) -> list[Commit]:
        sessions = OwnerSessions(newest.values(), session_ms)
        commits = []

        for row in rows:
            key = (row["consumer_group"], row["topic"], row["queue_id"])
            held = newest[key]

            until = sessions.held_until(held)
            if until is not None and now <= until:
                raise OperatorError(
                    f"{held.owner} holds queue {row['queue_id']} of {row['topic']} until "
                    f"{until:%Y-%m-%d %H:%M:%S} UTC if it does not commit again: nothing was "
                    "written; close the consumers of the group first"
                )

            commits.append(Commit(*key, row["new_offset"], held.generation + 1, "", now))
        return commits

    options = lake.location.storage_options
    ConsumerOffsets(lake.table_path(TABLE), options, lake.lake_id()).write(decide)

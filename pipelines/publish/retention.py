"""Messages that publishers still need: retention keeps those that are not published yet.

The job asks when it is about to delete messages, once a minute at the most. Kafka is asked in a
thread of its own, since the destination can be away for hours, and the job decides meanwhile.
Until it has answered, and of a topic made since, nothing is deleted if there is a publisher at all.
An earlier answer counts until the next one is there. Positions only grow, but for an adoption that
publishes all again: until then what has expired can be deleted before it is published.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import Final

from pipelines.errors import JobError
from pipelines.publish.committed import open_lake
from pipelines.publish.destination import Destination
from pipelines.publish.progress import after_skips
from pipelines.publish.topics import wanted_topics
from pipelines.settings import Settings
from txlake.errors import LakeError

log = logging.getLogger("txlake.publish")

_FRESH_S: Final = 60.0


class PublishedPositions:
    """Up to where each queue of a topic's table is published, by all publishers of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: dict[str, dict[int, int] | None] = {}
        self._requested_at = -math.inf  # monotonic s
        self._thread: threading.Thread | None = None

    def __call__(self, table: str) -> Mapping[int, int] | None:
        """Returns the next offset of each queue to publish; None if no publisher has the topic.

        It does not wait: a queue that is not named, and a table that Kafka's last answer was not
        about, count as not published at all. Input: `topics/<table_id>`.
        """
        if not self._settings.publish:
            return None

        self._request()
        return self._known.get(table, {})

    def wait(self, timeout_s: float) -> None:
        """Asks Kafka, unless it was asked within a minute, and waits for the answer."""
        if self._settings.publish:
            self._request()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _request(self) -> None:
        is_recent = time.monotonic() - self._requested_at < _FRESH_S
        if is_recent or (self._thread is not None and self._thread.is_alive()):
            return

        self._requested_at = time.monotonic()
        self._thread = threading.Thread(target=self._read, name="txlake-published", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._known = read_positions(self._settings)
        except (JobError, LakeError) as error:
            log.warning("nobody knows what is published, so retention waits: %s", error)


def read_positions(settings: Settings) -> dict[str, dict[int, int] | None]:
    """Returns up to where each queue is published, by table; None for a topic without a publisher.

    All topics are named that the lake has. Of several publishers of a topic the one that is
    furthest behind counts. No publisher needs what operators have skipped, also before it is past.
    Errors: KafkaAwayError; LakeError.
    """
    lake = open_lake(settings.lake.path, settings.lake.store)
    topics = lake.topics()
    positions: dict[str, dict[int, int] | None] = {
        f"topics/{topic.table_id}": None for topic in topics.values()
    }

    for publisher in settings.publish.values():
        progress_log = Destination(publisher).progress()
        mine = progress_log.of(lake.lake_id, publisher.name)

        for name, topic in wanted_topics(publisher, topics).items():
            table = f"topics/{topic.table_id}"
            progress = mine.get(name)
            skips = progress_log.skips_of(lake.lake_id, publisher.name, name)
            nexts = {
                q: 0 if progress is None else after_skips(progress.next_offset(q), skips.get(q, ()))
                for q in range(topic.queue_count)
            }

            before = positions[table] or nexts
            positions[table] = {q: min(before.get(q, at), at) for q, at in nexts.items()}

    return positions

"""Positions of consumer groups in a lake, committed as the SDK does."""

from __future__ import annotations

from storage.lake.lake import Lake
from txlake._consumer_offsets import Commit, ConsumerOffsets


def commit_position(
    lake: Lake, group: str, topic: str, queue_id: int, queue_offset: int, owner: str = ""
) -> None:
    """Commit where a group reads on; without an owner its consumer has closed."""
    options = lake.location.storage_options
    offsets = ConsumerOffsets(lake.table_path("consumer_offsets"), options, lake.lake_id())
    offsets.write(
        lambda newest, now: [Commit(group, topic, queue_id, queue_offset, 1, owner, now, 30_000)]
    )

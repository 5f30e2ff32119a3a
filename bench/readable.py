"""When delivered messages could be read: the moments of a topic table's Delta commits."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc

from storage.lake.lake import Lake


def readable_at(table: Path) -> dict[int, float]:
    """Return when each epoch's messages became readable: when their commit's file was written.

    Units: s since 1970. A later rewrite of files (OPTIMIZE) does not count.
    """
    found: dict[int, float] = {}
    for log in sorted((table / "_delta_log").glob("*.json")):
        for line in log.read_text("utf-8").splitlines():
            added = json.loads(line).get("add")
            if added is None or not added["dataChange"]:
                continue
            epoch = json.loads(added["stats"])["minValues"]["epoch"]
            found.setdefault(epoch, log.stat().st_mtime)
    return found


def topic_table(lake: Lake, topic: str) -> str:
    """Name a real topic's table."""
    rows = Lake(lake.location).read("catalog", ["table_id"], pc.field("topic") == topic)
    return f"topics/{rows['table_id'][0].as_py()}"


def latencies_s(
    lake: Lake, folder: Path, topic: str, began_at: float, ended_at: float
) -> list[tuple[float, float]]:
    """Return (when it was sent, how long until it was readable) of messages sent in a span.

    Those that only a check ended (they have a tag) are left out. Units: s.

    Input: `folder`: where the lake's files are, also those of an S3 server of this machine.
    """
    table = topic_table(lake, topic)
    at = readable_at(folder / table)
    rows = Lake(lake.location).read(table, ["epoch", "born_at"], pc.field("tags").is_null())
    born = pc.cast(rows["born_at"], "int64").to_pylist()
    epochs = rows["epoch"].to_pylist()
    return [
        (us / 1e6, at[epoch] - us / 1e6)
        for us, epoch in zip(born, epochs, strict=True)
        if began_at <= us / 1e6 <= ended_at
    ]

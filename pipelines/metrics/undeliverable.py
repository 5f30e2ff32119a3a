"""How many messages are undeliverable at a start; from then on each epoch says what changes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import State
from checker.match.sql import run
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_pruned
from txlake.protocol import UNDELIVERABLE_TOPIC

_COUNT = """
SELECT count(*) AS count FROM messages m ANTI JOIN delivered d ON m.source = d.source
  AND m.half_queue_id = d.queue_id AND m.half_queue_offset = d.queue_offset
"""


def count_undeliverable(lake: Lake, last: Plan | None, state: State) -> int:
    """Returns how many undeliverable messages were not delivered since. Errors: LakeError."""
    is_it = pc.equal(state.topics["topic"], UNDELIVERABLE_TOPIC)
    tables = state.topics.filter(is_it)["table_id"].to_pylist()
    if last is None or not tables:
        return 0
    until: Bounds = {"epoch": (None, last.epoch)}
    columns = ["source", "half_queue_id", "half_queue_offset"]
    messages = read_pruned(lake, f"topics/{tables[0]}", columns, until)
    by_command = (pc.field("action") == "DELIVERED") & pc.field("admin_offset").is_valid()
    columns = ["source", "queue_id", "queue_offset"]
    delivered = read_pruned(lake, "deliveries", columns, until, by_command)
    found: pa.Table = run(_COUNT, messages=messages, delivered=delivered)
    return int(found["count"][0].as_py())

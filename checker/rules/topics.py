"""Which topics are made because a message names them, and which producer group makes each.

Source: PROTOCOL.md "Delivery", "New topics"; RocketMQ's autoCreateTopicEnable has no limit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import Parameters
from checker.frames_ops.columns import filter_rows, to_int64, to_mask
from txlake.protocol import SYSTEM_REAL_TOPICS


@dataclass(frozen=True)
class AutoCreated:
    """The topics that messages of this epoch name first.

    `group_by_topic`: those to make, each with the producer group whose message makes it. `refused`:
    those that each of their groups has too many topics for.
    """

    group_by_topic: dict[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()


def first_used(
    ordered: pa.Table, topics: pa.Table, existing: set[str], parameters: Parameters
) -> AutoCreated:
    """Returns the topics to make because a message names them.

    Names take turns in their order. The first message that can make its topic, in the order of
    delivery, does: its REAL_QID is below the default queue count, and its group has made fewer than
    `group_topics_max`. Messages without a group count as one group. `topics_max` counts all topics
    of users; TRANS_CHECK_MAX_TIME_TOPIC and TRANS_UNDELIVERABLE_TOPIC are made whenever they are
    needed.
    """
    if not parameters.auto_create_topics:
        return AutoCreated()
    fits = to_int64(ordered["real_queue_id"]) < parameters.default_queue_count
    named = pc.unique(ordered["real_topic"].filter(pa.array(fits))).to_pylist()
    names = sorted(set(named) - existing)
    if not names:
        return AutoCreated()
    is_first = fits & to_mask(pc.is_in(ordered["real_topic"], pa.array(names, pa.string())))
    groups: dict[str, list[str]] = {name: [] for name in names}
    for name, group in _pairs(filter_rows(ordered, is_first)):
        groups[name].append(group)
    made = Counter(topics["producer_group"].drop_null().to_pylist())
    room = parameters.topics_max - len(existing - set(SYSTEM_REAL_TOPICS))
    makers: dict[str, str] = {}
    refused: set[str] = set()
    for name in names:
        able = [group for group in groups[name] if made[group] < parameters.group_topics_max]
        if len(makers) >= room:
            break
        if able:
            makers[name] = able[0]
            made[able[0]] += 1
        else:
            refused.add(name)
    return AutoCreated(makers, frozenset(refused))


def _pairs(ordered: pa.Table) -> list[tuple[str, str]]:
    """Returns each topic with each producer group that names it, in the order of delivery."""
    key = ["real_topic", "producer_group"]
    pairs = ordered.group_by(key).aggregate([("rank", "min")]).sort_by("rank_min")
    return [(row["real_topic"], row["producer_group"] or "") for row in pairs.to_pylist()]

"""Which topics are made because a message names them, and which producer group makes each.

Source: docs/protocol/rules.md "Delivery", "New topics"; RocketMQ's autoCreateTopicEnable has no
limit.
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
    those of which each group has too many topics already.
    """

    group_by_topic: dict[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()


def auto_create(
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

    is_in_range = to_int64(ordered["real_queue_id"]) < parameters.default_queue_count
    named = pc.unique(ordered["real_topic"].filter(pa.array(is_in_range))).to_pylist()
    names = sorted(set(named) - existing)
    if not names:
        return AutoCreated()

    names_new_topic = is_in_range & to_mask(
        pc.is_in(ordered["real_topic"], pa.array(names, pa.string()))
    )

    groups: dict[str, list[str]] = {name: [] for name in names}
    for name, group in _topics_and_groups(filter_rows(ordered, names_new_topic)):
        groups[name].append(group)

    made_count = Counter(topics["producer_group"].drop_null().to_pylist())
    free_count = parameters.topics_max - len(existing - set(SYSTEM_REAL_TOPICS))

    group_by_topic: dict[str, str] = {}
    refused: set[str] = set()

    for name in names:
        if len(group_by_topic) >= free_count:
            break

        eligible = [
            group for group in groups[name] if made_count[group] < parameters.group_topics_max
        ]
        if eligible:
            group_by_topic[name] = eligible[0]
            made_count[eligible[0]] += 1
        else:
            refused.add(name)

    return AutoCreated(group_by_topic, frozenset(refused))


def _topics_and_groups(ordered: pa.Table) -> list[tuple[str, str]]:
    """Returns each topic with each producer group that names it, in the order of delivery."""
    key = ["real_topic", "producer_group"]
    pairs = ordered.group_by(key).aggregate([("rank", "min")]).sort_by("rank_min")
    return [(row["real_topic"], row["producer_group"] or "") for row in pairs.to_pylist()]

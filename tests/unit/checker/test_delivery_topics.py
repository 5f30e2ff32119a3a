"""How many topics the messages of one producer group make: PROTOCOL.md "Delivery", "New topics".

Expected are the messages of each real queue, as in test_delivery.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.cases import Result, case, table
from tests.support.steps import (
    Step,
    commit,
    create_topic,
    half,
    later,
    parameters,
    resume,
    schedule,
)

UNDELIVERABLE = "TRANS_UNDELIVERABLE_TOPIC 0"

LIMITED = [
    case(
        given=[parameters(group_topics_max=1), half(real_topic="a"), half(real_topic="b"),
               half(real_topic="c", group="other"), commit(1, 0),
               commit(2, producer_group="other")],
        expected={"a 0": ["half 0-0"], UNDELIVERABLE: ["half 0-1: group_topics_max"],
                  "c 2": ["half 0-2"]},
        why="a group makes as many topics as group_topics_max; another group is not held up",
    ),
    case(
        given=[parameters(group_topics_max=1), half(real_topic="a"), commit(0), later(),
               half(real_topic="b"), half(real_topic="b", group="other"), commit(1),
               commit(2, producer_group="other")],
        expected={"a 0": ["half 0-0"], "b 1": ["half 0-1"], "b 2": ["half 0-2"]},
        why="the first group that can make a topic makes it; then it is there for every group",
    ),
    case(
        given=[parameters(group_topics_max=1, topics_max=2), half(real_topic="a"),
               half(real_topic="b"), half(real_topic="c", group="other"),
               half(real_topic="d", group="third"), commit(0, 1),
               commit(2, producer_group="other"), commit(3, producer_group="third")],
        expected={"a 0": ["half 0-0"], "c 2": ["half 0-2"],
                  UNDELIVERABLE: ["half 0-1: group_topics_max", "half 0-3: topic_not_allowed"]},
        why="topics_max comes first: a name behind its limit has nothing to do with the group",
    ),
    case(
        given=[parameters(group_topics_max=1), schedule(real_topic="a"), schedule(real_topic="b"),
               schedule(real_topic="c", producer_group="g"), half(real_topic="d"), commit(0)],
        expected={"a 0": ["schedule 0-0"], "c 2": ["schedule 0-2"],
                  UNDELIVERABLE: ["schedule 0-1: group_topics_max", "half 0-0: group_topics_max"]},
        why="messages without a group are one group; delayed messages count for their own",
    ),
    case(
        given=[parameters(group_topics_max=1), half(real_topic="a", delay_level=1),
               half(real_topic="b"), commit(0, 1), later()],
        expected={"b 1": ["half 0-1"], UNDELIVERABLE: ["half 0-0: group_topics_max"]},
        why="a delayed message makes its topic when its time has come",
    ),
    case(
        given=[parameters(group_topics_max=1), create_topic("a:4"), half(real_topic="a"),
               half(real_topic="b"), commit(0, 1)],
        expected={"a 0": ["half 0-0"], "b 1": ["half 0-1"]},
        why="a topic that an operator makes counts for no group",
    ),
    case(
        given=[parameters(group_topics_max=1), half(real_topic="a"), half(real_topic="b"),
               commit(0, 1), later(), create_topic("b:1"), resume("undeliverable:0")],
        expected={"a 0": ["half 0-0"], UNDELIVERABLE: ["half 0-1: group_topics_max"],
                  "b 0": ["half 0-1"]},
        why="RESUME delivers it once an operator has made the topic",
    ),
]  # fmt: skip


@table(LIMITED)
def test_topics_of_a_group(given: Sequence[Step], expected: dict[str, list[str]]) -> None:
    assert Result(given).queues() == expected

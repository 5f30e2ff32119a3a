"""The drivers of a lake as Kafka describes them, and the name of their group."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipelines.kafka_client.acls import group_id
from pipelines.kafka_client.group_members import Members as Drivers
from pipelines.kafka_client.group_members import members_of as drivers_of


def member(client_id: str, *partitions: int) -> SimpleNamespace:
    """A member as Kafka describes it."""
    assignment = SimpleNamespace(topic_partitions=list(partitions))
    return SimpleNamespace(client_id=client_id, assignment=assignment)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param([], Drivers(), id="no driver runs"),
        pytest.param([member("a", 0)], Drivers("a"), id="one has the partition"),
        pytest.param([member("c"), member("a", 0), member("b")], Drivers("a", ("b", "c")),
                     id="the others stand by, in order"),
        pytest.param([member("b"), member("a")], Drivers(None, ("a", "b")),
                     id="Kafka is about to decide"),
        pytest.param([SimpleNamespace(client_id="a", assignment=None)], Drivers(None, ("a",)),
                     id="a member without an assignment"),
    ],
)  # fmt: skip
def test_the_member_with_the_partition_is_active(
    members: list[SimpleNamespace], expected: Drivers
) -> None:
    assert drivers_of(SimpleNamespace(members=members)) == expected


def test_a_group_is_of_one_lake_and_one_admin_topic() -> None:
    ids = {group_id(lake, topic) for lake in ("/a", "s3://b/a") for topic in ("admin", "other")}
    assert len(ids) == 4
    assert group_id("/a", "admin") == group_id("/a", "admin")
    assert all(name.startswith("txlake-driver-") for name in ids)

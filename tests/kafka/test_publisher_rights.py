"""The rights that `txlake acl print` prints for a publisher: they suffice, and each is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import JobError, KafkaRefusedError
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.group_members import MemberGroup
from pipelines.metrics.publisher_watch import PublisherWatch
from pipelines.publish.process import PublisherProcess
from pipelines.publish.retention import read_positions
from pipelines.publish.status import find_publishers
from pipelines.settings import Settings, parse
from tests.support.operator import said
from tests.support.publishers import PublishedLake, publish_all
from tests.support.rights_broker import PASSWORD, RightsBroker
from tests.support.toml import toml_of
from tests.support.wait import wait_until
from txlake import protocol as p

USER, OPERATOR, JOB = "txlake-publisher", "txlake-operator", "txlake-job"
METRICS = "txlake-metrics"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RightsBroker]:
    folder = tmp_path_factory.mktemp("publisher-rights")
    with RightsBroker(folder, (USER, OPERATOR, JOB, METRICS)) as started:
        yield started


class GuardedLake(PublishedLake):
    """A lake that is published to a Kafka which asks who its client is."""

    def __init__(self, guarded: RightsBroker, path: Path, prefix: str) -> None:
        # Outside the prefix, so that no right on the destinations holds for it.
        progress = f"progress-of-{prefix}"
        super().__init__(path, guarded.bootstrap_servers, prefix, progress_topic=progress)
        self.guarded = guarded
        self.secret = path.parent / "password"
        self.secret.write_text(PASSWORD)

    def values_of(self, user: str, **publisher: Any) -> dict[str, Any]:
        client = self.guarded.client(user)
        del client["sasl.password"]
        kafka = {
            "bootstrap_servers": self.guarded.roles_server,
            "client": {**client, "sasl.password_file": str(self.secret)},
        }
        return {**self.values(main=publisher), "kafka": kafka}

    def settings_of(self, user: str, **publisher: Any) -> Settings:
        return parse(self.values_of(user, **publisher), "test")

    def conf(self, user: str) -> str:
        conf = self.path.parent / f"{user}.toml"
        conf.write_text(toml_of(self.values_of(user)))
        return str(conf)

    def rights(self, *roles: str) -> list[dict[str, Any]]:
        words = [word for role in roles for word in ("--role", role)]
        printed = said("acl", "print", "--conf", self.conf(USER), "-o", "json", *words)
        return list(json.loads(printed))


def grow_and_publish(lake: GuardedLake) -> None:
    """Do all that a publisher does: make a topic, publish, let it grow, go on where it was."""
    settings = lake.settings_of(USER)
    lake.send({"body": b"one", "real_queue_id": 1})
    publish_all(settings)
    lake.job.command(p.CREATE_TOPIC, "topic:orders:6")
    lake.job.run()
    lake.send({"body": b"two", "real_queue_id": 5}, {"body": b"three", "real_queue_id": 1})
    publish_all(settings)


def test_a_publisher_can_do_its_work_with_the_printed_rights_and_without_any_of_them_not(
    guarded: RightsBroker, tmp_path: Path
) -> None:
    lake = GuardedLake(guarded, tmp_path / "lake", "whole")
    rights = lake.rights("publisher")
    guarded.give(rights)
    grow_and_publish(lake)
    lake.require_published()

    # Names of its own for each right that is missing, so that nothing is there from before.
    needed = [(row["name"], operation) for row in rights for operation in row["operations"]]
    assert len(needed) == 11
    for number, (of_row, operation) in enumerate(
        (row, operation) for row in rights for operation in row["operations"]
    ):
        if of_row["kind"] == "group":
            continue
        guarded.take([row for row in rights if row["kind"] == "transactional_id"])
        poor = GuardedLake(guarded, tmp_path / f"lake-{number}", f"poor{number}")
        kind, what = of_row["kind"], of_row["why"]
        fewer = [
            {**row, "operations": [one for one in row["operations"] if one != operation]}
            if (row["kind"], row["why"]) == (kind, what)
            else row
            for row in poor.rights("publisher")
        ]
        guarded.give(fewer)
        try:
            grow_and_publish(poor)
        except JobError:
            pass
        else:
            pytest.fail(f"nobody needs {operation} on {of_row['name']}")
        guarded.give(poor.rights("publisher"))

    group = [row for row in rights if row["kind"] == "group"]
    guarded.take(group)
    settings = lake.settings_of(USER)
    with pytest.raises(KafkaRefusedError, match="Kafka refuses the consumer group txlake-publish"):
        PublisherProcess(settings, settings.publish["main"]).run()
    guarded.give(group)


def test_a_right_that_is_missing_ends_a_publisher_with_one_sentence_that_says_how_to_give_it(
    guarded: RightsBroker, tmp_path: Path
) -> None:
    lake = GuardedLake(guarded, tmp_path / "lake", "lacks")
    rights = lake.rights("publisher")
    guarded.give(rights)
    transactions = [row for row in rights if row["kind"] == "transactional_id"]
    guarded.take(transactions)
    lake.send({"body": b"one"})
    settings = lake.settings_of(USER)
    with pytest.raises(KafkaRefusedError, match="`txlake acl print --role publisher` prints"):
        PublisherProcess(settings, settings.publish["main"]).run()
    guarded.give(transactions)

    destinations = [row for row in rights if "ALTER" in row["operations"]]
    guarded.take(destinations)
    guarded.give([{**row, "operations": ["READ"]} for row in destinations])
    with pytest.raises(KafkaRefusedError) as refused:
        PublisherProcess(settings, settings.publish["main"]).run()
    guarded.give(destinations)
    (status,) = find_publishers(settings)
    assert status.stop is not None and status.stop.reason == str(refused.value)


def test_job_and_operator_have_the_rights_on_what_is_published_that_they_need(
    guarded: RightsBroker, tmp_path: Path
) -> None:
    lake = GuardedLake(guarded, tmp_path / "lake", "others")
    guarded.give(lake.rights("publisher", "operator", "job"))
    lake.send({"body": b"one", "real_queue_id": 1}, {"body": b"two", "real_queue_id": 1})
    publish_all(lake.settings_of(USER))
    lake.send({"body": b"three", "real_queue_id": 1})

    job = lake.settings_of(JOB)
    assert read_positions(job)["topics/1"][1] == 2
    watch = PublisherWatch(job, lambda: True)
    watch.read_once()
    assert [(status.lag, status.unknown_reason) for status in watch.statuses] == [(1, None)]

    (status,) = find_publishers(lake.settings_of(OPERATOR), MemberGroup.describe)
    assert (status.lag, status.unknown_reason) == (1, None)
    conf = ("--conf", lake.conf(OPERATOR))
    assert "orders" in said("verify", "--published", *conf)
    assert "published by main" in said("tx", "explain", "half:0-0", *conf)
    words = ("--topic", "orders", "--queue", "1", "--offset", "2", "--reason", "a test")
    assert "is not published" in said("publish", "skip", *words, *conf)
    wait_until(lambda: find_publishers(job)[0].skips, "the skip is written")


def test_the_metrics_role_has_the_rights_that_a_status_needs(
    guarded: RightsBroker, tmp_path: Path
) -> None:
    lake = GuardedLake(guarded, tmp_path / "lake", "metrics")
    settings = lake.settings()
    KafkaAdmin(settings, settings.kafka.topics()).create_missing()
    guarded.give(lake.rights("publisher", "metrics"))
    lake.send({"body": b"one", "real_queue_id": 1})
    publish_all(lake.settings_of(USER))
    lake.send({"body": b"two", "real_queue_id": 1})

    told = json.loads(said("status", "--conf", lake.conf(METRICS), "-o", "json"))
    assert told["kafka_trouble"] is None
    assert [publisher["lag"] for publisher in told["publishers"]] == [1]
    assert "publisher_unknown" not in {problem["name"] for problem in told["problems"]}


def test_rights_on_another_kafka_are_printed_for_it_and_only_for_what_is_named(
    guarded: RightsBroker, tmp_path: Path
) -> None:
    lake = GuardedLake(guarded, tmp_path / "lake", "named")
    conf = tmp_path / "job.toml"
    publishers = {
        "far": {"bootstrap_servers": "far:1", "topics": ["a", "b"], "destination": "x-{topic}"},
        "all": {"bootstrap_servers": "far:1"},
    }
    conf.write_text(toml_of({**lake.values(), "publish": publishers}))
    lines = said("acl", "print", "--conf", str(conf), "--role", "publisher").splitlines()

    assert all("--bootstrap-server far:1 " in line for line in lines)
    assert [line.partition("--topic ")[2] for line in lines if "--operation ALTER" in line] == [
        "x-a",
        "x-b",
        "'*'",
    ]
    assert sum("--topic TXLAKE_PUBLISHED" in line for line in lines) == 1
    (ids,) = (line for line in lines if "--transactional-id" in line)
    assert ids.endswith("--transactional-id txlake-publish- --resource-pattern-type prefixed")

    none = tmp_path / "none.toml"
    none.write_text(toml_of({name: lake.values()[name] for name in ("lake", "kafka")}))
    assert said("acl", "print", "--conf", str(none), "--role", "publisher") == (
        "# publisher: the settings have no [publish.NAME]\n"
    )

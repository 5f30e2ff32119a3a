"""The election of a lake's driver, by a real broker: members, turns, and who is told what."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from pipelines.errors import KafkaAwayError, KafkaRefusedError, StartError
from pipelines.job import standby as turn_module
from pipelines.job.election import DriverGroup, Election
from pipelines.job.leadership import Leadership
from pipelines.job.standby import StandbyWait
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.kafka_client.group_members import Members as Drivers
from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings
from storage.errors import LakeLockedError, OwnerError
from storage.lake.lake import Lake
from tests.support.job import settings_for
from tests.support.kafka_admin import admin_client
from tests.support.wait import DEADLINE_S, wait_until

Unique = Callable[[str], str]


@dataclass
class Members:
    """Members of the group of one lake's drivers, by name."""

    settings: Settings
    stop: threading.Event = field(default_factory=threading.Event)
    joined: dict[str, Election] = field(default_factory=dict)
    rehearsals: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.settings.lake.path
        self.group = DriverGroup(self.settings.kafka, self.path)

    def join(self, name: str) -> Election:
        self.joined[name] = Election(self.settings.kafka, self.path, name)
        self.joined[name].join()
        return self.joined[name]

    def turn(self, name: str, *, is_standby: bool = False) -> StandbyWait:
        def rehearse() -> None:
            self.rehearsals.append(name)

        return StandbyWait(
            self.path,
            name,
            self.joined[name],
            self.other,
            self.stop,
            lambda: None,
            rehearse,
            is_standby=is_standby,
        )

    def ownership(self, name: str) -> Leadership:
        lake = Lake(self.path)
        return Leadership(lake, name, self.joined[name], self.stop)

    def other(self) -> str:
        """Says who is active, as the lake would."""
        return str(self.group.describe().active)

    def wait_for(self, drivers: Drivers) -> None:
        wait_until(lambda: self.group.describe() == drivers, str(drivers), seen=self.group.describe)


@pytest.fixture
def settings(broker: Broker, tmp_path: Path, unique: Unique) -> Settings:
    return settings_for(broker, tmp_path / "lake", unique("election"))


@pytest.fixture
def members(settings: Settings) -> Iterator[Members]:
    """The drivers of a lake whose topics are there."""
    KafkaAdmin(settings, settings.kafka.topics()).create_missing()
    found = Members(settings)
    yield found
    found.stop.set()
    for election in found.joined.values():
        election.leave()


def test_one_that_joins_takes_the_lake_from_nobody(members: Members) -> None:
    assert members.group.describe() == Drivers()
    first = members.join("first")
    assert first.wait(DEADLINE_S)
    second = members.join("second")
    members.wait_for(Drivers("first", ("second",)))
    assert (first.is_active, first.term, second.is_active) == (True, 1, False)


def test_one_that_leaves_is_replaced_at_once(members: Members) -> None:
    assert members.join("first").wait(DEADLINE_S)
    second = members.join("second")
    members.wait_for(Drivers("first", ("second",)))
    members.joined["first"].leave()
    assert second.wait(DEADLINE_S)
    members.wait_for(Drivers("second"))


def test_lakes_elect_apart(members: Members) -> None:
    assert members.join("first").wait(DEADLINE_S)
    members.path = f"{members.path}-of-others"
    assert members.join("second").wait(DEADLINE_S)


def test_nobody_is_elected_before_the_admin_topic_is_there(settings: Settings) -> None:
    early = Election(settings.kafka, settings.lake.path, "early")
    early.join()
    try:
        assert not early.wait(0.5)
        KafkaAdmin(settings, settings.kafka.topics()).create_missing()
        assert early.wait(DEADLINE_S)
    finally:
        early.leave()


def test_a_driver_that_does_not_stand_by_is_refused_when_the_session_of_a_dead_one_had_ended(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "DECIDED_S", 0.5)
    assert members.join("first").wait(DEADLINE_S)
    members.join("second")
    with pytest.raises(LakeLockedError, match="is written by first: one driver at a time"):
        members.turn("second").wait()
    assert members.rehearsals == []


def test_a_standby_says_who_is_active_rehearses_and_is_elected_in_its_turn(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txlake.driver")
    assert members.join("first").wait(DEADLINE_S)
    members.join("second")
    elected: list[bool] = []
    turn = members.turn("second", is_standby=True)
    waiting = threading.Thread(target=lambda: elected.append(turn.wait()))
    waiting.start()
    wait_until(lambda: members.rehearsals, "a rehearsal")
    assert "standby: first is active" in caplog.text
    members.joined["first"].leave()
    waiting.join(DEADLINE_S)
    assert elected == [True]
    assert "active: Kafka has elected this driver; owner second" in caplog.text


def test_a_standby_that_is_stopped_is_not_elected(members: Members) -> None:
    assert members.join("first").wait(DEADLINE_S)
    members.join("second")
    members.stop.set()
    assert not members.turn("second", is_standby=True).wait()


def test_a_driver_that_was_replaced_may_not_plan(members: Members) -> None:
    first = members.join("first")
    turn, ownership = members.turn("first"), members.ownership("first")
    assert turn.wait()
    ownership.begin()
    ownership.require()
    assert ownership.fencing_error() is None
    members.join("second")
    members.wait_for(Drivers("first", ("second",)))
    ownership.require()
    first.leave()
    members.wait_for(Drivers("second"))
    again = members.join("first")  # as one does that Kafka had not heard from for too long
    wait_until(lambda: again.is_waiting, "the first is counted again")
    ownership = members.ownership("first")
    with pytest.raises(OwnerError, match=r"^another driver is the active driver of the lake "):
        ownership.require()
    assert isinstance(ownership.fencing_error(), OwnerError)


def test_a_driver_that_was_elected_again_reads_the_lake_anew(members: Members) -> None:
    members.join("first")
    assert members.turn("first").wait()
    ownership = members.ownership("first")
    ownership.begin()
    members.joined["first"].term += 1  # as after a session that ended, and no other driver
    with pytest.raises(KafkaAwayError, match="elected it again"):
        ownership.require()
    ownership.begin()
    ownership.require()


def test_kafka_that_refuses_the_group_stops_the_driver_with_one_sentence(
    tmp_path: Path, unique: Unique
) -> None:
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:broker",
    }
    with Broker(tmp_path / "broker", properties=authorizer) as own:
        settings = settings_for(own, tmp_path / "lake", unique("refused"))
        KafkaAdmin(settings, settings.kafka.topics()).create_missing()
        refused = AclBinding(
            ResourceType.GROUP,
            "txlake-driver-",
            ResourcePatternType.PREFIXED,
            "User:ANONYMOUS",
            "*",
            AclOperation.ALL,
            AclPermissionType.DENY,
        )
        admin = admin_client(own.bootstrap_servers)
        for future in admin.create_acls([refused]).values():
            future.result(DEADLINE_S)
        election = Election(settings.kafka, settings.lake.path, "first")
        election.join()
        try:
            with pytest.raises(KafkaRefusedError, match="refuses the consumer group txlake"):
                wait_until(lambda: election.wait(0.1), "a refusal", DEADLINE_S)
        finally:
            election.leave()
        with pytest.raises(StartError, match="allow the job READ and DESCRIBE on the group"):
            DriverGroup(settings.kafka, settings.lake.path).describe()

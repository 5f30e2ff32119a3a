"""Signed ends and signed checks: a real broker, the real job, the SDK's producer and a forger."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from pipelines.cli.main import main
from pipelines.kafka_client.admin import KafkaAdmin
from pipelines.local_broker.broker import Broker
from pipelines.replay import verify
from pipelines.settings import Settings
from storage.lake.lake import Lake
from storage.verify.run import verify as verify_invariants
from tests.support.epoch_harness import EpochHarness
from tests.support.fault_points import Crash, FaultPoints
from tests.support.job import PATIENT, Job, running, settings_for
from tests.support.kafka_admin import admin_client
from tests.support.kafka_writer import KafkaWriter, half_headers
from tests.support.operator import conf_of
from tests.support.producers import options_of
from tests.support.wait import DEADLINE_S
from txlake import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    Message,
    SigningKey,
    TransactionListener,
    TransactionProducer,
)
from txlake import protocol as p

pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session
COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
OLD, NEW = SigningKey("old", b"the key that shop had until today"), SigningKey("new", b"n" * 32)
# A batch in Kafka's log: its offset (8 bytes), its length (4), and at byte 21 its attributes.
_LENGTH_ENDS_AT, _ATTRIBUTES_AT, NO_CODEC = 12, 21, 0
IMMUNE = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"}


class Shop(TransactionListener):
    """Runs what it is given, commits when it is asked, and remembers who asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def execute_local_transaction(
        self, half: HalfMessage, arg: Callable[[HalfMessage], LocalTransactionState]
    ) -> LocalTransactionState:
        return arg(half)

    def check_local_transaction(self, half: CheckedMessage) -> LocalTransactionState:
        self.asked.append(half.transaction_id)
        return COMMIT


class World:
    """Settings with keys in files, and producers that have some of them."""

    def __init__(self, broker: Broker, folder: Path, name: str) -> None:
        self._broker, self._folder, self._name = broker, folder, name
        for key_id, secret in (("old", OLD.secret), ("new", NEW.secret), ("anna", b"a" * 32)):
            (folder / key_id).write_bytes(secret + b"\n")

    def settings(self, *key_ids: str, **sections: Any) -> Settings:
        """Return settings of a job in which `shop` has these keys."""
        keys = {f"{key_id}_file": str(self._folder / key_id) for key_id in key_ids}
        security = {
            "keys": {"shop": keys} if keys else {},
            "operators": {"anna_file": str(self._folder / "anna")},
        }
        lake = self._folder / "lake"
        return settings_for(self._broker, lake, self._name, security=security, **sections)

    def producer(self, listener: TransactionListener, *keys: SigningKey) -> TransactionProducer:
        """Return a producer of `shop`."""
        settings = self.settings()
        return TransactionProducer(
            settings.kafka.bootstrap_servers,
            "shop",
            listener,
            options=options_of(settings),
            keys=keys,
        )

    def conf(self) -> str:
        """Return a settings file of an operator."""
        key = f'[security.operators]\nanna_file = "{self._folder / "anna"}"'
        return conf_of(self.settings(), self._folder, key)


@pytest.fixture
def world(broker: Broker, tmp_path: Path, unique: Callable[[str], str]) -> World:
    return World(broker, tmp_path, unique("signed"))


def outcome(job: Job, place: tuple[int, int]) -> tuple[str, str]:
    """Wait for a half's outcome. Output: with its cause."""

    def found() -> list[tuple[str, str]]:
        return [
            (row["outcome"], row["cause"])
            for row in job.rows("outcomes")
            if (row["queue_id"], row["queue_offset"]) == place
        ]

    one: tuple[str, str] = job.wait_for(found, f"the outcome of {place}")[0]
    return one


def reasons(job: Job) -> list[str]:
    return sorted(row["reason"] for row in job.rows("conflicts"))


def txlake(*words: str) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_a_forged_end_is_a_conflict_and_the_true_one_decides(world: World) -> None:
    settings = world.settings("old", transaction={"transaction_timeout_ms": 3_600_000})
    wire = KafkaWriter(settings)

    def forged(half: HalfMessage) -> LocalTransactionState:
        for signature in ({}, {"SIG": f"old:{'0' * 64}"}, {"ACTOR": "anna"}):
            wire.end(
                p.COMMIT,
                half.queue_offset,
                queue=half.queue_id,
                group="shop",
                ids=[half.transaction_id],
                **signature,
            )
        return ROLLBACK

    with running(settings) as job:
        with world.producer(Shop(), OLD) as producer:
            bad = producer.send_message_in_transaction(Message("orders", b"forged"), forged)
            true = Message("orders", b"true")
            good = producer.send_message_in_transaction(true, lambda _: COMMIT)
        wire.end(p.COMMIT, wire.half("free", **IMMUNE), ids=["free"])  # its group has no key
        job.wait_for(lambda: len(job.messages("orders")) == 2, "two messages")
        assert outcome(job, (bad.queue_id, bad.queue_offset)) == ("ROLLED_BACK", "operation")
        assert outcome(job, (good.queue_id, good.queue_offset)) == ("COMMITTED", "operation")
        assert sorted(row["body"] for row in job.messages("orders")) == [b"body", b"true"]
        assert reasons(job) == ["bad_signature"] * 3
    verdicts = [row["is_signed"] for row in job.rows("op")]
    assert sorted(map(str, verdicts)) == ["False"] * 3 + ["None"] + ["True"] * 2
    told = txlake("tx", "explain", bad.transaction_id, "--lake", job.lake.path)
    assert "bad_signature: its group has a key, and it has no valid signature under one" in told
    assert "ROLLBACK by group shop, signed under key old" in told


def test_a_key_is_changed_and_what_has_landed_stays_as_it_was(world: World) -> None:
    def commits(producer: TransactionProducer, body: bytes) -> tuple[int, int]:
        with producer:
            done = producer.send_message_in_transaction(Message("orders", body), lambda _: COMMIT)
        return done.queue_id, done.queue_offset

    places = []
    quiet = {"transaction": {"transaction_timeout_ms": 3_600_000}}
    with running(world.settings("old", "new", **quiet)) as job:
        for keys in ((OLD,), (NEW, OLD)):
            places.append(commits(world.producer(Shop(), *keys), keys[0].secret))
            assert outcome(job, places[-1]) == ("COMMITTED", "operation")
    with running(world.settings("new", **quiet)) as job:
        late = commits(world.producer(Shop(), OLD), b"late")
        places.append(commits(world.producer(Shop(), NEW), b"new"))
        assert outcome(job, places[-1]) == ("COMMITTED", "operation")
        job.wait_for(lambda: reasons(job) == ["bad_signature"], "a conflict")
    ended = {(row["queue_id"], row["queue_offset"]) for row in job.rows("outcomes")}
    assert ended == set(places)
    assert late not in ended
    replayed = verify(job.lake.path)  # no key is known here
    assert replayed.is_equal, replayed.differences.to_pylist()


def test_an_operators_end_is_signed_by_an_operators_key(world: World) -> None:
    settings = world.settings("old", transaction={"transaction_timeout_ms": 3_600_000})
    wire = KafkaWriter(settings)
    with running(settings) as job:
        offset = wire.half("silent", group="shop", **IMMUNE)
        wire.end(p.COMMIT, offset, group="shop", ids=["silent"], ACTOR="mallory", REASON="why")
        job.wait_for(lambda: reasons(job) == ["bad_signature"], "a conflict")
        told = txlake(
            "tx",
            "rollback",
            f"0-{offset}",
            "--actor",
            "anna",
            "--reason",
            "stuck",
            "--conf",
            world.conf(),
            "--wait-s",
            "240",
        )
        assert "the job says: ROLLED_BACK, cause operator" in told
        assert "SIG" not in told
    found = {row["actor"]: row["is_signed"] for row in job.rows("op")}
    assert found == {"mallory": False, "anna": True}


def test_a_forged_check_asks_nobody_and_a_signed_one_is_answered(
    world: World, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    # Asked once, and answered however slowly: a second answer would be a duplicate.
    asked_once = {**PATIENT, "check_interval_ms": 3_600_000}
    settings = world.settings("new", "old", transaction=asked_once)
    wire, shop = KafkaWriter(settings), Shop()
    topic = p.check_topic("shop", settings.kafka.check_topic_prefix)
    headers = [
        (p.PGROUP, b"shop"),
        (p.UNIQ_KEY, b"forged"),
        (p.REAL_TOPIC, b"orders"),
        (p.HALF_QUEUE_ID, b"0"),
        (p.HALF_QUEUE_OFFSET, b"0"),
        (p.CHECK_TIMES, b"1"),
        (p.CHECK_ID, b"0-0-0-1"),
    ]
    with running(settings) as job, world.producer(shop, OLD, NEW):
        job.wait_for(lambda: topic in job_topics(settings), "the check topic")
        wire.send(topic, 0, b"body", headers)
        wire.send(topic, 0, b"body", [*headers, (p.SIG, b"new:" + b"0" * 64)])
        wire.half("silent", body=b"body" * 500, group="shop", **{"colour": "red", p.KEYS: "4711"})
        wire.half("empty", body=b"", group="shop")
        odd = [*half_headers("odd", group="shop"), ("twice", b"\xff"), ("twice", None)]
        wire.send(settings.kafka.half_topic, 0, None, odd)
        job.wait_for(lambda: len(job.messages("orders")) == 3, "three messages")
    assert codecs(broker, topic) == {NO_CODEC}
    assert set(shop.asked) == {"silent", "empty", "odd"}
    assert "has no valid signature and is not answered" in caplog.text
    assert {row["cause"] for row in job.rows("outcomes")} == {"check_answer"}
    assert job.rows("conflicts") == []


def codecs(broker: Broker, topic: str) -> set[int]:
    """Return how the batches of a topic are compressed, as they stand on the broker's disk."""
    found = set()
    for path in broker.data_folder.glob(f"logs/{topic}-*/*.log"):
        log, at = path.read_bytes(), 0
        while at + _ATTRIBUTES_AT < len(log):
            found.add(log[at + _ATTRIBUTES_AT + 1] & 7)
            at += _LENGTH_ENDS_AT + int.from_bytes(log[at + 8 : at + _LENGTH_ENDS_AT], "big")
    return found


def job_topics(settings: Settings) -> set[str]:
    """Return the topics that Kafka has."""
    admin = admin_client(settings.kafka.bootstrap_servers)
    return set(admin.list_topics(timeout=DEADLINE_S).topics)


WRITES = ["half", "op", "catalog", "topics/1", "outcomes", "conflicts", "pending", "epochs comm"]


@pytest.mark.parametrize(
    ("has_key_first", "writes"),
    [
        pytest.param(True, WRITES, id="a key goes"),
        pytest.param(False, ["op", "catalog", "topics/1", "outcomes"], id="a key comes"),
    ],
)
def test_keys_that_change_between_a_crash_and_the_next_start_leave_the_lake_sound(
    world: World, spark: SparkSession, tmp_path: Path, has_key_first: bool, writes: list[str]
) -> None:
    """What was written before the crash was decided with its keys; so is then all the rest."""
    with_key, keyless = world.settings("old"), world.settings()
    KafkaAdmin(with_key, with_key.kafka.topics()).create_missing()
    wire, is_signed = KafkaWriter(with_key), dict[tuple[str, str], set[bool | None]]()
    for transaction_id, decision in (("forged", p.COMMIT), ("true", p.ROLLBACK)):
        offset = wire.half(transaction_id, group="shop", **IMMUNE)
        wire.end(decision, offset, group="shop", ids=[transaction_id])
    wire.end(p.COMMIT, wire.half("free", **IMMUNE), ids=["free"])
    at_ms = time.time_ns() // 1_000_000 + 60_000

    before, behind = (with_key, keyless) if has_key_first else (keyless, with_key)
    for write in writes:
        for mode in ("crash before", "crash after"):
            folder = tmp_path / f"{write} {mode}".replace("/", " ")
            crashing, going_on = (
                replace(one, lake=replace(one.lake, path=str(folder))) for one in (before, behind)
            )
            watch = FaultPoints(f"append {write}", mode)
            with EpochHarness(spark, crashing, watch.lake(str(folder))) as rig:
                rig.start()
                with pytest.raises(Crash):
                    rig.run(at_ms)
            with EpochHarness(spark, going_on) as rig:
                rig.start()

            lake = Lake(str(folder))
            report = verify_invariants(lake)
            assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}
            is_signed[write, mode] = set(lake.read("op")["is_signed"].to_pylist())

    of_first, of_second = ({False, None}, {None}) if has_key_first else ({None}, {False, None})
    assert is_signed["op", "crash before"] == of_second
    assert is_signed["op", "crash after"] == of_first
    for (write, _), found in is_signed.items():
        if write not in ("half", "op"):  # half is written beside op: either way
            assert found == of_first

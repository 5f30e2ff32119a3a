"""`txlake status` and its problems: each limit on both sides, and lakes with a known story."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import StartError
from pipelines.health import conditions
from pipelines.health.facts import Drivers, Facts, LakeFacts, TopicLag
from pipelines.health.kafka import _oldest_stored_at
from pipelines.health.problems import problems, unknown_problems
from pipelines.health.report import as_json, lines
from pipelines.kafka_client.group_members import Members
from pipelines.publish.progress import Stop
from pipelines.publish.status import PublisherStatus
from pipelines.settings import HealthSettings, KafkaSettings, Settings
from tests.support.in_memory_job import InMemoryJob
from tests.support.notebook_lake import EPOCHS, START_AT, STEP_MS, shop_rows, write_lake
from tests.support.operator import said, write_conf
from txlake import protocol
from txlake.protocol import COMMIT

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW = 1_800_000_000_000
GROUP = {
    "producer_group": "shop",
    "members": None,
    "pending": 1,
    "oldest_at": NOW,
    "asked_at": None,
    "answered_at": None,
    "unanswered": 0,
    "of_checks": 5,
}
WELL = Facts(
    LakeFacts("lake", NOW, epoch=7, epoch_at=NOW, groups=[GROUP]),
    lags=[],
    drivers=Drivers("a:1:b"),
    publishers=(),
    retention_ms=7 * DAY_MS,
)


def with_lake(**values: Any) -> Facts:
    return replace(WELL, lake=replace(WELL.lake, **values))


def waiting(since_ms: int, committed_ms: int = 0, *, makes_epochs: bool = True) -> Facts:
    """Return facts of a job with records that wait so long, and a last epoch so long ago."""
    lag = TopicLag("half", 3, NOW - since_ms, makes_epochs)
    return replace(with_lake(epoch_at=NOW - committed_ms), lags=[lag])


def group(**values: Any) -> Facts:
    return with_lake(groups=[{**GROUP, **values}])


def named(*names: str, pending: int = 1) -> list[dict[str, Any]]:
    """Return groups of these names."""
    return [{**GROUP, "producer_group": name, "pending": pending} for name in names]


def topicless(since_ms: int) -> Facts:
    """Return facts of a group without a check topic, with a half that has waited so long."""
    return replace(group(oldest_at=NOW - since_ms), groups_without_topic=["shop"])


def unread(oldest_at: int | None = None, gone_at: int | None = None) -> Facts:
    """Return facts of a consumer group with an unread message."""
    return with_lake(
        unread=[
            {
                "consumer_group": "points",
                "is_gone": gone_at is not None,
                "messages": 1,
                "oldest_at": oldest_at,
                "gone_at": gone_at,
            }
        ]
    )


def refused(dead: int, retrying: int) -> Facts:
    """Return facts of a consumer group whose listener refused messages a minute ago."""
    row = {
        "consumer_group": "points",
        "dead": dead,
        "dead_oldest_at": NOW - 60_000,
        "retrying": retrying,
        "due_at": NOW + 60_000,
    }
    return with_lake(refused=[row])


def published(since_ms: int = 0, lag: int = 1, **values: Any) -> Facts:
    """Return facts of a publisher whose oldest message was committed so long ago."""
    status = PublisherStatus("main", "lake", lag=lag, oldest_at=NOW - since_ms)
    return replace(WELL, publishers=[replace(status, **values)])


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(WELL, [], id="all is well"),
        pytest.param(replace(WELL, drivers=Drivers()), ["not_running"], id="no driver"),
        pytest.param(replace(WELL, start_error="why"), ["not_running"], id="a start is refused"),
        pytest.param(
            Facts(WELL.lake, kafka_error="no answer", is_kafka_away=True, retention_ms=1),
            ["kafka_away"], id="Kafka is away",
        ),
        pytest.param(
            Facts(WELL.lake, kafka_error="look again", retention_ms=1), [], id="not answered yet"
        ),
        pytest.param(
            waiting(HOUR_MS, HOUR_MS - 1), ["lag"], id="an epoch came less than an hour ago"
        ),
        pytest.param(waiting(0, DAY_MS), [], id="none for a day, and a record has just come"),
        pytest.param(
            waiting(HOUR_MS, HOUR_MS), ["no_epoch", "lag"], id="none for an hour, and records wait"
        ),
        pytest.param(with_lake(epoch_at=NOW - DAY_MS), [], id="none for a day, nothing waits"),
        pytest.param(waiting(DAY_MS, DAY_MS, makes_epochs=False), [], id="PINGs make no epoch"),
        pytest.param(
            replace(waiting(HOUR_MS), lake=LakeFacts("lake", NOW)), ["no_epoch", "lag"],
            id="a lake without an epoch",
        ),
        pytest.param(waiting(299_999), [], id="less than five minutes behind"),
        pytest.param(waiting(300_000), ["lag"], id="five minutes behind"),
        pytest.param(group(unanswered=4), [], id="one of five answered"),
        pytest.param(group(unanswered=5), ["group_silent"], id="none of five answered"),
        pytest.param(group(unanswered=4, of_checks=4), [], id="asked four times only"),
        pytest.param(
            group(unanswered=5, pending=0, oldest_at=None), [], id="silent, with nothing pending"
        ),
        pytest.param(
            with_lake(groups=named("a.b", "a_b", "ab")), ["group_silent"],
            id="two groups with one check topic",
        ),
        pytest.param(
            with_lake(groups=named("a.b", "a_b", pending=0)), [],
            id="two groups with one check topic, with nothing pending",
        ),
        pytest.param(topicless(60_000), ["no_check_topic"], id="no check topic for a minute"),
        pytest.param(topicless(59_999), [], id="no check topic for less than a minute"),
        pytest.param(with_lake(given_up=1), [], id="one was given up and is dead no more"),
        pytest.param(with_lake(discarded=1), ["given_up"], id="one is given up, since long ago"),
        pytest.param(with_lake(undeliverable=1), ["undeliverable"], id="one is undeliverable"),
        pytest.param(group(oldest_at=NOW - HOUR_MS + 1), [], id="pending for less than an hour"),
        pytest.param(group(oldest_at=NOW - HOUR_MS), ["pending_old"], id="pending for an hour"),
        pytest.param(
            with_lake(discarded=1, discarded_oldest_at=NOW - 5 * DAY_MS), ["given_up"],
            id="a discarded half of five of seven days",
        ),
        pytest.param(
            with_lake(discarded=1, discarded_oldest_at=NOW - 6 * DAY_MS),
            ["given_up", "floor_near"], id="a discarded half of six of seven days",
        ),
        pytest.param(unread(gone_at=NOW - 59_999), [], id="a consumer gone for less than a minute"),
        pytest.param(unread(gone_at=NOW - 60_000), ["consumer_gone"], id="gone for a minute"),
        pytest.param(
            replace(unread(gone_at=NOW - 60_000), limits=HealthSettings(consumer_gone_ms=60_001)),
            [], id="a consumer gone for less than the settings say",
        ),
        pytest.param(unread(oldest_at=NOW - 299_999), [], id="less than five minutes unread"),
        pytest.param(unread(oldest_at=NOW - 300_000), ["consumer_lag"], id="five minutes unread"),
        pytest.param(
            replace(unread(oldest_at=NOW - 99), limits=HealthSettings(consumer_lag_ms=99)),
            ["consumer_lag"], id="unread for as long as the settings say",
        ),
        pytest.param(unread(), [], id="the unread message was deleted meanwhile"),
        pytest.param(refused(0, 5), [], id="refused messages that come again"),
        pytest.param(refused(1, 0), ["consumer_dead"], id="one that was refused too often"),
        pytest.param(published(59_999), [], id="a publisher gone for less than a minute"),
        pytest.param(published(60_000), ["publisher_gone"], id="a publisher gone for a minute"),
        pytest.param(published(oldest_at=None), ["publisher_gone"], id="the lake does not tell"),
        pytest.param(published(DAY_MS, lag=0), [], id="no publisher, and no message waits"),
        pytest.param(published(299_999, active="a"), [], id="published within five minutes"),
        pytest.param(published(300_000, active="a"), ["publisher_lag"], id="not within them"),
        pytest.param(
            replace(published(99, active="a"), limits=HealthSettings(publisher_lag_ms=99)),
            ["publisher_lag"], id="a publisher behind for as long as the settings say",
        ),
        pytest.param(
            replace(published(99), limits=HealthSettings(publisher_gone_ms=99)),
            ["publisher_gone"], id="a publisher gone for as long as the settings say",
        ),
        pytest.param(
            published(DAY_MS, stop=Stop("why", "orders", 0, 0, NOW)), ["publisher_stopped"],
            id="a publisher that has stopped is not gone, too",
        ),
        pytest.param(
            published(DAY_MS, unknown_reason="no answer"), ["publisher_unknown"],
            id="its Kafka does not answer",
        ),
        pytest.param(with_lake(epoch_at=NOW + 60_000), [], id="as far ahead as clocks can be"),
        pytest.param(with_lake(epoch_at=NOW + 60_001), ["lake_ahead"], id="ahead of the clocks"),
    ],
)  # fmt: skip
def test_a_problem_is_named_at_its_limit(facts: Facts, expected: list[str]) -> None:
    found = problems(facts)
    assert [problem.name for problem in found] == expected
    assert all(problem.words and "txlake" in problem.command for problem in found)


def test_what_kafka_alone_knows_is_said_to_be_unknown() -> None:
    facts = replace(WELL, lags=None, drivers=None, retention_ms=None)
    assert unknown_problems(facts) == [
        "not_running",
        "kafka_away",
        "no_epoch",
        "lag",
        "no_check_topic",
        "floor_near",
    ]
    text = "\n".join(lines(facts))
    assert (
        "not known: not_running, kafka_away, no_epoch, lag, no_check_topic, floor_near (--conf"
        in text
    )

    refusal = "Kafka at k:1 did not answer"
    away = replace(facts, kafka_error=refusal, is_kafka_away=True)
    assert unknown_problems(away) == [
        "not_running",
        "no_epoch",
        "lag",
        "no_check_topic",
        "floor_near",
    ]
    assert f"kafka_away: {refusal}" in "\n".join(lines(away))
    slow = replace(facts, kafka_error="look again")
    assert unknown_problems(slow) == unknown_problems(facts) and "(look again)" in "\n".join(
        lines(slow)
    )
    # A record waits, and Kafka did not hand it out in time: how long is not known.
    assert replace(WELL, lags=[TopicLag("half", 3, None, True)]).lag_ms is None


def test_the_states_memory_is_told_where_an_epoch_counted_it() -> None:
    assert "state          1200 rows, 234.4 KiB in memory" in lines(
        with_lake(state_rows=1_200, state_bytes=240_000)
    )
    assert not any(line.startswith("state") for line in lines(WELL))


def test_the_screen_fits_a_terminal_and_producers_cannot_forge_a_line() -> None:
    hostile = {**GROUP, "producer_group": "shop\x1b[2J\nno problems", "unanswered": 5}
    facts = replace(with_lake(groups=[hostile]), lags=[TopicLag("half", 3, NOW - 1_000, True)])
    shown = lines(facts)
    assert not any("\x1b" in line or "\n" in line for line in shown)
    assert json.loads(json.dumps(as_json(facts)))["problems"][0]["name"] == "group_silent"
    assert "half: 3 records, 1 s" in "\n".join(shown)


def test_a_shops_lake_has_the_numbers_of_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = START_AT + (EPOCHS - 1) * STEP_MS + 60_000
    monkeypatch.setattr("time.time_ns", lambda: now * 1_000_000)
    shop = shop_rows()
    lake = write_lake(shop, tmp_path / "lake")
    told = json.loads(said("status", "--lake", lake.path, "-o", "json"))
    halves = shop.states[EPOCHS].halves.to_pylist()
    discards = [o for o in shop.tables["outcomes"] if o["outcome"] == "DISCARDED"]
    delivered = {
        (d["source"], d["queue_id"], d["queue_offset"])
        for d in shop.tables["deliveries"]
        if d["action"] == "DELIVERED"
    }
    stuck = [
        (m["source"], m["half_queue_id"], m["half_queue_offset"])
        for m in shop.messages["TRANS_UNDELIVERABLE_TOPIC"]
    ]
    assert told["epoch"] == EPOCHS
    assert told["pending"] == sum(half["discard_cause"] is None for half in halves)
    assert told["discarded"] == sum(half["discard_cause"] is not None for half in halves)
    assert told["given_up"] == len(discards) > 0
    assert told["undeliverable"] == len([one for one in stuck if one not in delivered]) > 0
    assert told["delayed"] == shop.states[EPOCHS].delayed.num_rows
    words = {problem["name"]: problem["words"] for problem in told["problems"]}
    assert list(words) == ["group_silent", "given_up", "undeliverable"]
    assert "has not answered its newest 5 checks, with " in words["group_silent"]
    assert words["given_up"] == (
        f"halves that are given up and can still be ended or resumed: {told['discarded']}"
    )
    assert words["undeliverable"] == (
        f"committed messages that wait for an operator: {told['undeliverable']}"
    )
    later = now + HOUR_MS + 600_000
    monkeypatch.setattr("time.time_ns", lambda: later * 1_000_000)
    told = json.loads(said("status", "--lake", lake.path, "-o", "json"))
    assert told["given_up"] == 0
    words = {problem["name"]: problem["words"] for problem in told["problems"]}
    assert set(words) == {"group_silent", "given_up", "undeliverable", "pending_old"}
    assert words["pending_old"].startswith("the oldest pending half was stored ")


def test_a_lake_that_is_ahead_of_the_clock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half()
    job.run()
    for ahead_ms, is_named in ((60_000, False), (120_000, True)):
        monkeypatch.setattr("time.time_ns", lambda at=job.at - ahead_ms: at * 1_000_000)
        told = said("status", "--lake", job.lake.path)
        assert ("lake_ahead: the lake is 2 min ahead of the clocks" in told) is is_named


def test_a_half_that_is_given_up_is_named_before_the_floor_passes_it(
    tmp_path: Path, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake", check_max=0)
    job.half()
    job.run(6_001)
    monkeypatch.setattr("time.time_ns", lambda: (job.at + 6 * DAY_MS) * 1_000_000)
    told = said("status", "--conf", conf)
    assert "floor_near: a discarded half is 6 d old: beyond 7 d the floor passes it" in told


def test_status_of_a_young_lake_and_top_and_every_format(
    tmp_path: Path, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    lake = ("--lake", job.lake.path)
    assert "no epoch yet" in said("status", *lake)
    job.end(COMMIT, job.half("a", producer_group="shop"), group="shop")
    job.run()
    monkeypatch.setattr("time.time_ns", lambda: job.at * 1_000_000)
    assert said("status", *lake, "-o", "jsonl") == ""
    assert said("status", *lake, "-o", "csv") == "name,words,command\n"
    assert said("top", "--times", "2", "--every-s", "0.2", *lake).count("no known problems") == 2
    away = said("status", "--conf", conf)  # nobody answers there
    assert re.match(r"\d problems?\n", away)
    assert re.search(r"^  kafka_away: Kafka at 127.0.0.1:1 did not answer", away, re.MULTILINE)
    said("status", "--check", *lake)
    said("status", "--check", "--conf", conf, code=3)
    assert json.loads(said("status", "--check", "--conf", conf, "-o", "json", code=3))["problems"]
    said("status", code=2)
    assert "not a lake" in said("status", "--lake", str(tmp_path / "none"), code=1)


def test_each_problem_has_its_own_since() -> None:
    rows = [{**GROUP, "of_checks": 5, "unanswered": 5}] * 2
    for facts, expected in (
        (
            with_lake(
                unread=[
                    {
                        "consumer_group": name,
                        "is_gone": True,
                        "messages": 1,
                        "oldest_at": None,
                        "gone_at": NOW - age_ms,
                    }
                    for name, age_ms in (("a", 2 * DAY_MS), ("b", 20 * 60_000))
                ]
            ),
            [2 * DAY_MS, 20 * 60_000],
        ),
        (
            with_lake(
                groups=[
                    {**rows[0], "producer_group": "quiet", "oldest_at": NOW - 600_000},
                    {**rows[1], "producer_group": "other", "oldest_at": NOW - 3_000_000},
                    {**GROUP, "unanswered": 1, "oldest_at": NOW - 3_500_000},
                ]
            ),
            [600_000, 3_000_000],
        ),
        (waiting(HOUR_MS, 48 * HOUR_MS), [HOUR_MS, HOUR_MS]),
        (with_lake(discarded=1, discarded_oldest_at=NOW - 3 * DAY_MS), [None]),
    ):
        ages = [None if one.since_at is None else NOW - one.since_at for one in problems(facts)]
        assert ages == expected


def test_many_groups_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = protocol._as_kafka_compares
    monkeypatch.setattr(
        protocol, "_as_kafka_compares", lambda name: (compared.append(name), compare(name))[1]
    )
    names = [f"group-{number}" for number in range(1_000)]
    found = conditions.group_silent(with_lake(groups=named(*names, "a.b", "a_b")))
    assert len(found) == 1 and len(compared) < 3 * len(names)


def test_a_lake_that_is_named_beside_settings_is_the_only_one_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[str] = []

    class OneDriver:
        def __init__(self, kafka: object, lake_path: str) -> None:
            asked_for.append(lake_path)

        def describe(self) -> Members:
            return Members("host:1:a")

    def read_lake(settings: Settings, *place: object) -> list[Any]:
        asked_for.append(settings.lake.path)
        return []

    class NoPublications:
        def __init__(self, settings: Settings) -> None:
            read_lake(settings)

        def find(self, *_place: object) -> list[Any]:
            return []

    monkeypatch.setattr("pipelines.job.election.DriverGroup", OneDriver)
    monkeypatch.setattr("pipelines.publish.status.find_publishers", read_lake)
    monkeypatch.setattr("pipelines.publish.locate.PublicationFinder", NoPublications)
    for name, nothing in (("start_error", None), ("topic_lags", []), ("groups_without_topic", [])):
        monkeypatch.setattr(f"pipelines.health.kafka.{name}", lambda *_, it=nothing: it)

    conf = Path(write_conf(tmp_path))
    conf.write_text(conf.read_text() + "[publish.main]\n")
    InMemoryJob(tmp_path / "lake").run()
    other = InMemoryJob(tmp_path / "other")
    other.end(COMMIT, other.half("first"))
    other.run()
    words = ("--lake", other.lake.path, "--conf", str(conf))

    for command in (("status",), ("tx", "explain", "first")):
        asked_for.clear()
        said(*command, *words)
        assert asked_for and set(asked_for) == {other.lake.path}, command


def test_a_client_setting_that_only_a_consumer_refuses_is_one_sentence() -> None:
    kafka = KafkaSettings("127.0.0.1:1", client={"session.timeout.ms": "400000"})
    with pytest.raises(StartError, match=r"of Kafka's client: .*session.timeout.ms"):
        _oldest_stored_at(kafka, {("half", 0): 0})

"""What the console can do beside RESUME: each as a preview, with a reason, and its result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipelines.console.actions import ACTIONS, summary
from pipelines.health.consumers import read_lags
from pipelines.operate import records
from tests.support.console_client import HOST, TOKEN, client
from tests.support.consumer_positions import commit_position
from tests.support.in_memory_job import InMemoryJob
from tests.support.operator import expected, write_conf
from txlake.protocol import COMMIT, CREATE_TOPIC, DECISION_CODES, ROLLBACK

SAID = {"reason": "ticket 4711", "confirmed": "yes"}


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    """A pending half, a delayed message, one that no queue can take; a consumer group."""
    job = InMemoryJob(tmp_path / "lake")
    job.command(CREATE_TOPIC, "topic:orders:4")
    job.run()
    job.half("pending", producer_group="shop")
    job.end(COMMIT, job.half("delayed", delay_level=3))
    job.end(COMMIT, job.half("nowhere", real_queue_id=77))
    job.end(COMMIT, job.half("delivered"))
    job.run()
    return job


@pytest.fixture
def console(job: InMemoryJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr("time.time_ns", lambda: job.at * 1_000_000)
    return client(job.lake.path, write_conf(tmp_path), token=TOKEN, allow_writes=True)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> list[records.Record]:
    """Takes what is written instead of Kafka."""
    taken: list[records.Record] = []

    def write(_: Any, record: records.Record, *__: Any) -> int:
        taken.append(record)
        return 1_000 + len(taken)  # behind all that the lake has

    monkeypatch.setattr(records, "write", write)
    return taken


def log_in(console: TestClient) -> None:
    form = {"actor": "ada", "token": TOKEN, "then": "/"}
    console.post("/login", data=form, headers={"origin": f"http://{HOST}"})


def form_value(page: str) -> str:
    return re.findall(r'name="form" value="(\w+)"', page)[-1]


# The page's query, the command that says the same, and what both say.
PREVIEWS = {
    "/commit?target=half:0-0": (("tx", "commit", "0-0"), "delivered to topic orders, queue"),
    "/rollback?target=half:0-0": (("tx", "rollback", "0-0"), "ROLLED_BACK, cause operator"),
    "/ask?target=half:0-0": (("check", "resend", "0-0"), "resent: the half waits as if"),
    "/cancel?target=half:0-1": (("schedule", "cancel", "0-1"), "cancelled: it will not be"),
    "/resume?target=undeliverable:0": (
        ("dead", "resume", "undeliverable:0"),
        "still_undeliverable: its topic still cannot take it; queue 77 of 4 of topic orders",
    ),
    "/create_topic?topic=bills&queues=4": (
        ("topic", "create", "bills", "--queues", "4"),
        "created: the topic is made",
    ),
    "/create_topic?topic=orders&queues=6": (
        ("topic", "create", "orders", "--queues", "6"),
        "grown: the topic has more queues",
    ),
    "/alter_topic?topic=orders&retention=30d": (
        ("topic", "alter", "orders", "--retention", "30d"),
        "altered: the topic has these limits",
    ),
}


@pytest.mark.parametrize("path", PREVIEWS)
def test_a_preview_says_what_the_command_says(
    console: TestClient, tmp_path: Path, path: str
) -> None:
    words, text = PREVIEWS[path]
    shown = console.get(path).text
    told = expected(str(tmp_path / "job.toml"), *words)
    assert text in told and told in shown
    assert "Nothing is written yet" in shown and "Log in to" in shown


def test_every_action_is_written_with_who_and_why_and_its_result_is_shown(
    console: TestClient, job: InMemoryJob, kafka: list[records.Record]
) -> None:
    log_in(console)
    done = {}
    for path in PREVIEWS:
        if "undeliverable" in path:
            continue
        shown = console.get(path).text
        targets = re.findall(r'name="target" value="([^"]+)"', shown)
        name = path.partition("?")[0]
        answer = console.post(name, data={"form": form_value(shown), "target": targets, **SAID})
        assert answer.status_code == 303, answer.text
        done[path] = answer.headers["location"]

    headers = [record.headers_as_text() for record in kafka]
    assert all((h["ACTOR"], h["REASON"]) == ("ada", "ticket 4711") for h in headers)
    codes = [DECISION_CODES[COMMIT], DECISION_CODES[ROLLBACK]]
    commands = ["RESEND", "CANCEL", "CREATE_TOPIC", "CREATE_TOPIC", "ALTER_TOPIC"]
    assert [h.get("COMMAND") or h["TRAN_TYPE"] for h in headers] == [*codes, *commands]
    for address in done.values():
        assert "not landed yet" in console.get(address).text


def test_the_result_of_an_end_is_its_outcome_or_its_conflict(
    console: TestClient, job: InMemoryJob
) -> None:
    offsets = [job.end("ROLLBACK", 0, group="shop", actor="ada") for _ in range(2)]
    job.run()
    won, late = (
        console.get(f"/written?do=rollback&at={offset}.half:0-0").text for offset in offsets
    )
    assert "ROLLED_BACK, cause operator" in won and "Done: the job has landed" in won
    assert "duplicate_end: ended before" in late and "1 changed nothing" in late


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_the_result_of_an_end_that_names_a_duplicate_is_that_of_its_set(
    job: InMemoryJob, decision: str
) -> None:
    first, duplicate = (job.half("set", tran_size=2, tran_seq=0) for _ in range(2))
    job.run()
    half = {"queue_id": 0, "queue_offset": duplicate, "producer_group": "g"}
    record = records.operation({**half, "transaction_id": "set"}, decision, "ada", "why")
    offset = job.end(decision, duplicate, actor="ada")
    assert records.result_of(job.lake, record, offset) is None
    job.run()
    if decision == COMMIT:
        assert records.result_of(job.lake, record, offset) == "waits"

    job.half("set", tran_size=2, tran_seq=1)
    job.run()
    outcome = {COMMIT: "COMMITTED", ROLLBACK: "ROLLED_BACK"}[decision]
    late = job.end(decision, duplicate, actor="ada")
    job.run()
    assert records.result_of(job.lake, record, offset) == f"{outcome}, cause operator"
    assert records.result_of(job.lake, record, late) == "duplicate_end"
    ended = job.lake.read("outcomes").to_pylist()
    causes = {row["queue_offset"]: row["cause"] for row in ended}
    assert (causes[first], causes[duplicate]) == ("operator", "duplicate_in_set")


def test_previews_are_summed_up_in_a_sentence(console: TestClient, job: InMemoryJob) -> None:
    job.half("one", real_queue_id=88)
    job.end(COMMIT, 4)
    job.run()
    shown = console.get("/resume?max=100").text
    assert "<strong>1 cannot: queue 77 of 4 of topic orders; 1 cannot: queue 88 of 4" in shown
    told = [
        ("resumed: the message takes part; delivered to topic orders, queue 1", False),
        ("resumed: the message takes part; delivered to topic orders, queue 3", False),
        ("still_undeliverable: its topic cannot; queue 77 of 4 of topic orders", False),
        ("there is no half 0-9", True),
        ("rearmed: the half is pending again", False),
    ]
    assert summary(told) == (
        "2 would be delivered to topic orders; 1 cannot: queue 77 of 4 of topic orders; "
        "1 cannot: there is no half 0-9; 1 would be rearmed (the half is pending again)"
    )


def test_all_of_a_filter_are_previewed_at_once(console: TestClient, job: InMemoryJob) -> None:
    for number in range(3):
        job.half(f"more-{number}", producer_group="shop")
    job.run()
    shown = console.get("/ask?group=shop&topic=&max=2").text
    assert "2 would be resent" in shown and "2 more left out" in shown
    assert "4 would be delivered to topic orders" in console.get("/commit?group=shop&max=100").text
    assert "Nothing pending fits." in console.get("/rollback?group=nobody&max=100").text


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/commit", 400, "choose 1 to 100"),
        ("/commit?target=undeliverable:0", 400, "choose 1 to 100"),
        ("/commit?target=schedule:0-0", 400, "choose 1 to 100"),
        ("/cancel?target=half:0-9", 200, "there is no half 0-9"),
        ("/create_topic?topic=a%20b&queues=1", 400, "is no name of a topic"),
        ("/create_topic?topic=a&queues=0", 400, "a number from 1 to 10000"),
        ("/alter_topic?topic=orders", 400, "name how long to keep messages"),
        (
            "/alter_topic?topic=orders&retention=soon",
            400,
            "allowed is a number and one of the units s, m, h, d, or forever",
        ),
        ("/alter_topic?topic=orders&retention=1s", 400, "is below [maintenance]"),
        ("/alter_topic?topic=orders&bytes=x", 400, "bytes, or a number with KiB"),
        ("/alter_topic?topic=nope&retention=30d", 200, "no_such_topic: there is no such topic"),
        ("/position?group=nope&topic=orders&to=latest", 404, "has read nothing of topic orders"),
        ("/position?group=points&topic=orders&to=soon", 400, "or an instant as 2026-01-31T12:00Z"),
        ("/position?group=points&topic=orders&to=2026-01-31T12:00", 400, "say its time zone"),
        ("/written?do=nope", 400, "do: one of resume, commit"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    console: TestClient, path: str, status: int, text: str
) -> None:
    answer = console.get(path)
    assert answer.status_code == status and text in answer.text, answer.text


def test_a_position_is_previewed_set_and_shown(
    console: TestClient, job: InMemoryJob, caplog: pytest.LogCaptureFixture
) -> None:
    (queue,) = (row["real_queue_id"] for row in job.lake.read("outcomes", ["real_queue_id"],
        None).to_pylist() if row["real_queue_id"] not in (None, 77))  # fmt: skip
    commit_position(job.lake, "points", "orders", queue, 1)
    path = "/position?group=points&topic=orders&to=earliest"
    assert "It would read 1 message of orders again." in console.get(path).text
    log_in(console)
    data = {"form": form_value(console.get(path).text), "group": "points", "topic": "orders",
            "to": "earliest"}  # fmt: skip
    lacking = console.post("/position", data=data)
    assert lacking.status_code == 400 and "say why" in lacking.text
    answer = console.post("/position", data={**data, **SAID})
    assert answer.headers["location"] == "/consumer?group=points"
    assert [row["queue_offset"] for row in read_lags(job.lake, "points")] == [0]
    assert "ada set consumer group points of topic orders to earliest, queues all: ticket 4711" in (
        caplog.text
    )


def test_a_position_can_be_an_instant_and_of_some_queues(
    console: TestClient, job: InMemoryJob
) -> None:
    for queue in range(2):
        commit_position(job.lake, "points", "orders", queue, 0)
    path = "/position?group=points&topic=orders&to=2026-01-01T00:00Z&queue=1"
    shown = client(job.lake.path).get(path).text
    assert "It stays where it is." in shown
    command = "txlake consumer reset points --topic orders --to 2026-01-01T00:00Z --queue 1 --yes"
    assert command in shown

    log_in(console)
    shown = console.get(path).text
    assert re.findall(r'name="queue" value="(\d+)"', shown) == ["1"]
    assert "ada sets 1 position" in shown


def test_an_active_consumer_keeps_its_position(console: TestClient, job: InMemoryJob) -> None:
    commit_position(job.lake, "points", "orders", 0, 0, owner="host:1")
    log_in(console)
    data = {"form": form_value(console.get("/").text), "group": "points", "topic": "orders",
            "to": "latest"}  # fmt: skip
    answer = console.post("/position", data={**data, **SAID})
    assert answer.status_code == 404 and "host:1 holds queue 0 of orders" in answer.text
    assert [row["queue_offset"] for row in read_lags(job.lake, "points")] == [0]


def test_nothing_is_done_without_a_session(
    console: TestClient, job: InMemoryJob, kafka: list[records.Record], tmp_path: Path
) -> None:
    for name in (*ACTIONS, "position", "consumer_resume", "consumer_drop", "skip"):
        assert console.post(f"/{name}", data=SAID).status_code == 403, name
    reading = client(job.lake.path, write_conf(tmp_path), token=TOKEN)
    log_in(reading)
    value = form_value(reading.get("/").text)
    for name in (*ACTIONS, "position", "consumer_resume", "consumer_drop", "skip"):
        answer = reading.post(f"/{name}", data={"form": value, "target": "half:0-0", **SAID})
        assert answer.status_code == 403, name
    assert kafka == []
    assert "txlake tx commit half:0-0" in reading.get("/commit?target=half:0-0").text

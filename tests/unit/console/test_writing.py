"""RESUME by the console's forms: what is tried, what is written, what is refused."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipelines.console import app
from pipelines.console.session import SESSION_S, Sessions
from pipelines.errors import KafkaAwayError
from pipelines.operate import records
from tests.support.console_client import HOST, TOKEN, client
from tests.support.in_memory_job import InMemoryJob
from tests.support.operator import write_conf
from txlake.protocol import RESUME


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    """Three halves that were given up."""
    job = InMemoryJob(tmp_path / "lake", check_max=0)
    for name in ("one", "two", "three"):
        job.half(name, producer_group="shop")
    job.run()
    job.run(6_001)
    return job


@pytest.fixture
def console(job: InMemoryJob, tmp_path: Path) -> TestClient:
    return client(job.lake.path, write_conf(tmp_path), token=TOKEN, allow_writes=True)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> list[records.Record]:
    """Takes what is written instead of Kafka, which the test of the whole walk has."""
    taken: list[records.Record] = []

    def write(_: Any, record: records.Record, *__: Any) -> int:
        if len(taken) >= 2:
            raise KafkaAwayError("Kafka at 127.0.0.1:1 did not answer")
        taken.append(record)
        return len(taken) - 1

    monkeypatch.setattr(records, "write", write)
    return taken


def log_in(console: TestClient, **fields: str) -> Any:
    form = {"actor": "ada", "token": TOKEN, "then": "/dead", **fields}
    return console.post("/login", data=form, headers={"origin": f"http://{HOST}"})


def form_of(console: TestClient, *targets: str) -> dict[str, Any]:
    """Returns the fields of the form that a dry run shows."""
    shown = console.get("/resume", params={"target": targets}).text
    hidden = re.findall(r'<input type="hidden" name="form" value="(\w+)"', shown)
    return {"form": hidden[-1], "target": list(targets)}


SAID = {"reason": "ticket 4711", "confirmed": "yes"}


def test_a_dry_run_says_what_would_come_and_writes_nothing(
    console: TestClient, kafka: list[records.Record]
) -> None:
    shown = console.get("/resume?target=half:0-0&target=half:0-9").text
    assert "rearmed: the half is pending again" in shown
    assert "there is no half 0-9" in shown and "Log in to resume" in shown
    some = console.get("/resume?group=shop&max=2").text
    assert (
        some.count("rearmed: the half") == 2
        and "2 would be rearmed" in some
        and "1 more left out" in some
    )
    assert "Nothing that is dead fits." in console.get("/resume?group=nobody&max=2").text
    assert console.get("/resume?target=half:x").status_code == 400
    assert console.get("/resume").status_code == 400
    assert kafka == []


def test_a_resume_is_written_with_who_and_why_and_its_result_is_shown(
    job: InMemoryJob, console: TestClient, kafka: list[records.Record]
) -> None:
    answer = log_in(console)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dead")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    answer = console.post("/resume", data={**form_of(console, "half:0-0", "half:0-1"), **SAID})
    assert answer.status_code == 303
    texts = [record.headers_as_text() for record in kafka]
    assert [(t["COMMAND"], t["TARGET"], t["ACTOR"], t["REASON"]) for t in texts] == [
        (RESUME, f"half:0-{n}", "ada", "ticket 4711") for n in range(2)
    ]
    waits = console.get(answer.headers["location"]).text
    assert waits.count("not landed yet") == 4  # in two headings, too
    assert 'http-equiv="refresh"' in waits
    for n in range(2):
        job.command(RESUME, f"half:0-{n}", "ada", "ticket 4711")
    job.run()
    landed = console.get(answer.headers["location"]).text
    assert landed.count("rearmed: the half is pending again") == 2
    assert 'http-equiv="refresh"' not in landed


def test_what_kafka_did_not_take_is_said(
    console: TestClient, kafka: list[records.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(console)
    form = form_of(console, "half:0-0", "half:0-1", "half:0-2")
    answer = console.post("/resume", data={**form, **SAID})
    assert "Kafka did not take 1 more" in console.get(answer.headers["location"]).text

    # Sent again the form writes nothing; a new one tries what is left.
    assert console.post("/resume", data={**form, **SAID}).headers == answer.headers
    answer = console.post("/resume", data={**form_of(console, "half:0-2"), **SAID})
    assert answer.status_code == 503 and "did not answer" in answer.text
    assert len(kafka) == 2


def test_a_form_that_is_sent_twice_writes_once(
    console: TestClient, kafka: list[records.Record]
) -> None:
    log_in(console)
    form = {**form_of(console, "half:0-0"), **SAID}

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: console.post("/resume", data=form), range(4)))

    assert [answer.status_code for answer in answers] == [303] * 4
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert len(kafka) == 1
    assert console.post("/resume", data={**form_of(console, "half:0-0"), **SAID}).is_redirect
    assert len(kafka) == 2, "a new form writes"


def test_logging_out_ends_the_session_wherever_its_cookie_is(
    console: TestClient, kafka: list[records.Record]
) -> None:
    log_in(console)
    copied = console.cookies["txlake-console-0"]
    form, another = form_of(console, "half:0-0"), form_of(console, "half:0-1")
    assert console.post("/logout", data={"form": form["form"]}).status_code == 303

    console.cookies.set("txlake-console-0", copied)
    assert console.post("/resume", data={**another, **SAID}).status_code == 403
    assert "Log in to resume" in console.get("/resume?target=half:0-1").text
    assert kafka == []


def test_a_wrong_token_is_slowed_and_logged(
    console: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "REFUSED_FORM_S", 0.7)
    began = time.monotonic()

    assert log_in(console, token="a-guess-of-20-characters").status_code == 403
    assert time.monotonic() - began >= 0.7
    assert "a login with a wrong token, from testclient, as 'ada'" in caplog.messages
    assert "a-guess" not in caplog.text


@pytest.mark.parametrize(
    "change",
    [{"reason": " "}, {"confirmed": ""}, {"confirmed": "no"}, {"reason": "x" * 1_001}],
)
def test_without_a_reason_and_a_confirmation_it_asks_again(
    console: TestClient, kafka: list[records.Record], change: dict[str, str]
) -> None:
    log_in(console)
    answer = console.post("/resume", data={**form_of(console, "half:0-0"), **SAID, **change})
    assert answer.status_code == 400 and "say why" in answer.text
    assert kafka == []


def test_only_a_form_of_this_session_on_this_site_writes(
    job: InMemoryJob, console: TestClient, kafka: list[records.Record], tmp_path: Path
) -> None:
    log_in(console)
    form = {**form_of(console, "half:0-0"), **SAID}
    other = client(job.lake.path, write_conf(tmp_path), token=TOKEN, allow_writes=True)
    assert other.post("/resume", data=form).status_code == 403  # not logged in
    log_in(other)
    assert other.post("/resume", data=form).status_code == 403  # a form of another session
    assert console.post("/resume", data={**form, "form": ""}).status_code == 403
    assert console.post("/logout", data={}).status_code == 403
    foreign = {"origin": "http://evil.example"}
    assert console.post("/resume", data=form, headers=foreign).status_code == 403
    for strange in ("null", "http://["):
        assert console.post("/resume", data=form, headers={"origin": strange}).status_code == 403
    assert console.post("/resume", data={**form, "target": ["half:x"]}).status_code == 400
    assert console.post("/resume", data={**form, "target": []}).status_code == 400
    assert console.post("/resume", content=b"x" * 70_000).status_code == 413
    assert kafka == []
    gone = console.post("/logout", data={"form": form["form"]})
    assert gone.status_code == 303 and console.cookies.get("txlake-console-0") is None


def test_a_console_that_may_not_write_says_the_command(
    job: InMemoryJob, kafka: list[records.Record]
) -> None:
    console = client(job.lake.path, token=TOKEN)
    shown = console.get("/resume?target=half:0-0").text
    assert "txlake dead resume half:0-0" in shown and "<button class" not in shown
    log_in(console)
    form = {"form": re.findall(r'name="form" value="(\w+)"', console.get("/").text)[0]}
    answer = console.post("/resume", data={**form, "target": ["half:0-0"], **SAID})
    assert answer.status_code == 403 and kafka == []
    assert "only reads" in client(job.lake.path).get("/login").text


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"token": "wrong"}, "not the token"),
        ({"token": ""}, "not the token"),
        ({"token": "\u00e9" * 32}, "not the token"),
        ({"actor": " "}, "say who you are"),
        ({"actor": "a\x00b"}, "say who you are"),
        ({"actor": "x" * 101}, "say who you are"),
    ],
)
def test_who_is_not_let_in_is_told_why(
    console: TestClient, fields: dict[str, str], sentence: str
) -> None:
    answer = log_in(console, **fields)
    assert answer.status_code == 403 and sentence in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("then", "leads_to"),
    [
        ("/resume?target=half%3A0-0", "/resume?target=half%3A0-0"), ("", "/"),
        ("//evil.example", "/"), ("/\\evil.example", "/"), ("http://evil.example", "/"),
        ("/\x09/evil.example", "/"), ("javascript:alert(1)", "/"),
    ],
)  # fmt: skip
def test_logging_in_leads_to_a_page_of_this_console(
    console: TestClient, then: str, leads_to: str
) -> None:
    assert log_in(console, then=then).headers["location"] == leads_to


def test_a_session_is_signed_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, now = Sessions(), time.time()
    monkeypatch.setattr("time.time", lambda: now)
    cookie = sessions.begin("ada é")
    assert sessions.actor(cookie) == "ada é"
    assert sessions.begin("ada é") != cookie
    strange = (None, "", "...", cookie[:-1], "A" + cookie, cookie + "0", Sessions().begin("ada"))
    assert [sessions.actor(one) for one in strange] == [None] * len(strange)
    assert not sessions.has_form_token(cookie, sessions.form_value(cookie)[:-1])
    monkeypatch.setattr("time.time", lambda: now + SESSION_S + 1)
    assert sessions.actor(cookie) is None


@pytest.mark.parametrize("at", ["x", "1.", "1", "-1.half:0-0", "9" * 19 + ".half:0-0", "\u0661.a"])
def test_a_result_is_asked_for_by_offset_and_target(console: TestClient, at: str) -> None:
    assert console.get("/written", params={"do": "resume", "at": at}).status_code == 400

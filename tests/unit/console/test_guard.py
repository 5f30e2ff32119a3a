"""Who may ask the console what: names, other sites, hostile texts, bad queries."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pipelines.console.security import HEADERS
from tests.support.console_client import HOST, TOKEN, client, crawl
from tests.support.in_memory_job import InMemoryJob
from txlake.protocol import COMMIT

HOSTILE = "<script>alert(1)</script>\"'\x1b[2J\u202e\n%00&{{7*7}}"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> InMemoryJob:
    """A lake of texts that want to be more than text."""
    job = InMemoryJob(tmp_path_factory.mktemp("hostile") / "lake", check_max=0)
    job.half(HOSTILE, keys=HOSTILE, producer_group=HOSTILE, real_topic="orders", tags=HOSTILE)
    job.end(COMMIT, 0, group="other" + HOSTILE, actor=HOSTILE, reason=HOSTILE)
    job.run()
    job.half("later", keys=HOSTILE, producer_group=HOSTILE, delay_level=3)
    job.end(COMMIT, 1, group=HOSTILE)
    job.run(6_001)
    return job


@pytest.fixture
def console(job: InMemoryJob, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr("time.time_ns", lambda: job.at * 1_000_000)
    return client(job.lake.path)


def test_what_producers_send_is_text_and_nothing_else(console: TestClient) -> None:
    pages = crawl(console)
    assert sum("&lt;script&gt;" in text for text in pages.values()) >= 5
    for path, page in pages.items():
        text = page.replace('<script src="/console.js" defer></script>', "")
        for raw in ("<script", "\x1b", "\u202e"):
            assert raw not in text, (path, raw)
        assert "\\u001b[2J\\u202e\\u000a%00&amp;{{7*7}}" in text or "&lt;script" not in text, path


@pytest.mark.parametrize(
    "path", ["/", "/nope", "/style.css", "/console.js", "/story?of=%00", "/transactions?limit=0"]
)
def test_every_answer_tells_the_browser_what_it_may_do(console: TestClient, path: str) -> None:
    answer = console.get(path)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"].split("; ")
    assert "script-src 'self'" in policy and "default-src 'none'" in policy
    assert not any("unsafe" in rule or "*" in rule or "http" in rule for rule in policy)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (HOST, 200), (f"{HOST}:8470", 200), (HOST.upper(), 200), ("evil.example", 421),
        (f"{HOST}.evil.example", 421), ("", 421), ("127.0.0.1", 421), ("[", 421),
        (f"evil.example@{HOST}", 200),  # a browser sends no such Host
    ],
)  # fmt: skip
def test_it_answers_to_its_own_names_only(console: TestClient, host: str, status: int) -> None:
    assert console.get("/style.css", headers={"host": host}).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_is_changed_by_a_console_that_only_reads(console: TestClient, method: str) -> None:
    for path in ("/", "/dead", "/style.css"):
        answer = console.request(method, path)
        assert answer.status_code == 405 and "Traceback" not in answer.text
    foreign = console.request(method, "/", headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/?since=2y", "one of 1h, 6h, 1d, 7d is allowed"),
        ("/transactions?limit=0", "a number from 1 to 100 is allowed"),
        ("/transactions?format=csv&limit=1001", "a number from 1 to 1000 is allowed"),
        ("/transactions?limit=101", "a number from 1 to 100 is allowed"),
        ("/transactions?limit=%D9%A1", "a number from 1 to 100 is allowed"),
        ("/transactions?older_than=soon", "allowed is a number and one of the units s, m, h, d"),
        ("/transactions?since=1h+1h", "allowed is a number and one of the units s, m, h, d"),
        ("/conflicts?since=%00", "allowed is a number and one of the units s, m, h, d"),
        ("/story?of=", "is no transaction id"),
    ],
)
def test_a_query_that_cannot_be_understood_gets_one_sentence(
    console: TestClient, path: str, sentence: str
) -> None:
    answer = console.get(path)
    assert answer.status_code == 400 and sentence in answer.text


@pytest.mark.parametrize(
    "text", ["%00", "%FF%FE", "%ED%A0%80", "%27%3B--", "x" * 5_000, "%0D%0AA:+b"]
)
def test_no_text_breaks_a_page(console: TestClient, text: str) -> None:
    for path in ("/find?q=", "/transactions?group=", "/transactions?state=all&keys=",
                 "/dead?topic=", "/conflicts?reason=", "/delayed?group=", "/consumer?group=",
                 "/topic?name="):  # fmt: skip
        # 404: there is no such topic, reason or consumer group, as the page says.
        assert console.get(path + text).status_code in (200, 303, 404), path
    assert console.get(f"/story?of={text}").status_code in (400, 404)
    assert console.get("/transactions?since=999999999d&older_than=999999999d").status_code == 200


def test_elsewhere_than_on_loopback_one_reads_after_logging_in(job: InMemoryJob) -> None:
    console = client(job.lake.path, token=TOKEN, reads_need_token=True)
    for path in ("/", "/story?of=0-0", "/nope"):
        answer = console.get(path)
        assert answer.status_code == 303 and answer.headers["location"].startswith(
            "/login?then=%2F"
        )
    assert console.get("/style.css").status_code == 200
    forged = {"cookie": "txlake-console-0=YWRh.9999999999.00.00"}
    assert console.get("/", headers=forged).status_code == 303


def test_a_lake_that_is_lost_meanwhile_is_one_sentence(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    console = client(job.lake.path)
    assert console.get("/").status_code == 200
    shutil.rmtree(tmp_path / "lake")
    answer = console.get("/")
    assert answer.status_code == 503 and "is not a lake" in answer.text

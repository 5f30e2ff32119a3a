"""Messages on the console's pages: found by place, time and keys; shown as JSON, text and hex."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pipelines.console.bodies import CHARACTERS_MAX, body_text, preview
from tests.support.console_client import client
from tests.support.consumer_positions import commit_position
from tests.support.in_memory_job import InMemoryJob
from txlake.protocol import COMMIT

BODIES = (b'{"order": 1, "price": 1.10}', b"plain text", b"\x00\xff\x10")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> InMemoryJob:
    """A topic of one queue with a message of each kind of body, a minute between them."""
    job = InMemoryJob(tmp_path_factory.mktemp("messages") / "lake")
    job.command("CREATE_TOPIC", "topic:orders:1")
    job.run()
    for number, body in enumerate(BODIES):
        half = job.half(f"tx-{number}", keys=f"order-{number}", body=body,
                        properties=[("colour", "red")])  # fmt: skip
        job.end(COMMIT, half)
        job.run(60_000)
    job.half("pending", keys="order-9", body=b"not delivered")
    job.run()
    return job


@pytest.fixture
def console(job: InMemoryJob, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr("time.time_ns", lambda: job.at * 1_000_000)
    return client(job.lake.path)


def offsets(console: TestClient, query: str) -> list[int]:
    """Returns the offsets of the messages that a page lists, in its order."""
    text = console.get(f"/messages?topic=orders{query}&format=json").text
    return [row["queue_offset"] for row in json.loads(text)]


@pytest.mark.parametrize(
    ("query", "listed"),
    [
        pytest.param("", [2, 1, 0], id="the newest first"),
        pytest.param("&order=oldest", [0, 1, 2], id="the oldest first"),
        pytest.param("&queue=0&from=1", [1, 2], id="from an offset"),
        pytest.param("&limit=1", [2], id="few"),
        pytest.param("&queue=0&from=1&limit=1", [1], id="a page"),
        pytest.param("&keys=order-1", [1], id="by keys"),
        pytest.param("&keys=order", [], id="a part of a key is no key"),
        pytest.param("&since=30s", [2], id="stored since"),
        pytest.param("&older_than=30s", [1, 0], id="stored before"),
        pytest.param("&since=90s&older_than=30s&keys=order-1", [1], id="all at once"),
    ],
)
def test_messages_are_chosen_by_place_time_and_keys(
    console: TestClient, query: str, listed: list[int]
) -> None:
    assert offsets(console, query) == listed


def test_a_page_of_messages_leads_to_the_pages_beside_it(console: TestClient) -> None:
    shown = console.get("/messages?topic=orders&queue=0&from=1&limit=1").text
    assert "queue=0&amp;from=0&amp;limit=1" in shown and "queue=0&amp;from=2&amp;limit=1" in shown
    assert 'href="/message?queue=0&amp;offset=1&amp;topic=orders"' in shown or (
        "/message?topic=orders&amp;queue=0&amp;offset=1" in shown
    )
    assert console.get("/messages?topic=orders&queue=7").status_code == 404
    assert console.get("/messages?topic=nope").status_code == 404
    assert console.get("/messages?topic=orders&from=-1").status_code == 400


def test_a_message_is_shown_with_all_that_belongs_to_it(
    console: TestClient, job: InMemoryJob
) -> None:
    commit_position(job.lake, "points", "orders", 0, 2)
    shown = console.get("/message?topic=orders&queue=0&offset=0").text
    assert re.search(
        r"<pre[^>]*>{\n  &#34;order&#34;: 1,\n  &#34;price&#34;: 1.10\n}\n</pre>", shown
    )
    assert "colour" in shown and "red" in shown
    assert 'href="/story?of=half%3A0-0"' in shown
    assert "next: 2, 2 after this" in shown and "Has read it" in shown
    newest = console.get("/message?topic=orders&queue=0&offset=2").text
    assert "next: 2, 0 before this" in newest and "Has not read it" in newest
    assert "00000000  00 ff 10" in newest and "Later" not in newest
    assert console.get("/message?topic=orders&queue=0&offset=3").status_code == 404
    assert console.get("/message?topic=orders&queue=0").status_code == 400


def test_a_half_has_its_body_before_it_is_delivered(console: TestClient) -> None:
    shown = console.get("/record?of=half:0-3").text
    assert "not delivered" in shown and 'href="/story?of=half%3A0-3"' in shown
    assert 'href="/record?of=half%3A0-3"' in console.get("/story?of=half:0-3").text
    for text, status in {"half:0-9": 404, "undeliverable:0": 400, "x": 400}.items():
        assert console.get(f"/record?of={text}").status_code == status


def test_a_body_is_downloaded_as_it_is(console: TestClient) -> None:
    for offset, body in enumerate(BODIES):
        answer = console.get(f"/download?topic=orders&queue=0&offset={offset}")
        assert answer.content == body
        assert answer.headers["content-type"] == "application/octet-stream"
        assert "attachment" in answer.headers["content-disposition"]
    assert console.get("/download?of=half:0-3").content == b"not delivered"


def test_a_console_that_shows_no_bodies_shows_none(job: InMemoryJob) -> None:
    console = client(job.lake.path, shows_bodies=False)
    for path in ("/messages?topic=orders", "/message?topic=orders&queue=0&offset=0",
                 "/record?of=half:0-3", "/messages?topic=orders&format=csv"):  # fmt: skip
        shown = console.get(path).text
        assert not re.search("price|colour|plain text|not delivered<", shown), path
    for path in ("/download?topic=orders&queue=0&offset=0", "/download?of=half:0-3"):
        answer = console.get(path)
        assert answer.status_code == 403 and "this console shows no bodies" in answer.text


@pytest.mark.parametrize(
    ("body", "form", "shown", "lines"),
    [
        pytest.param(b'{"a":[1,{"b":[]}],"c":{}}', None, "json",
                     ["{", '  "a": [', "    1,", "    {", '      "b": []', "    }", "  ],",
                      '  "c": {}', "}"], id="nested"),
        pytest.param(b'{"n":1e400,"t":"a,]\\"b"}', None, "json",
                     ["{", '  "n": 1e400,', '  "t": "a,]\\"b"', "}"], id="as it was written"),
        pytest.param(b"17", None, "text", ["17"], id="a number is a text"),
        pytest.param(b"17", "json", "json", ["17"], id="unless it is asked for as JSON"),
        pytest.param(b"{broken", None, "text", ["{broken"], id="no JSON"),
        pytest.param(b"a\nb\tc", None, "text", ["a", "b    c"], id="lines"),
        pytest.param(b"\xff", "text", "text", ["\\xff"], id="no UTF-8 as text"),
        pytest.param(b"\xff", None, "hex", [f"00000000  {'ff':<48} ."], id="no UTF-8"),
        pytest.param(b"[" * 100_000, None, "text", ["[" * CHARACTERS_MAX], id="deep"),
    ],
)  # fmt: skip
def test_a_body_is_json_text_or_hex(
    body: bytes, form: str | None, shown: str, lines: list[str]
) -> None:
    text = body_text(body, form)
    assert (text.form, list(text.lines)) == (shown, lines)
    assert text.is_cut == (len(body) > CHARACTERS_MAX)


def test_a_preview_is_one_short_line() -> None:
    assert preview(b"a\n  b") == "a b"
    assert preview(b"x" * 100) == "x" * 59 + "…"
    assert preview(None) == ""


def test_no_page_is_heavy(tmp_path: Path) -> None:
    """All of a page with its assets, a body of characters that HTML writes longest."""
    job = InMemoryJob(tmp_path / "lake")
    for number in range(100):
        job.half(f"{number:032x}", keys=f"order-{number}", producer_group="billing-service-europe")
    job.end(COMMIT, job.half("large", body=b'"' * 300_000))
    job.run()
    console = client(job.lake.path)
    assets = sum(len(console.get(path).content) for path in ("/style.css", "/console.js"))
    paths = ("/", "/transactions", "/transactions?state=all&since=any", "/topics")
    for path in (*paths, "/record?of=half:0-100", "/messages?topic=orders", "/story?of=half:0-0"):
        assert len(console.get(path).content) + assets <= 150_000, path

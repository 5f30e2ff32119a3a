"""The console's pages of what listeners have refused: listed, resumed or dropped, and gone."""

from __future__ import annotations

import csv
import html
import io
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipelines.health.consumer_retries import count_refused, read_dropped, read_refused
from storage.lake.lake import Lake
from tests.support.console_client import HOST, TOKEN, client, crawl
from tests.support.in_memory_job import InMemoryJob
from tests.support.listeners import refuse, run_until
from tests.support.operator import write_conf
from txlake.protocol import COMMIT

SAID = {"reason": "ticket 4711", "confirmed": "yes"}


def counts(path: str) -> list[tuple[str, int, int]]:
    """Return each group's name, and how many of its messages are dead, and come again."""
    rows = count_refused(Lake(path))
    return [(row["consumer_group"], row["dead"], row["retrying"]) for row in rows]


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A lake of three messages that the group points has given up."""
    job = InMemoryJob(tmp_path / "lake")
    for number in range(3):
        job.end(COMMIT, job.half(real_queue_id=0, keys=f"k{number}"))
    job.run()

    path = job.lake.path
    run_until(path, refuse, lambda: counts(path) == [("points", 3, 0)], retries_max=0)
    return path


@pytest.fixture
def console(lake: str, tmp_path: Path) -> TestClient:
    return client(lake, write_conf(tmp_path), token=TOKEN, allow_writes=True)


def log_in(console: TestClient) -> None:
    form = {"actor": "ada", "token": TOKEN, "then": "/"}
    console.post("/login", data=form, headers={"origin": f"http://{HOST}"})


def targets(page: str) -> list[str]:
    """Return the messages that can be chosen on a page."""
    return re.findall(r'<input type="checkbox" name="target" value="([^"]*)"', page)


def form_of(console: TestClient, *targets: str, action: str = "resume") -> dict[str, Any]:
    page = console.get(f"/consumer_{action}", params={"group": "points", "target": targets}).text
    (value,) = set(re.findall(r'name="form" value="([^"]*)"', page))
    return {"form": value, "group": "points", "target": list(targets)}


def test_dead_messages_are_seen_from_the_overview_on(console: TestClient) -> None:
    overview = console.get("/").text
    assert '<strong class="bad" title="consumer_dead">Consumer dead</strong>' in overview
    assert "consumer group points has given up 3 messages, the oldest" in overview
    assert "nobody is behind, 3 dead" in overview

    pages = crawl(console)
    assert "/consumer_dead?group=points" in pages and "/consumers" in pages
    assert '<a href="/consumer_dead?group=points">3 dead</a>' in pages["/consumer?group=points"]
    dead = console.get("/consumer_dead?group=points").text
    assert targets(dead) == ["orders:0-0", "orders:0-1", "orders:0-2"]
    assert "ValueError: no JSON: k0" in dead
    assert 'href="/message?topic=orders&amp;queue=0&amp;offset=1"' in dead
    assert targets(console.get("/consumer_dead").text) == []  # first a group, then its messages
    assert "No dead messages" in console.get("/consumer_dead?group=points&topic=bills").text


def test_a_message_that_a_group_has_given_up_is_not_shown_as_read(console: TestClient) -> None:
    page = console.get("/message?topic=orders&queue=0&offset=1").text
    assert "Given up" in page and "refused once, given up" in page
    assert "Has read it" not in page


def test_an_export_has_the_columns_of_the_command(console: TestClient) -> None:
    text = console.get("/consumer_dead?format=csv").text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["consumer_group", "topic", "queue_id", "queue_offset", "attempts",
                             "since", "keys", "reason"]  # fmt: skip
    assert [(row["keys"], row["attempts"]) for row in rows] == [
        ("k0", "1"),
        ("k1", "1"),
        ("k2", "1"),
    ]


def test_dead_messages_are_resumed_and_the_problem_is_gone(
    console: TestClient, lake: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_in(console)
    address = "/consumer_resume?group=points&target=orders:0-1"
    assert "1 message would come to the listener of points again" in console.get(address).text
    data = form_of(console, "orders:0-1")
    lacking = console.post("/consumer_resume", data=data)
    assert lacking.status_code == 400 and "say why" in lacking.text
    assert counts(lake) == [("points", 3, 0)]

    answer = console.post("/consumer_resume", data={**data, **SAID})
    assert answer.headers["location"] == "/consumer_retries?group=points"
    again = console.post("/consumer_resume", data={**data, **SAID})
    assert again.headers["location"] == "/consumer_retries?group=points"
    assert counts(lake) == [("points", 2, 1)]
    assert "ada resumed 1 dead message of consumer group points, orders:0-1: ticket 4711" in (
        caplog.text
    )
    assert "ValueError: no JSON: k1" in console.get("/consumer_retries?group=points").text
    assert "1 retrying" in console.get("/consumer?group=points").text

    everything = console.get("/consumer_resume?group=points&topic=orders&max=100").text
    remaining = re.findall(r'name="target" value="([^"]*)"', everything)
    assert list(map(html.unescape, remaining)) == ["orders:0-0", "orders:0-2"]
    console.post("/consumer_resume", data={**form_of(console, *remaining), **SAID})
    assert read_refused(Lake(lake), "dead", None, None) == []
    assert 'title="consumer_dead"' not in console.get("/").text

    run_until(lake, lambda _: None, lambda: counts(lake) == [])
    assert "No message waits for a retry" in console.get("/consumer_retries").text


def test_dead_messages_are_dropped_and_their_rows_say_who_did_it(
    console: TestClient, lake: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_in(console)
    assert 'formaction="/consumer_drop"' in console.get("/consumer_dead?group=points").text
    preview = console.get("/consumer_drop?group=points&target=orders:0-1").text
    assert "1 message would not come to the listener of points any more" in preview
    data = form_of(console, "orders:0-1", action="drop")
    lacking = console.post("/consumer_drop", data=data)
    assert lacking.status_code == 400 and "say why" in lacking.text
    assert counts(lake) == [("points", 3, 0)]

    answer = console.post("/consumer_drop", data={**data, **SAID})
    assert answer.headers["location"] == "/consumer_dead?group=points"
    assert counts(lake) == [("points", 2, 0)]
    assert "ada dropped 1 dead message of consumer group points, orders:0-1: ticket 4711" in (
        caplog.text
    )
    (row,) = read_dropped(Lake(lake), "points", "orders")
    assert (row["queue_offset"], row["actor"], row["reason"]) == (1, "ada", "ticket 4711")

    assert targets(console.get("/consumer_dead?group=points").text) == ["orders:0-0", "orders:0-2"]
    rest = form_of(console, "orders:0-0", "orders:0-2", action="drop")
    console.post("/consumer_drop", data={**rest, **SAID})
    assert counts(lake) == []
    assert "consumer_dead" not in re.findall(r'<strong class="bad">(\w+)</strong>',
                                             console.get("/").text)  # fmt: skip


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("", 400, "choose 1 to 100 dead messages"),
        ("group=points", 400, "choose 1 to 100 dead messages"),
        ("group=points&max=101", 400, "a number from 1 to 100 is allowed"),
        ("group=points&target=orders:0-9", 404, "none of the chosen messages of consumer group"),
        ("group=mails&target=orders:0-0", 404, "group mails has no such dead message"),
    ],
)
def test_what_cannot_be_resumed_is_one_sentence(
    console: TestClient, query: str, status: int, text: str
) -> None:
    answer = console.get(f"/consumer_resume?{query}")
    assert answer.status_code == status and text in answer.text


def test_what_is_not_dead_any_more_is_left_out(console: TestClient) -> None:
    query = "group=points&target=orders:0-0&target=orders:0-9"
    assert "1 left out: not dead any more" in console.get(f"/consumer_resume?{query}").text


def test_a_console_that_only_reads_names_the_command(lake: str, tmp_path: Path) -> None:
    reading = client(lake, write_conf(tmp_path), token=TOKEN)
    page = reading.get("/consumer_resume?group=points&target=orders:0-1").text
    assert "txlake consumer dead resume points --topic orders --queue 0 --offset 1 --yes" in page
    page = reading.get("/consumer_drop?group=points&target=orders:0-1").text
    assert "txlake consumer dead drop points --topic orders --queue 0 --offset 1 --reason" in page
    log_in(reading)
    data = {"group": "points", "target": "orders:0-1", **SAID}
    assert reading.post("/consumer_resume", data=data).status_code == 403
    assert counts(lake) == [("points", 3, 0)]

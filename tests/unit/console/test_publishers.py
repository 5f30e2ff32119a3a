"""The console's pages of publishers: what has stopped, what a skip would do, and what it did."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipelines.console import publishers
from pipelines.errors import KafkaAwayError
from pipelines.kafka_client.group_members import Members
from pipelines.publish.destination import Destination
from pipelines.publish.progress import (
    ProgressLog,
    Stop,
    TopicProgress,
    read_log,
    stop_record,
    topic_record,
)
from pipelines.publish.status import COLUMNS, find_publishers
from pipelines.publish.transactions import Transactions
from tests.support.console_client import HOST, TOKEN, client
from tests.support.in_memory_job import InMemoryJob
from tests.support.operator import said, write_conf
from txlake.protocol import COMMIT, CREATE_TOPIC

SAID = {"reason": "ticket 4711", "confirmed": "yes"}
WHY = "the Kafka topic orders does not take message half:0-1"
SKIP = "/skip?publisher=main&topic=orders&queue=1&offset=1"


class ProgressTopic:
    """The progress topic in memory, instead of Kafka, which the test in a browser has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []

        def progress(_: Destination, *, is_patient: bool = False) -> ProgressLog:
            return read_log(self.records)

        def send(_: Transactions, topic: str, records: Iterable[Any]) -> None:
            self.records += records

        monkeypatch.setattr(Destination, "progress", progress)
        monkeypatch.setattr(Destination, "make_progress_topic", lambda _: None)
        monkeypatch.setattr(Transactions, "send_progress", send)
        for name in ("init", "begin", "commit"):
            monkeypatch.setattr(Transactions, name, lambda _: None)

        find = partial(find_publishers, describe=lambda _: Members("host:1:a"))
        monkeypatch.setattr(publishers, "find_publishers", find)

    def log(self) -> ProgressLog:
        return read_log(self.records)


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    """Three messages in queue 1 of orders."""
    job = InMemoryJob(tmp_path / "lake")
    job.command(CREATE_TOPIC, "topic:orders:4")
    job.run()
    for number in range(3):
        job.end(COMMIT, job.half(f"tx-{number}", real_queue_id=1, keys=f"order-{number}"))
    job.run()
    return job


@pytest.fixture
def progress(job: InMemoryJob, monkeypatch: pytest.MonkeyPatch) -> ProgressTopic:
    """A publisher that has published the first of them, and has stopped at the second."""
    monkeypatch.setattr("time.time_ns", lambda: job.at * 1_000_000)
    owner = (job.lake.lake_id(), "main")
    published = TopicProgress("orders", "orders", "id", (0, 1, 0, 0), (-1, 0, -1, -1), 2, "digest")
    topic = ProgressTopic(monkeypatch)
    topic.records.append(topic_record(*owner, published))
    topic.records.append(stop_record(*owner, Stop(WHY, "orders", 1, 1, job.at - 60_000)))
    return topic


@pytest.fixture
def conf(tmp_path: Path) -> str:
    path = Path(write_conf(tmp_path))
    path.write_text(path.read_text() + "[publish.main]\n")
    return str(path)


@pytest.fixture
def console(job: InMemoryJob, progress: ProgressTopic, conf: str) -> TestClient:
    return client(job.lake.path, conf, token=TOKEN, allow_writes=True)


def log_in(console: TestClient) -> None:
    form = {"actor": "ada", "token": TOKEN, "then": "/"}
    console.post("/login", data=form, headers={"origin": f"http://{HOST}"})


def text_of(page: str) -> str:
    """Return what a page says, without its elements."""
    return html.unescape(re.sub("<[^>]+>", "", page))


def form_of(page: str) -> dict[str, str]:
    """Return the hidden fields of a page's last form."""
    form = page.rpartition("<form")[2]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))


def test_publishers_are_shown_as_the_command_shows_them(console: TestClient, conf: str) -> None:
    shown = console.get("/publishers").text
    assert f"Publisher main has stopped, 1 min ago: {WHY}" in text_of(shown)
    assert f'href="{html.escape(SKIP)}"' in shown
    assert 'href="/message?topic=orders&amp;queue=1&amp;offset=1"' in shown

    (row,) = csv.DictReader(io.StringIO(console.get("/publishers?format=csv").text))
    assert tuple(row) == COLUMNS
    assert (row["published"], row["lag"], row["active"]) == ("1", "2", "host:1:a")
    assert row["stopped"] == WHY


def test_a_preview_says_what_the_command_says_of_which_message_and_why(
    console: TestClient, progress: ProgressTopic, conf: str
) -> None:
    before = list(progress.records)
    page = console.get(SKIP).text
    told = said(
        *("publish", "skip", "--topic", "orders", "--queue", "1", "--offset", "1"),
        *("--reason", "why", "--dry-run", "--conf", conf),
    )
    line = told.strip().removeprefix("would be: ")
    assert line == "topic orders queue 1: message 1 is not published"
    assert f"Publisher main would go past 1 message: {line}." in text_of(page)
    assert f"Why it has stopped, 1 min ago: {WHY}" in text_of(page)
    assert 'href="/find?keys=order-1"' in page and "order-2" not in page
    assert 'href="/message?topic=orders&amp;queue=1&amp;offset=1"' in page
    assert "Nothing is written yet" in page and "Log in to skip" in page

    both = console.get(f"{SKIP}&to=2").text
    assert "2 messages: topic orders queue 1: messages 1 to 2 are not published" in text_of(both)
    assert 'href="/find?keys=order-2"' in both
    assert progress.records == before


def test_one_that_has_not_stopped_would_publish_it(
    console: TestClient, progress: ProgressTopic
) -> None:
    del progress.records[1]
    assert "it would publish this message if nobody skips it" in console.get(SKIP).text
    assert "has stopped" not in console.get("/publishers").text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ("offset=0", "message 0; those that are committed and not published begin at 1"),
        ("offset=3", "message 3; those that are committed and not published begin at 1"),
        ("offset=2&to=1", "messages 2 to 1; those that are committed"),
        ("offset=1&to=3", "messages 1 to 3; those that are committed"),
        ("offset=1&queue=7", "topic orders queue 7: message 1; those that are"),
        ("offset=1&topic=bills", "publisher main has not published topic bills yet"),
    ],
)
def test_what_cannot_be_skipped_is_refused_with_the_commands_sentence(
    console: TestClient, progress: ProgressTopic, values: str, text: str
) -> None:
    log_in(console)
    named = dict(pair.split("=") for pair in values.split("&"))
    fields = {"publisher": "main", "topic": "orders", "queue": "1", **named}
    answer = console.get("/skip", params=fields)
    assert answer.status_code == 200
    assert "Nothing can be skipped:" in answer.text and text in answer.text
    assert 'name="reason"' not in answer.text

    form = form_of(console.get(SKIP).text)["form"]
    answer = console.post("/skip", data={**fields, "form": form, **SAID})
    assert answer.status_code == 404 and text in answer.text
    assert progress.log().skips == {}


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "publisher = &#39;&#39;: one of main is allowed"),
        ("publisher=other&topic=orders&queue=1&offset=1", "one of main is allowed"),
        ("publisher=main&topic=orders&queue=1", "a message is named by topic, queue and offset"),
        ("publisher=main&topic=orders&offset=1", "a message is named by topic, queue and offset"),
        ("publisher=main&topic=orders&queue=x&offset=1", "a number from 0 is allowed"),
        ("publisher=main&topic=orders&queue=1&offset=1&to=-1", "a number from 0 is allowed"),
    ],
)
def test_what_names_no_message_is_one_sentence(console: TestClient, query: str, text: str) -> None:
    answer = console.get(f"/skip?{query}")
    assert answer.status_code == 400 and text in answer.text


def test_a_skip_is_written_with_who_and_why_and_shown(
    console: TestClient, job: InMemoryJob, progress: ProgressTopic
) -> None:
    log_in(console)
    assert "has stopped" in console.get("/publishers").text
    form = form_of(console.get(SKIP).text)
    assert {name: form[name] for name in ("topic", "queue", "offset", "to")} == {
        "topic": "orders", "queue": "1", "offset": "1", "to": "1",
    }  # fmt: skip

    lacking = console.post("/skip", data=form)
    assert lacking.status_code == 400 and "say why" in lacking.text
    assert "would go past 1 message" in lacking.text and progress.log().skips == {}

    answers = [console.post("/skip", data={**form, **SAID}) for _ in range(2)]
    for answer in answers:
        assert (answer.status_code, answer.headers["location"]) == (303, "/publishers#skips")

    ((owner, (skip,)),) = progress.log().skips.items()
    assert owner == (job.lake.lake_id(), "main")
    assert sum(b'"skip"' in key for key, _ in progress.records) == 1, "sent twice, written once"
    assert (skip.topic, skip.queue_id, skip.from_offset, skip.to_offset) == ("orders", 1, 1, 1)
    assert (skip.actor, skip.reason) == ("ada", "ticket 4711")

    shown = console.get("/publishers").text
    assert "has stopped" not in shown, "the page after it asks Kafka anew"
    assert "Skipped by operators" in shown and "ticket 4711" in shown and "ada" in shown


def test_a_console_that_only_reads_names_the_command(
    job: InMemoryJob, progress: ProgressTopic, conf: str
) -> None:
    page = client(job.lake.path, conf, token=TOKEN).get(f"{SKIP}&to=2").text
    assert (
        "txlake publish skip --name main --topic orders --queue 1 --offset 1 --to 2 --reason"
        in text_of(page)
    )


def test_without_settings_or_publishers_the_page_says_so(job: InMemoryJob, tmp_path: Path) -> None:
    reading = client(job.lake.path)
    assert "Publishers are known with --conf." in reading.get("/publishers").text
    answer = reading.get(SKIP)
    assert answer.status_code == 400 and "publishers are known with --conf" in answer.text

    without = client(job.lake.path, write_conf(tmp_path))
    assert "No publishers." in without.get("/publishers").text
    assert "one of (none) is allowed" in without.get(SKIP).text


def test_a_kafka_that_is_away_is_one_sentence(
    console: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise KafkaAwayError("Kafka at 127.0.0.1:1 did not answer")

    monkeypatch.setattr(Destination, "progress", away)
    shown = console.get("/publishers")
    assert shown.status_code == 200 and "Kafka at 127.0.0.1:1 did not answer" in shown.text
    assert "Skip messages" not in shown.text
    answer = console.get(SKIP)
    assert answer.status_code == 503 and "Kafka at 127.0.0.1:1 did not answer" in answer.text


def test_a_publisher_whose_kafka_is_away_is_named_beside_the_others(
    job: InMemoryJob, progress: ProgressTopic, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Destination, *, is_patient: bool = False) -> ProgressLog:
        if self._servers == "other:1":
            raise KafkaAwayError("Kafka at other:1 did not answer")
        return progress.log()

    monkeypatch.setattr(Destination, "progress", read)
    path = Path(conf)
    path.write_text(path.read_text() + '[publish.second]\nbootstrap_servers = "other:1"\n')
    shown = text_of(client(job.lake.path, conf).get("/publishers").text)
    assert "How far publisher second is, nobody knows: Kafka at other:1 did not answer" in shown
    assert "Publisher main has stopped" in shown

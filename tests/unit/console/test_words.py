"""The words of tables: headings, statuses, shortened texts; exports keep the columns' names."""

from __future__ import annotations

import csv
import datetime as dt
import html
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.console.charts import charts
from pipelines.console.urls import PAGES
from pipelines.console.words import filled, heading, is_numeric, shorten, status_look, status_words
from pipelines.health.history import History, read_history
from pipelines.health.transactions import COLUMNS
from storage.lake.epochs import Plan
from tests.support.console_client import client
from tests.support.in_memory_job import InMemoryJob
from txlake._retries import TABLE, WAITING, ConsumerRetries, Retry
from txlake.protocol import COMMIT


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("producer_group", "Producer group"), ("real_topic", "Topic"), ("stored_at", "Stored"),
        ("transaction_id", "Transaction id"), ("of_checks", "Of checks"), ("lag", "Lag"),
        ("keeps_ms", "Keeps, time"), ("on_disk_bytes", "On disk"), ("lag_ms", "Lag time"),
    ],
)  # fmt: skip
def test_a_heading_is_in_words(column: str, words: str) -> None:
    assert heading(column) == words


@pytest.mark.parametrize(
    ("text", "look", "words"),
    [
        ("COMMITTED", "good", "Committed"), ("ROLLED_BACK", "off", "Rolled back"),
        ("PENDING", "wait", "Pending"), ("DISCARDED", "bad", "Discarded"),
        ("undeliverable", "bad", "Undeliverable"), ("check_max", "off", "Check max"),
        ("has read it", "good", "Has read it"), ("has not read it", "wait", "Has not read it"),
        ("COMMITTED, delayed", "good", "Committed, delayed"),
        ("COMMITTED, undeliverable", "bad", "Committed, undeliverable"),
    ],
)  # fmt: skip
def test_a_status_has_words_and_a_look(text: str, look: str, words: str) -> None:
    assert (status_look(text), status_words(text)) == (look, words)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0123456789abcdef0123456789abcdef", "0123456789abc…456789abcdef"),
        ("half:1-21", "half:1-21"),
        ("x" * 26, "x" * 26),
        ("x" * 27, "x" * 13 + "…" + "x" * 12),
        ("a\u202eb", "a\\u202eb"),
    ],
)
def test_a_long_text_is_shortened_in_the_middle(text: str, shown: str) -> None:
    assert shorten(text) == shown
    assert len(shorten(text)) <= 26


def test_an_empty_column_is_left_out_and_numbers_stand_on_the_right() -> None:
    rows = [{"a": None, "b": 1, "c": "", "d_at": 5}, {"a": None, "b": None, "c": "x", "d_at": 6}]
    assert filled(("a", "b", "c", "d_at"), rows) == ["b", "c", "d_at"]
    assert [is_numeric(name, rows) for name in ("a", "b", "c", "d_at")] == [
        False, True, False, False,
    ]  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    job = InMemoryJob(tmp_path / "lake")
    job.half("first", keys="=1+1", producer_group="shop")
    job.end(COMMIT, job.half("second"))
    job.run()
    return job


def test_an_export_has_the_columns_own_names(job: InMemoryJob) -> None:
    console = client(job.lake.path)
    answer = console.get("/transactions?state=all&since=any&format=csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert tuple(rows[0]) == COLUMNS and len(rows) == 2
    assert rows[0]["keys"] == "'=1+1" and rows[0]["stored_at"].endswith("Z")
    told = console.get("/topics?format=json").json()
    assert told[0]["topic"] == "orders"
    assert console.get("/topics?format=xml").status_code == 400
    shown = console.get("/transactions").text
    assert '<th scope="col" title="producer_group">Producer group</th>' in shown


def test_an_export_has_more_rows_than_a_page(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    for number in range(110):
        job.half(f"t{number}")
    job.run()

    console = client(job.lake.path)
    shown = console.get("/transactions").text
    assert "50 of 110 rows" in shown
    (exported,) = re.findall('href="([^"]*format=csv[^"]*)"', shown)
    rows = csv.DictReader(io.StringIO(console.get(html.unescape(exported)).text))
    assert len(list(rows)) == 110

    (more,) = re.findall('href="([^"]*limit=100)">show up to 100<', shown)
    answer = console.get(html.unescape(more))
    assert "100 of 110 rows" in answer.text
    assert len(answer.content) < 130_000, "150 KB with style and script"


def test_messages_are_exported_as_other_lists_are(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    for number in range(60):
        job.end(COMMIT, job.half(f"t{number}"))
    job.run()
    console = client(job.lake.path)

    for more in ("", "&limit=1000"):
        answer = console.get(f"/messages?topic=orders&format=csv{more}")
        assert len(list(csv.DictReader(io.StringIO(answer.text)))) == 60
    assert console.get("/messages?topic=orders&format=csv&limit=1001").status_code == 400
    assert console.get("/messages?topic=orders&limit=1000").status_code == 400


def test_a_group_with_refused_messages_alone_counts_as_a_consumer(job: InMemoryJob) -> None:
    at = dt.datetime.now(dt.timezone.utc)
    retries = ConsumerRetries(job.lake.table_path(TABLE), {}, job.lake.lake_id())
    attempts = [{"attempted_at": at, "reason": "x"}]
    retry = Retry("mails", "orders", 0, 0, WAITING, 1, at, attempts, 1, at)
    retries.write(lambda _, written_at: [replace(retry, committed_at=written_at)])
    shown = client(job.lake.path).get("/consumers").text
    assert "mails" in shown
    assert re.search(r'<a href="/consumers"[^>]*>Consumers <span class="count">1<', shown)


def test_pages_have_their_counts_as_of_the_newest_epoch(job: InMemoryJob) -> None:
    console = client(job.lake.path)

    def counts() -> dict[str, str]:
        counted = []
        for path, _ in PAGES:
            text = console.get(path).text
            shown = re.findall(r'<a href="/(\w+)"[^>]*>\w+ <span class="count[^"]*">(\d+)<', text)
            counted.append(dict(shown))
        assert all(shown == counted[0] for shown in counted), "every page has the same"
        return counted[0]

    assert counts() == {"transactions": "1", "topics": "1"}
    job.end(COMMIT, job.half("later", delay_level=3))
    job.end(COMMIT, job.half("nowhere", real_queue_id=77))
    job.run()
    assert counts() == {"transactions": "1", "topics": "2", "delayed": "1", "dead": "1"}


@pytest.mark.parametrize(
    ("path", "status", "title"),
    [("/nope", 404, "Not there"), ("/?since=2y", 400, "Not understood"),
     ("/download?of=half:0-9", 404, "Not there")],
)  # fmt: skip
def test_an_error_has_a_page_of_its_kind(
    job: InMemoryJob, path: str, status: int, title: str
) -> None:
    answer = client(job.lake.path).get(path)
    assert answer.status_code == status and f"<h1>{title}</h1>" in answer.text
    assert 'href="/transactions"' in answer.text


class RestartedJob(InMemoryJob):
    """A job whose epochs are planned by a driver that a test names."""

    owner = "first:1"

    def _plan(self, *args: Any) -> Plan:
        return replace(super()._plan(*args), owner=self.owner)


def test_a_restart_is_a_line_on_every_chart(tmp_path: Path) -> None:
    job = RestartedJob(tmp_path / "lake")
    for owner in ("first:1", "first:1", "second:2"):
        job.owner = owner
        job.half(owner)
        job.run(10_000)

    history = read_history(job.lake, job.at, 60_000, 3)
    assert [(row["changed_at"], row["owner"]) for row in history.changes] == [(job.at, "second:2")]
    for chart in charts(history):
        (mark,) = chart.changes
        assert mark.x == 600 and mark.text == "00:00:30: second:2 took over"


def test_a_chart_tells_its_values_and_its_axis() -> None:
    row = {"epochs": 1, "waiting": 4, "lag_ms": 1_500, "pending": 2, "landed": 10, "ended": 5,
           "given_up": 0, "p50_ms": 20, "max_ms": 30}  # fmt: skip
    history = History(0, 120_000, 1_000, [{**row, "bucket": 10}], False)
    lag, waiting, _, rates, _ = charts(history)
    assert lag.ticks == ("1.5 s", "750 ms", "0") and waiting.ticks == ("4", "2", "0")
    assert [(mark.x, mark.text) for mark in lag.values] == [(50, "00:00:10: lag 1.5 s")]
    assert rates.values[0].text == "00:00:10: landed 10, ended 5, given up 0"


def test_large_numbers_of_a_chart_are_whole_with_separators() -> None:
    row = {"epochs": 1, "waiting": 1_234_567, "lag_ms": 0, "pending": 12_345, "landed": 28_852,
           "ended": 999, "given_up": 0, "p50_ms": 1, "max_ms": 1, "bucket": 10}  # fmt: skip
    _, waiting, pending, rates, _ = charts(History(0, 120_000, 1_000, [row], False))
    assert waiting.ticks == ("1,234,567", "617,284", "0")
    assert pending.ticks == ("12,345", "6,172", "0")
    assert rates.values[0].text == "00:00:10: landed 28,852, ended 999, given up 0"


def test_a_chart_of_nothing_but_zeros_has_one_zero_on_its_axis() -> None:
    row = {"epochs": 1, "waiting": 0, "lag_ms": 0, "pending": 1, "landed": 0, "ended": 0,
           "given_up": 0, "p50_ms": 1, "max_ms": 1, "bucket": 10}  # fmt: skip
    lag, waiting, pending, rates, times = charts(History(0, 120_000, 1_000, [row], False))
    assert lag.ticks == waiting.ticks == rates.ticks == ("", "", "0")
    assert pending.ticks == ("1", "0.5", "0")
    assert times.ticks == ("1 ms", "", "0"), "half a millisecond would be 0 ms"

"""The console's pages: each shows what the command of its name shows, and leads on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelines.console.charts import HEIGHT, charts
from pipelines.console.query_params import ROWS
from pipelines.console.urls import PAGES, link
from pipelines.console.words import status_words
from pipelines.health.conflicts import read_conflicts
from pipelines.health.dead_letters import read_dead
from pipelines.health.facts import Facts, lake_facts
from pipelines.health.history import BUCKETS, History, read_history
from pipelines.health.problems import problems
from pipelines.health.transactions import Filters, count_of_group, list_pending, list_stored
from pipelines.output import instant
from storage.lake.lake import Lake
from tests.support.console_client import client, crawl, links
from tests.support.damage import WholeJob
from tests.support.in_memory_job import START_AT as JOB_START_AT
from tests.support.in_memory_job import InMemoryJob
from tests.support.lake_rows import LakeRows
from tests.support.notebook_lake import EPOCHS, START_AT, STEP_MS
from tests.support.operator import said
from txlake.protocol import COMMIT

SCRIPT = '<script src="/console.js" defer></script>'


def test_every_page_is_there_and_every_link_leads_to_one(shop_lake: str, shop_now: int) -> None:
    pages = crawl(client(shop_lake))
    kinds = {path.partition("?")[0] for path in pages}
    assert kinds >= {where for where, _ in PAGES} | {"/story", "/topic", "/find"}
    for path, text in pages.items():
        assert text.count("<h1>") == 1 and "<title>" in text, path
        assert text.count("<script") == text.count(SCRIPT) == 1, path
        assert "style=" not in text and "<style" not in text and not re.search(r" on\w+=", text), (
            path
        )


def test_the_overview_has_what_status_says(shop_lake: str, shop_now: int) -> None:
    shown = client(shop_lake).get("/").text
    lake = Lake(shop_lake)
    found = problems(Facts(lake_facts(lake, shop_now)))
    named = re.findall(r'<strong class="bad" title="(\w+)">([^<]+)</strong>', shown)
    assert [one.name for one in found] == [name for name, _ in named]
    assert all(words == status_words(name) for name, words in named)
    assert re.search(r"<h1>\d problems?</h1>", shown)
    text = said("status", "--lake", shop_lake)
    for line in text.splitlines():
        name, fact = line[:15].rstrip(), line[15:].strip()
        if name in ("pending", "given up", "undeliverable", "delayed", "floor"):
            assert f"<dt>{name}</dt><dd data-watch><span>{fact}</span>" in shown, line
    assert (
        "Not known: Not running, Kafka away, No epoch, Lag, No check topic, Publisher stopped, "
        "Publisher gone, Publisher lag, Publisher unknown, Floor near (--conf"
        in re.sub("<[^>]+>", "", shown)
    )
    assert '<span title="kafka_away">Kafka away</span>' in shown


def test_the_overview_says_since_when_halves_are_given_up(shop_lake: str, shop_now: int) -> None:
    since = {
        name: min(row["since"] for row in read_dead(Lake(shop_lake)) if kind in row["target"])
        for name, kind in (("given_up", "half:"), ("undeliverable", "undeliverable:"))
    }
    shown = client(shop_lake).get("/").text
    found = re.findall(r'title="(given_up|undeliverable)">.*?title="since ([^"]+)"', shown)
    assert dict(found) == {name: instant(at) for name, at in since.items()}


def test_lists_have_the_rows_of_their_commands(shop_lake: str, shop_now: int) -> None:
    console, lake = client(shop_lake), Lake(shop_lake)

    def targets(path: str) -> list[str]:
        found = re.findall(
            r'href="/story\?of=((?:half|schedule)%3A[\d-]+)"', console.get(path).text
        )
        return [target.replace("%3A", ":") for target in found]

    rows, count = list_pending(lake, Filters())
    assert count == len(rows) > 3
    assert targets("/transactions") == [row["target"] for row in rows]
    some, _ = list_pending(lake, Filters(group="billing"))
    assert 0 < len(some) < len(rows)
    assert targets("/transactions?group=billing") == [row["target"] for row in some]
    _, of_group = list_stored(lake, Filters(group="billing"), 1)
    assert count_of_group(lake, "billing") == of_group > 0 == count_of_group(lake, "no-such-group")
    everything, count = list_stored(lake, Filters(), ROWS)
    assert targets("/transactions?state=all&since=any") == [row["target"] for row in everything]
    assert f"{count - ROWS} more" in console.get("/transactions?state=all&since=any").text
    dead = [row["target"] for row in read_dead(lake) if row["target"].startswith("half")]
    assert targets("/dead") == dead != []
    conflicts = read_conflicts(lake, None).rows[::-1]
    shown = console.get("/conflicts?since=90d").text
    for reason in {row["reason"] for row in conflicts}:
        assert f'title="{reason}">{status_words(reason)}</a>' in shown
    assert "<h2>By group</h2>" in shown


@pytest.mark.parametrize(
    ("asked", "leads_to"),
    [
        ("0-3", "/story?of=0-3"),
        ("half:0-3", "/story?of=half%3A0-3"),
        ("legacy", "/transactions?group=legacy&state=all&since=any"),
        (" 0-3 ", "/story?of=0-3"),
        ("", "/transactions"),
    ],
)
def test_whatever_is_known_of_a_transaction_finds_it(
    asked: str, leads_to: str, shop_lake: str, shop_now: int
) -> None:
    answer = client(shop_lake).get("/find", params={"q": asked})
    assert (answer.status_code, answer.headers["location"]) == (303, leads_to)


def test_keys_and_ids_find_a_story_or_a_list(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("first", keys="order-1")
    job.half("second", keys="order-2 urgent")
    job.half("third", keys="order-2")
    job.run()
    console = client(job.lake.path)

    def to(asked: str) -> str | None:
        return console.get("/find", params={"q": asked}).headers.get("location")

    assert to("first") == "/story?of=first"
    assert to("order-1") == "/story?of=half%3A0-0"
    assert to("order-2") is None
    page = console.get("/find", params={"q": "order-2"}).text
    assert {"/story?of=half%3A0-1", "/story?of=half%3A0-2"} <= links(page, "/find")
    nothing = console.get("/find", params={"q": "order-3"}).text
    assert "No transaction id, keys or producer group of this lake is “order-3”." in nothing


def test_an_order_number_that_looks_like_a_place_is_found(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("first", keys="2026-1001")
    job.half("2026-1002")
    job.half("third", keys="0-1")
    job.run()
    console = client(job.lake.path)

    def to(**asked: str) -> str | None:
        return console.get("/find", params=asked).headers.get("location")

    assert to(q="2026-1001") == to(keys="2026-1001") == "/story?of=half%3A0-0"
    assert to(q="2026-1002") == "/story?of=id%3A2026-1002"
    assert (to(q="0-1"), to(keys="0-1")) == ("/story?of=0-1", "/story?of=half%3A0-2")
    assert to(q="2026-1003") == "/story?of=2026-1003"
    assert "there is no half 2026-1003" in console.get("/story?of=2026-1003").text
    assert (to(keys="first"), to(keys="2026-1003")) == (None, None)
    assert "/find?keys=2026-1001" in links(console.get("/transactions").text, "/find")


def test_a_name_that_is_not_there_is_said(shop_lake: str, shop_now: int) -> None:
    console = client(shop_lake)
    for path, text in {
        "/topic?name=nope": "there is no topic &#39;nope&#39; in the lake",
        "/consumer?group=nope": "consumer group &#39;nope&#39; has read nothing of the lake",
        "/conflicts?reason=nope": "no operation has the reason &#39;nope&#39;",
    }.items():
        answer = console.get(path)
        assert (answer.status_code, text in answer.text) == (404, True), answer.text
    for path, name in {
        "/transactions?group=nope": "group", "/dead?topic=nope": "topic",
        "/delayed?group=nope": "group", "/conflicts?group=nope": "group",
    }.items():  # fmt: skip
        assert f"; asked for {name} “nope” only." in console.get(path).text, path


def test_a_story_is_the_one_that_explain_tells(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake", check_max=0)
    job.half("tx", keys="order-1", producer_group="shop")
    job.run()
    job.run(6_001)
    shown = client(job.lake.path).get("/story?of=tx").text
    told = said("tx", "explain", "tx", "--lake", job.lake.path)
    lines = [line for line in told.splitlines() if line and not line.startswith("when")]
    for line in lines:
        text = line.split("  ")[-1].strip()
        assert text.replace('"', "&#34;").replace("'", "&#39;") in shown, line
    assert "DISCARDED" in shown and "/resume?target=half%3A0-0" in shown
    assert 'href="/find?keys=order-1"' in shown and 'href="/topic?name=orders"' in shown
    missing = client(job.lake.path).get("/story?of=0-7")
    assert missing.status_code == 404 and "there is no half 0-7" in missing.text


def test_the_story_of_a_large_set_has_as_much_as_one_page_can_do(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    sets = {"dead": {"real_queue_id": 77}, "delayed": {"deliver_at": JOB_START_AT + 10**9}}
    for queue, (name, columns) in enumerate(sets.items()):
        halves = [
            job.half(name, queue=queue, tran_size=110, tran_seq=at, **columns) for at in range(110)
        ]
        job.end(COMMIT, halves[0], queue=queue)
    job.run()
    job.run()
    console = client(job.lake.path)

    text = console.get("/story?of=dead").text
    (resume,) = [path for path in links(text, "/story") if path.startswith("/resume")]
    assert console.get(resume).status_code == 200 and resume.count("target=") == 100
    assert "See what a resume of the first 100 would do" in text
    assert "<code>txlake dead resume --group g --max 110</code>" in text

    text = console.get("/story?of=delayed").text
    assert text.count("Cancel the delay") == 5
    assert "105 more are delayed" in text and "txlake schedule cancel TARGET" in text


def test_curves_have_what_the_epochs_did(shop: LakeRows, shop_lake: str, shop_now: int) -> None:
    lake = Lake(shop_lake)
    now_pending = lake_facts(lake, shop_now).pending
    history = read_history(lake, shop_now, 3_600_000, now_pending)
    assert sum(row["epochs"] for row in history.buckets) == EPOCHS
    for row in history.buckets:
        epoch = (
            1 + (history.from_at + (row["bucket"] + 1) * history.bucket_ms - START_AT) // STEP_MS
        )
        halves = shop.states[min(epoch, EPOCHS)].halves.to_pylist()
        assert row["pending"] == sum(half["discard_cause"] is None for half in halves), row
    ends = [o["outcome"] for o in shop.tables["outcomes"]]
    assert sum(row["ended"] for row in history.buckets) == len(ends) - ends.count("DISCARDED")
    assert sum(row["given_up"] for row in history.buckets) == ends.count("DISCARDED")
    shown = client(shop_lake).get("/").text
    assert shown.count("<figure") == 5 and "<polyline" in shown
    later = read_history(lake, shop_now + 10 * 3_600_000, 3_600_000, now_pending)
    assert later.buckets == []


def test_a_half_that_lands_with_the_late_end_of_its_set_was_not_pending_before(
    tmp_path: Path,
) -> None:
    job = WholeJob(tmp_path / "lake", check_max=1, half_retention_ms=600_000)
    pending: list[int] = []

    def run(by_ms: int = 60_000) -> None:
        job.run(by_ms)
        pending.append(lake_facts(job.lake, job.at).pending)

    halves = [job.half("set", tran_size=3, tran_seq=seq) for seq in range(2)]
    run()
    run(3_600_000)
    assert pending == [2, 0]

    job.half("set", tran_size=3, tran_seq=2)  # completes it, and comes with its end
    job.end(COMMIT, halves[0])
    run()
    job.half("set", tran_size=3, tran_seq=2)  # a duplicate of a set that has ended
    job.half("alone")
    run()
    causes = job.lake.read("outcomes")["cause"].to_pylist()
    assert causes.count("late_end") >= 3 and pending == [2, 0, 0, 1]

    history = read_history(job.lake, job.at + 1, job.at + 1 - JOB_START_AT, pending[-1])
    by_epoch = [row["pending"] for row in history.buckets]
    assert [0, *by_epoch][-len(pending) :] == pending


def test_a_curve_keeps_what_is_pending_and_shows_a_gap_where_nothing_is_known() -> None:
    row = {"epochs": 1, "waiting": 4, "lag_ms": 1_500, "pending": 2, "landed": 10, "ended": 5,
           "given_up": 0, "p50_ms": 20, "max_ms": 30}  # fmt: skip
    history = History(0, 120_000, 1_000, [{**row, "bucket": 10}, {**row, "bucket": 60}], False)
    lag, waiting, held, rates, times = charts(history)
    assert len(lag.lines[0].parts) == 2 and lag.maximum == "1.5 s"
    assert len(waiting.lines[0].parts) == 2 and waiting.maximum == "4"
    (part,) = held.lines[0].parts
    assert part.startswith("50.0,") and part.endswith("600.0,4.0") and held.lines[0].now == "2"
    landed = rates.lines[0].parts[0].split()
    assert landed[0] == f"0.0,{HEIGHT}.0" and len(landed) == BUCKETS + 1 and rates.maximum == "10"
    assert times.maximum == "30 ms"
    assert all(not one.lines[0].parts for one in charts(History(0, 1, 1, [], False))[:3])


def test_a_cell_leads_to_the_page_of_what_it_names() -> None:
    row = {"target": "half:0-1", "half": None, "transaction_id": "a-b", "keys": "<k>",
           "producer_group": "g&h", "real_topic": "orders", "consumer_group": "c",
           "reason": "x"}  # fmt: skip
    assert {name: link(name, row) for name in row} == {
        "target": "/story?of=half%3A0-1", "half": None, "transaction_id": "/story?of=id%3Aa-b",
        "keys": "/find?keys=%3Ck%3E", "producer_group": "/transactions?group=g%26h&state=all",
        "real_topic": "/topic?name=orders", "consumer_group": "/consumer?group=c", "reason": None,
    }  # fmt: skip
    assert link("transaction_id", {"transaction_id": "a b"}) is None
    assert link("target", {"target": "undeliverable:3"}) is None


def test_a_young_lake_and_one_without_trouble_are_shown(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    crawl(client(job.lake.path))
    job.end(COMMIT, job.half("a"))
    job.run()
    assert "No dead messages." in client(job.lake.path).get("/dead").text

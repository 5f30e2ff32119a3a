"""The console in a real browser: by keyboard, on a telephone, in the dark, on hostile texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from pipelines.console.urls import PAGES
from pipelines.operate import records
from tests.support.browser import DEADLINE_MS, WALK, WIDTHS, chromium_path, picture, served
from tests.support.console_client import TOKEN, site_of
from tests.support.consumer_positions import commit_position
from tests.support.in_memory_job import InMemoryJob
from tests.support.operator import write_conf
from txlake.protocol import COMMIT, CREATE_TOPIC, RESUME

chromium_path()  # without one all tests are skipped, in one line

HOSTILE = "<img src=x onerror=document.title='pwned'>\"'><script>document.title='pwned'</script>"
TELEPHONE, DESK = {"width": 400, "height": 760}, {"width": 1280, "height": 800}
# The pages whose pictures stand in docs/console.md.
PICTURES_OF = (
    "overview",
    "transactions",
    "story",
    "dead",
    "groups",
    "conflicts",
    "topics",
    "topic",
    "messages",
    "message",
    "commit",
)


class Watched:
    """A page, and all that went wrong on it."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        context.set_default_timeout(DEADLINE_MS)
        self.page = context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", self._told)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda asked: self._asked(asked.url, address))

    def _told(self, message: ConsoleMessage) -> None:
        self.wrong.append(message.text)

    def _asked(self, url: str, address: str) -> None:
        if not url.startswith((address + "/", "data:,")):
            self.wrong.append(f"asked {url}")


@pytest.fixture
def watched(browser: Browser, shop: str) -> Iterator[Watched]:
    context = browser.new_context(viewport=DESK)  # type: ignore[arg-type]
    seen = Watched(context, shop)
    yield seen
    context.close()
    assert seen.wrong == []


def shows_within_its_width(page: Page) -> bool:
    return bool(
        page.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
    )


def test_every_page_is_shown_on_a_desk_on_a_telephone_and_in_the_dark(
    watched: Watched, shop: str
) -> None:
    page = watched.page
    for path in WALK:
        for width in WIDTHS.values():
            page.set_viewport_size({"width": width, "height": 760})
            page.emulate_media(color_scheme="light")
            page.goto(shop + path)
            expect(page.locator("h1")).to_be_visible()
            assert page.evaluate("document.querySelectorAll('style, [style]').length") == 0
            light = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert shows_within_its_width(page), (path, width)
            page.emulate_media(color_scheme="dark")
            dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (light, dark) == ("rgb(255, 255, 255)", "rgb(19, 22, 29)")


def test_tables_fit_a_desk_without_a_cut_word(watched: Watched, shop: str) -> None:
    page = watched.page
    page.set_viewport_size({"width": 1280, "height": 760})
    for path in WALK:
        page.goto(shop + path)
        wider = page.evaluate(
            """[...document.querySelectorAll('.scroll')]
              .filter(e => e.scrollWidth > e.clientWidth).length"""
        )
        assert wider == 0, path
        # A text of one line is as high as a line.
        tall = page.evaluate(
            """[...document.querySelectorAll('td.line, td.number, th')]
              .filter(e => e.getBoundingClientRect().height > 3 * 24 &&
                       !e.parentElement.querySelector('td.text')).map(e => e.textContent)"""
        )
        assert tall == [], path


def test_pictures_for_the_docs(watched: Watched, shop: str) -> None:
    page = watched.page
    names = {path.strip("/").partition("?")[0] or "overview": path for path in WALK}
    names["transactions"] = "/transactions"
    for name, path in names.items():
        page.set_viewport_size(DESK)  # type: ignore[arg-type]
        page.emulate_media(color_scheme="light")
        page.goto(shop + path)
        expect(page.locator("h1")).to_be_visible()
        if name in PICTURES_OF:
            picture(page, name)
    page.set_viewport_size(TELEPHONE)  # type: ignore[arg-type]
    page.emulate_media(color_scheme="dark")
    page.goto(shop)
    picture(page, "telephone")


def test_a_transaction_is_found_by_keyboard_alone(watched: Watched, shop: str) -> None:
    page = watched.page
    page.goto(shop)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to what is shown")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.goto(shop)
    for _ in range(3):  # the link that skips, the product's name, the field
        page.keyboard.press("Tab")
    field = page.get_by_role("searchbox")
    expect(field).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    page.keyboard.type("0-3")
    page.keyboard.press("Enter")
    page.wait_for_url("**/story?of=0-3")
    expect(page.locator("h1")).to_have_text("The story of 0-3")
    page.get_by_role("link", name="its group", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/transactions?group=*")


def test_the_policy_stops_a_script_that_got_into_a_page(browser: Browser, shop: str) -> None:
    context = browser.new_context()
    context.set_default_timeout(DEADLINE_MS)
    page = context.new_page()
    page.goto(shop)
    page.evaluate(
        """() => {
          const inline = document.createElement('script');
          inline.textContent = "document.title = 'pwned'";
          document.body.append(inline);
          const text = "<img src=x onerror=document.title='pwned'>";
          document.body.insertAdjacentHTML('beforeend', text);
        }"""
    )
    page.goto(shop + "/dead")
    page.go_back()
    assert "pwned" not in page.title()
    context.close()


def test_another_site_neither_reads_nor_writes(browser: Browser, shop: str) -> None:
    context = browser.new_context()
    context.set_default_timeout(DEADLINE_MS)
    page = context.new_page()
    answer = page.goto(shop.replace("127.0.0.1", "rebound.test"))
    assert answer is not None and answer.status == 421
    form = (
        f'<form action="{shop}/login" method="post"><input name="token"><button>x</button></form>'
    )
    page.route(
        "http://evil.test/", lambda route: route.fulfill(body=form, content_type="text/html")
    )
    page.goto("http://evil.test/")
    with page.expect_response("**/login") as sent:
        page.get_by_role("button").click()
    assert sent.value.status == 403
    framing = f'<iframe src="{shop}/"></iframe>'
    page.unroute("http://evil.test/")
    page.route(
        "http://evil.test/", lambda route: route.fulfill(body=framing, content_type="text/html")
    )
    page.goto("http://evil.test/")
    page.wait_for_timeout(0)
    assert "txlake console" not in page.frames[-1].content()
    context.close()


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    """A lake of which one half was given up, by a producer that does not wish us well."""
    job = InMemoryJob(tmp_path / "lake", check_max=0)
    job.half("4711", keys=HOSTILE, producer_group=HOSTILE)
    job.end(COMMIT, 0, group=HOSTILE + "x")
    job.run()
    job.run(6_001)
    return job


def test_what_is_dead_is_resumed_by_forms_and_hostile_texts_do_nothing(
    browser: Browser, job: InMemoryJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[records.Record] = []

    def write(_: Any, record: records.Record, *__: Any) -> int:
        taken.append(record)
        return 0

    monkeypatch.setattr(records, "write", write)
    site = site_of(job.lake.path, write_conf(tmp_path), token=TOKEN, allow_writes=True)
    with served(site) as address:
        context = browser.new_context(viewport=TELEPHONE)  # type: ignore[arg-type]
        seen = Watched(context, address)
        page = seen.page
        for path, _ in PAGES:
            page.goto(address + path)
            assert shows_within_its_width(page), path
        page.goto(address + "/dead")
        page.get_by_role("checkbox", name="half:0-0").check()
        page.get_by_role("button", name="See what resuming the chosen ones would do").click()
        expect(page.get_by_text("rearmed: the half is pending again")).to_be_visible()
        page.get_by_role("link", name="Log in to resume").click()
        page.get_by_label("Who you are").fill("ada")
        page.get_by_label("The token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("Why;").fill(HOSTILE)
        page.get_by_role("button", name="Resume").click()
        assert taken == []  # the browser asks for the confirmation
        page.get_by_label("ada resumes 1 of these").check()
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("h1")).to_have_text("Written, and not landed yet")
        assert [record.headers_as_text()["REASON"] for record in taken] == [HOSTILE]
        job.command(RESUME, "half:0-0", "ada", HOSTILE)
        job.run()
        expect(page.locator("h1")).to_have_text("Written, and landed")
        page.goto(address + "/story?of=4711")
        expect(page.locator("ol.story")).to_contain_text("onerror")
        assert page.title() == "The story of 4711 · txlake console"
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("link", name="Log in")).to_be_visible()
        context.close()
    assert seen.wrong == []


def test_an_order_is_missing_as_the_operators_page_shows_it(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "write", lambda *_: 1)
    job = InMemoryJob(tmp_path / "lake", auto_create_topics=False)
    job.end(
        COMMIT,
        job.half(
            "019b76da91a3",
            keys="order-1003",
            real_topic="bills",
            body=b'{"order": 1003, "total": "17.90", "currency": "EUR"}',
        ),
    )
    job.run()
    job.run(60_000)
    monkeypatch.setattr("time.time_ns", lambda: job.at * 1_000_000)
    site = site_of(job.lake.path, write_conf(tmp_path), token=TOKEN, allow_writes=True)
    with served(replace(site, path="lake")) as address:
        context = browser.new_context(viewport={"width": 1100, "height": 640})
        seen = Watched(context, address)
        page = seen.page
        page.goto(address)
        expect(page.locator("h1")).to_have_text(re.compile(r"^\d+ problems?$"))
        picture(page, "walk_1")
        page.get_by_role("searchbox").fill("order-1003")
        page.get_by_role("button", name="Find").click()
        expect(page.locator("main")).to_contain_text("undeliverable (topic_not_allowed)")
        picture(page, "walk_2")
        job.command(CREATE_TOPIC, "topic:bills:4")
        job.run()
        page.get_by_role("link", name="See what a resume would do").click()
        page.get_by_role("link", name="Log in to resume").click()
        page.get_by_label("Who you are").fill("ada")
        page.get_by_label("The token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("main")).to_contain_text("delivered to topic bills, queue 0")
        page.get_by_label("Why;").fill("ticket 4711: the topic is there now")
        page.get_by_label("ada resumes 1 of these").check()
        picture(page, "walk_3")
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("h1")).to_have_text("Written, and not landed yet")
        job.command(RESUME, "undeliverable:0", "ada", "ticket 4711: the topic is there now")
        job.run()
        expect(page.locator("h1")).to_have_text("Written, and landed")
        picture(page, "walk_4")
        page.goto(address + "/find?q=order-1003")
        expect(page.locator("main")).to_contain_text("delivered to topic bills, queue 0, offset 0")
        picture(page, "walk_5")
        commit_position(job.lake, "ledger", "bills", 0, 1)
        commit_position(job.lake, "mailer", "bills", 0, 0)
        page.get_by_role("link", name="As delivered, and who has read it").click()
        expect(page.locator("main")).to_contain_text("next: 1, 1 after this")
        expect(page.locator("main")).to_contain_text("next: 0, 0 before this")
        picture(page, "walk_6")
        context.close()
    assert seen.wrong == []

"""Pages that renew themselves: what changed is marked, a pause holds, a script is not needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import DEADLINE_MS, chromium_path, served
from tests.support.console_client import site_of
from tests.support.in_memory_job import InMemoryJob

chromium_path()  # without one all tests are skipped, in one line

# Keeps the rows that were marked: the next renewal takes the mark away.
KEEP_MARKED = """() => {
  window.marked = [];
  const keep = row => marked.includes(row.innerText) || marked.push(row.innerText);
  new MutationObserver(() => document.querySelectorAll("tr.changed").forEach(keep))
    .observe(document.body, { childList: true, subtree: true });
}"""


def test_a_page_renews_itself_marks_what_changed_and_holds_while_paused(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("first")
    job.run()
    monkeypatch.setattr("time.time_ns", lambda: job.at * 1_000_000)
    with served(site_of(job.lake.path)) as address:
        context = browser.new_context()
        context.set_default_timeout(DEADLINE_MS)
        page = context.new_page()
        page.goto(address + "/transactions")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.evaluate(KEEP_MARKED)

        job.half("second")
        job.run()
        expect(page.locator("tbody tr")).to_have_count(2)
        (marked,) = page.evaluate("marked")
        assert "second" in marked
        expect(page.locator("nav .count").first).to_have_text("2")

        page.get_by_role("button", name="Pause").click()
        job.half("third")
        job.run()
        page.reload()  # a pause holds on the next page, too
        expect(page.locator("tbody tr")).to_have_count(3)
        job.half("fourth")
        job.run()
        expect(page.get_by_text("Paused", exact=True)).to_be_visible()
        page.get_by_role("button", name="Go on").click()
        expect(page.locator("tbody tr")).to_have_count(4)
        context.close()


def test_a_page_that_somebody_uses_stays_as_it_is(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("first")
    job.run()
    monkeypatch.setattr("time.time_ns", lambda: job.at * 1_000_000)
    with served(site_of(job.lake.path)) as address:
        context = browser.new_context()
        context.set_default_timeout(DEADLINE_MS)
        page = context.new_page()
        page.goto(address + "/transactions")
        page.get_by_role("checkbox").check()
        job.half("second")
        job.run()
        page.evaluate("renew()")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("checkbox").uncheck()
        page.get_by_role("checkbox").blur()
        page.evaluate("renew()")
        expect(page.locator("tbody tr")).to_have_count(2)
        context.close()


def test_a_page_that_renews_itself_leaves_the_focus_where_it_is(
    browser: Browser, tmp_path: Path
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("first")
    job.run()
    with served(site_of(job.lake.path)) as address:
        context = browser.new_context()
        context.set_default_timeout(DEADLINE_MS)
        page = context.new_page()
        page.goto(address + "/transactions")
        for focused in (page.locator("main"), page.locator("tbody a").first):
            focused.focus()
            page.evaluate("document.querySelector('main').dataset.is = 'old'; renew()")
            expect(page.locator("main")).not_to_have_attribute("data-is", "old")
            expect(focused).to_be_focused()

        # As when the page is looked at again just then: of renewals at once one is shown.
        page.evaluate("Promise.all([renew(), renew(), renew()])")
        expect(page.get_by_role("button", name="Pause")).to_have_count(1)
        context.close()


def test_an_id_is_shortened_whole_on_hover_and_copied_by_a_button(
    browser: Browser, tmp_path: Path
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    name = "0123456789abcdef0123456789abcdef"
    job.half(name)
    job.run()
    with served(site_of(job.lake.path)) as address:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        context.set_default_timeout(DEADLINE_MS)
        page = context.new_page()
        page.goto(address + "/transactions")
        link = page.get_by_title(name)
        expect(link).to_have_text("0123456789abc…456789abcdef")
        page.get_by_role("button", name="Pause").click()  # a renewed page has another button
        page.get_by_role("button", name=f"Copy {name}").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == name
        context.close()


def test_without_a_script_every_page_is_whole(browser: Browser, shop: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(DEADLINE_MS)
    page = context.new_page()
    page.goto(shop + "/transactions")
    expect(page.get_by_role("link", name="Look again")).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    page.get_by_role("link", name="half:0-99").click()
    expect(page.locator("h1")).to_have_text("The story of half:0-99")
    page.get_by_role("link", name="Its half, headers and body").click()
    expect(page.locator("pre")).to_be_visible()
    context.close()

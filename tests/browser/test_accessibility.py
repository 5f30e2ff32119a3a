"""Every page of the console by axe-core, in both themes and two widths, with pictures."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.support.axe import violations
from tests.support.browser import DEADLINE_MS, ERRORS, WALK, WIDTHS, chromium_path
from tests.support.console_client import TOKEN

chromium_path()  # without one all tests are skipped, in one line


def test_no_page_has_what_axe_finds_wrong(
    browser: Browser, writing_shop: str, tmp_path: Path
) -> None:
    context = browser.new_context(color_scheme="light")
    context.set_default_timeout(DEADLINE_MS)
    page = context.new_page()
    page.goto(writing_shop + "/login")
    page.get_by_label("Who you are").fill("ada")
    page.get_by_label("The token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    found: dict[tuple[str, str, str], list[str]] = {}

    for number, path in enumerate((*WALK, *ERRORS)):
        page.emulate_media(color_scheme="light")
        page.goto(writing_shop + path)
        expect(page.locator("h1")).to_be_visible()

        # A page is loaded once: its theme and its layout follow the browser's.
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            for name, width in WIDTHS.items():
                page.set_viewport_size({"width": width, "height": 800})
                wrong = violations(page, colours_alone=theme == "dark")
                if wrong:
                    found[path, theme, name] = wrong

            picture = tmp_path / f"{number}_{theme}.png"
            page.screenshot(path=picture, full_page=True, animations="disabled")
            assert picture.stat().st_size > 5_000, path

    context.close()
    assert found == {}


def test_axe_finds_what_is_wrong(browser: Browser) -> None:
    page = browser.new_page()
    page.set_default_timeout(DEADLINE_MS)
    page.set_content("<html lang=en><main><p style='color:#999;background:#aaa'>dim</p></main>")
    assert [text.partition(":")[0] for text in violations(page, colours_alone=True)] == [
        "color-contrast"
    ]
    page.set_content("<html lang=en><title>x</title><main><h1>x</h1><img src=data:,></main>")
    assert [text.partition(":")[0] for text in violations(page)] == ["image-alt"]
    page.close()

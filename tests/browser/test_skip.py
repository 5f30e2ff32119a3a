"""A publisher that has stopped, in a real browser: its message is skipped, and it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from pipelines.local_broker.broker import Broker
from pipelines.publish.errors import RefusedRecordError
from tests.support.axe import violations
from tests.support.browser import DEADLINE_MS, chromium_path, picture, served
from tests.support.console_client import TOKEN, site_of
from tests.support.publishers import PublishedLake, publish_all
from tests.support.toml import toml_of

chromium_path()  # without one all tests are skipped, in one line

DESK = {"width": 1280, "height": 640}


def test_a_message_that_kafka_refuses_is_skipped_by_forms_and_the_publisher_goes_on(
    browser: Browser, broker: Broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    lake = PublishedLake(
        tmp_path / "lake", broker.bootstrap_servers, unique("skip"), record_bytes_max=2_000
    )
    settings = lake.settings()
    lake.send({"body": b"x" * 5_000, "keys": "order-1003", "real_queue_id": 1})
    lake.send({"body": b"the next one", "keys": "order-1004", "real_queue_id": 1})
    with pytest.raises(RefusedRecordError):
        publish_all(settings)

    conf = tmp_path / "job.toml"
    conf.write_text(toml_of(lake.values()))
    site = site_of(str(lake.path), str(conf), asks_kafka=True, token=TOKEN, allow_writes=True)
    site = replace(site, path="lake")  # as pictures have it

    with served(site) as address:
        context = browser.new_context(viewport=DESK)  # type: ignore[arg-type]
        context.set_default_timeout(DEADLINE_MS)
        page = context.new_page()
        main = page.locator("main")

        page.goto(address)
        problem = page.locator(".problems li").filter(has_text="publisher main has stopped")
        expect(problem.locator("strong")).to_have_text("Publisher stopped")
        problem.get_by_role("link", name="look at it here").click()

        page.get_by_role("link", name="See what skipping the message would do").wait_for()
        expect(main).to_contain_text("Publisher main has stopped")
        assert violations(page) == []
        page.get_by_role("link", name="See what skipping the message would do").click()

        expect(main).to_contain_text(
            "Publisher main would go past 1 message: topic orders queue 1: message 0 is not"
        )
        expect(main).to_contain_text("does not take message half:0-0")
        expect(page.get_by_role("link", name="order-1003")).to_be_visible()
        page.get_by_role("link", name="Log in to skip").click()
        page.get_by_label("Who you are").fill("ada")
        page.get_by_label("The token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()

        page.get_by_label("Why;").fill("ticket 4711: too large, sent again in parts")
        page.get_by_label("ada lets main skip 1 message").check()
        assert violations(page) == []
        picture(page, "skip")
        assert lake.consume() == []
        page.get_by_role("button", name="Skip", exact=True).click()

        page.wait_for_url("**/publishers#skips")
        expect(main).to_contain_text("ticket 4711: too large")
        expect(main).not_to_contain_text("has stopped")
        context.close()

    assert publish_all(settings) == 1
    assert [message.value() for message in lake.consume()] == [b"the next one"]

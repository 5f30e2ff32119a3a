"""A browser, and the consoles that its tests look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser

from tests.support.browser import NOW_NS, chromium, served
from tests.support.console_client import TOKEN, site_of
from tests.support.notebook_lake import shop_rows, write_lake
from tests.support.operator import write_conf


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser. While it runs this thread has Playwright's event loop: asyncio runs no other."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def shop_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shop")
    write_lake(shop_rows(), folder / "lake")
    return str(folder)


@pytest.fixture(scope="module")
def shop(browser: Browser, shop_folder: str) -> Iterator[str]:
    """The console of a lake with all that can happen, a minute after its last epoch."""
    site = replace(site_of(f"{shop_folder}/lake"), path="lake")
    with pytest.MonkeyPatch.context() as patch, served(site) as address:
        patch.setattr("time.time_ns", lambda: NOW_NS)
        yield address


@pytest.fixture(scope="module")
def writing_shop(
    browser: Browser, shop_folder: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The same lake's console, one that may write."""
    conf = write_conf(tmp_path_factory.mktemp("conf"))
    site = site_of(f"{shop_folder}/lake", None, token=TOKEN, allow_writes=True)
    site = replace(site, path="lake", settings=site_of("", conf).settings)
    with pytest.MonkeyPatch.context() as patch, served(site) as address:
        patch.setattr("time.time_ns", lambda: NOW_NS)
        yield address

"""A real Chromium, and a console that it looks at: the machine's own browser, driven by Playwright.

Where no Chromium is found the tests say so and do not run; in CI it has to be there.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from pipelines.console.app import console_app
from pipelines.console.context import ConsoleContext
from pipelines.console.urls import PAGES
from tests.support.notebook_lake import EPOCHS, START_AT, STEP_MS
from tests.support.optional import require
from tests.support.wait import DEADLINE_S

# A minute after the shop's last epoch.
NOW_NS = (START_AT + (EPOCHS - 1) * STEP_MS + 60_000) * 1_000_000
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Chromium's own sandbox does not work for root; what it shows here is ours.
OPTIONS = ("--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP *.test 127.0.0.1")
# Set, it names the folder into which pictures of the pages are written.
PICTURES = "TXLAKE_PICTURES"
DEADLINE_MS = DEADLINE_S * 1_000
expect.set_options(timeout=DEADLINE_MS)  # without it: 5 s, whatever a page's own timeout is
# A page of every kind, on the shop's lake.
WALK = (
    *(where for where, _ in PAGES),
    "/transactions?state=all&since=any",
    "/story?of=0-3",
    "/record?of=half:0-3",
    "/topic?name=orders",
    "/messages?topic=orders&queue=0&from=2",
    "/message?topic=orders&queue=0&offset=3",
    "/consumer_dead",
    "/consumer_retries",
    "/find?q=k",
    "/resume?group=legacy&max=3",
    "/commit?target=half:1-21",
    "/create_topic?topic=bills&queues=4",
    "/login",
)
ERRORS = {"/nope": 404, "/topic?name=nope": 404, "/?since=2y": 400}
WIDTHS = {"desk": 1280, "telephone": 400}
_COLOURS = 128


def chromium_path() -> str:
    """Returns the path of Chromium; without it skips a module, in one line, or fails under CI."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    require(found is not None, "no Chromium (Debian: chromium): the console is not looked at")
    assert found is not None
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """Runs a browser."""
    found = chromium_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=list(OPTIONS), timeout=DEADLINE_MS
        )
        yield browser
        browser.close()


@contextmanager
def served(site: ConsoleContext) -> Iterator[str]:
    """Serves a console in a thread of this process. Gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        app = console_app(replace(site, port=port, hosts=frozenset({"127.0.0.1"})))

        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", http="h11"
        )
        server = uvicorn.Server(config)
        running = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        running.start()

        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            running.join()


def picture(page: Page, name: str, *, is_whole: bool = False) -> None:
    """Takes a picture of what is seen of a page, or of all of it, if pictures are wanted."""
    folder = os.environ.get(PICTURES)
    if folder is None:
        return
    path = Path(folder) / f"console_{name}.png"
    page.screenshot(path=path, animations="disabled", full_page=is_whole)
    with Image.open(path) as shot:
        small = shot.convert("RGB").quantize(_COLOURS)
    small.save(path, optimize=True)

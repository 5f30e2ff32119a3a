"""A console in this process, asked as a browser asks it."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urljoin, urlsplit

from starlette.testclient import TestClient

from pipelines.cli.options import open_intact_lake
from pipelines.cli.status import facts_of
from pipelines.console.app import console_app
from pipelines.console.context import ConsoleContext
from pipelines.console.kafka_cache import QueryCache
from pipelines.settings import load
from storage.files.location import lake_location

HOST = "console.test"
TOKEN = "0123456789abcdef0123456789abcdef"
_PATIENCE_S = 60.0  # a busy machine can need longer than a page waits for Kafka


def site_of(
    lake_path: str, conf: str | None = None, *, asks_kafka: bool = False, **values: Any
) -> ConsoleContext:
    """Returns a console's site; `values` are its other fields."""
    settings = None if conf is None else load(conf)
    location = lake_location(lake_path) if settings is None else settings.lake.location()
    asked = settings if asks_kafka else None
    return ConsoleContext(
        location.path,
        lambda: open_intact_lake(location),
        lambda lake: facts_of(lake, asked),
        settings,
        **{"hosts": frozenset({HOST}), "kafka": QueryCache(_PATIENCE_S, _PATIENCE_S), **values},
    )


def client(lake_path: str, conf: str | None = None, **values: Any) -> TestClient:
    """Returns a client that follows no redirect by itself."""
    app = console_app(site_of(lake_path, conf, **values))
    return TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)


def links(page: str, at: str) -> set[str]:
    """Returns where the links of a page lead, as paths with their query."""
    found = set()
    for target in re.findall(r'<a [^>]*?href="([^"]*)"', page):
        parts = urlsplit(urljoin(at, html.unescape(target)))
        found.add(parts.path + (f"?{parts.query}" if parts.query else ""))
    return found


def crawl(console: TestClient, start: str = "/", pages_max: int = 80) -> dict[str, str]:
    """Returns the pages that links lead to from one, at most so many of a kind; each is shown."""
    pages: dict[str, str] = {}
    kinds: dict[str, int] = {}
    wanted = [start]

    while wanted and len(pages) < pages_max:
        path = wanted.pop(0)
        kind = path.partition("?")[0]
        if path in pages or kinds.get(kind, 0) >= 3:
            continue

        kinds[kind] = kinds.get(kind, 0) + 1
        answer = console.get(path, follow_redirects=True)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)

        if "content-disposition" in answer.headers:  # a file, not a page
            continue

        pages[path] = answer.text
        wanted += sorted(links(answer.text, path))

    return pages

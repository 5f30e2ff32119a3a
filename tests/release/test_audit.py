"""Advisories: one that is about a locked package fails; without an index nothing is audited."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from release import audit

ADVISORY = "PYSEC-2026-1"


@contextmanager
def index(known: dict[str, list[str]]) -> Iterator[str]:
    """Serve the OSV index's form of an answer: advisories by package. Output: its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            name = json.loads(self.rfile.read(length))["package"]["name"]
            answer = {"vulns": [advisory(name, one) for one in known.get(name, [])]}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer if answer["vulns"] else {}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def advisory(name: str, one: str) -> dict[str, Any]:
    package = {"package": {"name": name, "ecosystem": "PyPI", "purl": f"pkg:pypi/{name}"}}
    events = [{"introduced": "0"}, {"fixed": "99.0"}]
    return {
        "id": one,
        "summary": "of a test",
        "details": "of a test",
        "aliases": ["CVE-2026-1"],
        "modified": "2026-11-25T00:00:00Z",
        "published": "2026-11-25T00:00:00Z",
        "affected": [{**package, "ranges": [{"type": "ECOSYSTEM", "events": events}]}],
    }


def audited(url: str) -> Result:
    return CliRunner().invoke(audit.main, ["--osv-url", url], catch_exceptions=False)


def test_an_advisory_about_a_locked_package_fails_and_is_named() -> None:
    with index({"pyspark": [ADVISORY]}) as url:
        done = audited(url)
    assert done.exit_code == 1
    assert f"pyspark 4.2.0: {ADVISORY} (mended in 99.0)" in done.output


def test_an_advisory_that_was_accepted_does_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(audit.ACCEPTED, "CVE-2026-1", "of a test")
    with index({"pyspark": [ADVISORY]}) as url:
        done = audited(url)
    assert done.exit_code == 0, done.output
    assert "no advisory is about one of" in done.output


def test_without_an_index_it_says_that_nothing_was_audited_and_what_to_do() -> None:
    done = audited("http://127.0.0.1:1/v1/query")
    assert done.exit_code == 0
    first, *rest = done.output.splitlines()
    assert first.startswith(
        "NOT AUDITED, no index of advisories can be reached (http://127.0.0.1:1"
    )
    assert "\n".join(rest) == audit.BY_HAND

"""The checks before every page: the name in the request, its sender, the browser's rights.

A page of another site can make a browser send requests to this console. The Host header keeps it
from reading (a name that points at loopback), Origin keeps it from writing, and the policy lets
nothing foreign be loaded or run.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.console.context import ConsoleContext
from pipelines.console.urls import url

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Browsers leave out Origin under `no-referrer`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_READS: Final = ("GET", "HEAD")
_OPEN: Final = ("/login", "/style.css", "/console.js")


class SecurityMiddleware:
    """The app behind the checks."""

    def __init__(self, app: ASGIApp, site: ConsoleContext) -> None:
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self._refusal(scope) or self._login(scope) or self._app
        await app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _part(f"//{hosts[0]}", "hostname") not in self._site.hosts:
            return PlainTextResponse(
                "this console is asked for by another name; --name NAME allows it\n", 421
            )

        origin = headers.get("origin")
        is_foreign = origin is not None and _part(origin, "netloc") != hosts[0]
        if is_foreign and scope["method"] not in _READS:
            return PlainTextResponse("this form is of another site\n", 403)
        return None

    def _login(self, scope: Scope) -> ASGIApp | None:
        if not self._site.reads_need_token or scope["path"] in _OPEN:
            return None

        cookie = HTTPConnection(scope).cookies.get(self._site.cookie_name)
        if self._site.sessions.actor(cookie):
            return None

        path = url(scope["path"])
        query = scope["query_string"].decode("latin-1")
        if query and scope["method"] in _READS:
            path += f"?{query}"
        return RedirectResponse(url("/login", then=path), 303)


def _part(address: str, name: str) -> str | None:
    """Returns a part of an address: its `netloc`, or its `hostname` in lower case."""
    try:
        part: str | None = getattr(urlsplit(address), name)
    except ValueError:
        return None
    return part

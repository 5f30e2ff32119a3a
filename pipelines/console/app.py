"""The console as an ASGI app: its addresses, its errors, its security checks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from importlib import resources
from typing import Final
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines.console import (
    act,
    forms,
    message_views,
    overview,
    position,
    publishers,
    refused,
    views,
)
from pipelines.console.actions import ACTIONS
from pipelines.console.context import ConsoleContext
from pipelines.console.query_params import BadQueryError
from pipelines.console.render import error_page
from pipelines.console.security import SecurityMiddleware
from pipelines.errors import JobError, OperatorError
from pipelines.settings import SettingsError
from storage.errors import LakeError
from txlake.errors import LakeError as ClientLakeError

Endpoint = Callable[[Request], Awaitable[Response]]

# The pages made at once. The threads live as long as the console, and each has its own
# DuckDB: one that ends with a thread of the event loop can abort the process at its end.
_MAKERS: Final = 4
READS: Final[dict[str, Callable[[Request], Response]]] = {
    "/": overview.overview,
    "/find": views.find_page,
    "/transactions": views.transactions_page,
    "/story": views.story,
    "/dead": views.dead_page,
    "/groups": views.groups_page,
    "/conflicts": views.conflicts_page,
    "/topics": views.topics_page,
    "/topic": views.topic_page,
    "/messages": message_views.messages_page,
    "/message": message_views.message_page,
    "/record": message_views.record_page,
    "/download": message_views.download,
    "/consumers": views.consumers_page,
    "/consumer": views.consumer_page,
    "/consumer_dead": refused.dead_page,
    "/consumer_retries": refused.retries_page,
    "/delayed": views.delayed_page,
    "/publishers": publishers.publishers_page,
    "/skip": publishers.skip_page,
    "/login": forms.login_page,
    "/written": act.written_page,
    "/position": position.position_page,
    **{f"/consumer_{action.name}": refused.preview_page(action) for action in refused.ACTIONS},
    **{f"/{name}": act.preview_page(action) for name, action in ACTIONS.items()},
}
_WRITES: Final[dict[str, Callable[[Request, forms.Form], Response]]] = {
    "/login": forms.login,
    "/logout": forms.logout,
    "/skip": publishers.skip,
    "/position": position.set_position,
    **{f"/consumer_{action.name}": refused.write(action) for action in refused.ACTIONS},
    **{f"/{name}": act.write(action) for name, action in ACTIONS.items()},
}
ASSETS: Final = {"style.css": "text/css", "console.js": "text/javascript"}
_FORM_BYTES_MAX: Final = 65_536
# How long the answer to a refused login waits; no page thread waits with it.
REFUSED_FORM_S: Final = 2.0
_REFUSED: Final = {
    403: "nothing was written: log in first, on a console that may write (--allow-writes)",
    404: "there is no such page",
    405: "method not allowed",
    413: "nothing was written: the form is too large",
}
# The errors that are shown as one sentence, and the status of their page.
_KNOWN: Final[dict[type[Exception], int]] = {
    BadQueryError: 400,
    OperatorError: 404,
    LakeError: 503,
    ClientLakeError: 503,
    JobError: 503,
    SettingsError: 503,
}


def console_app(site: ConsoleContext) -> SecurityMiddleware:
    """Returns the app of a console."""
    pool = ThreadPoolExecutor(_MAKERS, thread_name_prefix="txlake-console")

    def threaded(view: Callable[..., Response], *, has_form: bool = False) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            arguments = (request, await _form(request)) if has_form else (request,)
            answer = await asyncio.get_running_loop().run_in_executor(pool, view, *arguments)

            if view is forms.login and answer.status_code == 403:
                await asyncio.sleep(REFUSED_FORM_S)
            return answer

        return endpoint

    routes = [Route(path, threaded(view), methods=["GET"]) for path, view in READS.items()]
    routes += [
        Route(path, threaded(view, has_form=True), methods=["POST"])
        for path, view in _WRITES.items()
    ]
    routes += [Route(f"/{name}", _asset(name), methods=["GET"]) for name in ASSETS]

    handlers = {error: _error_page(status) for error, status in _KNOWN.items()}
    app = Starlette(
        routes=routes, exception_handlers={**handlers, HTTPException: _missing, Exception: _bug}
    )

    app.state.site = site
    app.router.redirect_slashes = False
    return SecurityMiddleware(app, site)


async def _form(request: Request) -> forms.Form:
    """Returns the fields of a form. Errors: HTTPException if it is too large."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > _FORM_BYTES_MAX:
                raise HTTPException(413)
    except ClientDisconnect:
        raise HTTPException(400) from None  # the client is gone
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)


def _asset(name: str) -> Endpoint:
    text = resources.files("pipelines.console").joinpath(name).read_bytes()

    async def endpoint(_: Request) -> Response:
        return Response(text, media_type=ASSETS[name])

    return endpoint


def _error_page(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        return error_page(request, status, str(error))

    return handler


async def _missing(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    text = _REFUSED.get(status, "the request was not understood")
    if isinstance(error, HTTPException) and error.detail != HTTPStatus(status).phrase:
        text = error.detail
    return error_page(request, status, text)


async def _bug(request: Request, _: Exception) -> Response:
    return error_page(request, 500, "this page failed; the console's log says how")

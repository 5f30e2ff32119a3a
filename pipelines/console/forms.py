"""Logging in and out, and the session that a form must be of."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipelines.console.render import page
from pipelines.console.session import SESSION_S, is_token
from pipelines.console.views import site_of

Form = Mapping[str, list[str]]

log = logging.getLogger("txlake.console")

WRONG_TOKEN: Final = "this is not the token of this console"  # noqa: S105 - a sentence
_ACTOR_MAX: Final = 100


def login_page(request: Request) -> Response:
    """Shows the form for a name and the token."""
    return_to = _safe_path(request.query_params.get("then"))
    return page(request, "login", then=return_to, trouble="", name="")


def login(request: Request, form: Form) -> Response:
    """Begins a session for an actor with the right token."""
    site = site_of(request)
    name = field(form, "actor").strip()
    return_to = _safe_path(field(form, "then"))

    trouble = ""
    if not is_token(field(form, "token").strip(), site.token):
        trouble = WRONG_TOKEN
        client = "unknown" if request.client is None else request.client.host
        log.warning("a login with a wrong token, from %s, as %r", client, name[:_ACTOR_MAX])
    elif not name or len(name) > _ACTOR_MAX or not name.isprintable():
        trouble = f"say who you are, in up to {_ACTOR_MAX} characters"

    if trouble:
        return page(request, "login", 403, then=return_to, trouble=trouble, name=name)

    answer = RedirectResponse(return_to, 303)
    answer.set_cookie(
        site.cookie_name, site.sessions.begin(name), SESSION_S, httponly=True, samesite="strict"
    )
    return answer


def logout(request: Request, form: Form) -> Response:
    """Ends a session, in its browser and here."""
    require_session(request, form)
    site = site_of(request)
    site.sessions.end(request.cookies[site.cookie_name])

    answer = RedirectResponse("/", 303)
    answer.delete_cookie(site_of(request).cookie_name, httponly=True, samesite="strict")
    return answer


def require_session(request: Request, form: Form) -> str:
    """Returns the actor. Errors: HTTPException if the form is not of a session of this console."""
    site = site_of(request)
    cookie = request.cookies.get(site.cookie_name, "")
    actor = site.sessions.actor(cookie)
    if actor is None or not site.sessions.has_form_token(cookie, field(form, "form")):
        raise HTTPException(403)
    return actor


def field(form: Form, name: str) -> str:
    """Returns the first value of a field; empty if the form has none."""
    return form.get(name, [""])[0]


def _safe_path(text: str | None) -> str:
    """Returns a path of this console: a link to the login page cannot lead to another site."""
    path = text or "/"
    is_here = path.startswith("/") and not path.startswith(("//", "/\\"))
    parts = urlsplit(path) if is_here and path.isprintable() else None
    return path if parts is not None and not parts.netloc and not parts.scheme else "/"

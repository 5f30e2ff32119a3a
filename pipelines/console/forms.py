"""Logging in and out; what a form must have to be written, and that it is written once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipelines.console.render import page
from pipelines.console.session import SESSION_S, is_token
from pipelines.console.views import site_of
from pipelines.settings import Settings

Form = Mapping[str, list[str]]

log = logging.getLogger("txlake.console")

REASON_MAX: Final = 1_000
_ACTOR_MAX: Final = 100


@dataclass(frozen=True)
class Confirmation:
    """The reason in a form, and what the form lacks to be written, in words."""

    reason: str = ""
    error_text: str = ""

    @property
    def status(self) -> int:
        """Returns the status of the page that shows the form."""
        return 400 if self.error_text else 200


NOT_SENT: Final = Confirmation()


def login_page(request: Request) -> Response:
    """Shows the form for a name and the token."""
    return_to = _safe_path(request.query_params.get("then"))
    return page(request, "login", then=return_to, error_text="", name="")


def login(request: Request, form: Form) -> Response:
    """Begins a session for an actor with the right token."""
    site = site_of(request)
    name = field(form, "actor").strip()
    return_to = _safe_path(field(form, "then"))

    error_text = ""
    if not is_token(field(form, "token").strip(), site.token):
        error_text = "this is not the token of this console"
        client = "unknown" if request.client is None else request.client.host
        log.warning("a login with a wrong token, from %s, as %r", client, name[:_ACTOR_MAX])
    elif not name or len(name) > _ACTOR_MAX or not name.isprintable():
        error_text = f"say who you are, in up to {_ACTOR_MAX} characters"

    if error_text:
        return page(request, "login", 403, then=return_to, error_text=error_text, name=name)

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
    answer.delete_cookie(site.cookie_name, httponly=True, samesite="strict")
    return answer


def field(form: Form, name: str) -> str:
    """Returns the first value of a field; empty if the form has none."""
    return form.get(name, [""])[0]


def confirmation(form: Form) -> Confirmation:
    """Returns the reason in a form that was sent, and what the form lacks."""
    return Confirmation(field(form, "reason").strip(), lacks(form))


def lacks(form: Form) -> str:
    """Returns what a form lacks to be written, in words."""
    reason = field(form, "reason").strip()
    if not reason:
        return "say why: what you say is kept"

    is_confirmed = field(form, "confirmed") == "yes"
    if not is_confirmed or len(reason) > REASON_MAX:
        return f"say why, in up to {REASON_MAX} characters, and confirm it"
    return ""


def require_session(request: Request, form: Form) -> str:
    """Returns the actor. Errors: HTTPException if the form is not of a session of this console."""
    site = site_of(request)
    cookie = request.cookies.get(site.cookie_name, "")
    actor = site.sessions.actor(cookie)
    if actor is None or not site.sessions.has_form_token(cookie, field(form, "form")):
        raise HTTPException(403)
    return actor


def write_once(
    request: Request, form: Form, write_form: Callable[[str, Settings], Response]
) -> Response:
    """Lets a form be written; one that is sent again leads to the same page as before.

    Input: `write_form` writes for an actor, and returns where it leads, or the form again.
    Errors: HTTPException without a session, or on a console that may not write; those of
    `write_form`: OperatorError, KafkaAwayError, LostInputError, StartError, LakeError.
    """
    actor = require_session(request, form)
    site = site_of(request)
    settings = site.settings
    if not site.allow_writes or settings is None:
        raise HTTPException(403)

    form_value = field(form, "form")
    with site.sent_forms.writing:
        address = site.sent_forms.answer(form_value)
        if address is not None:
            return RedirectResponse(address, 303)

        answer = write_form(actor, settings)
        if answer.status_code == 303:
            site.sent_forms.keep(form_value, answer.headers["location"])
    return answer


def _safe_path(text: str | None) -> str:
    """Returns a path of this console: a link to the login page cannot lead to another site."""
    path = text or "/"
    is_here = path.startswith("/") and not path.startswith(("//", "/\\"))
    parts = urlsplit(path) if is_here and path.isprintable() else None
    return path if parts is not None and not parts.netloc and not parts.scheme else "/"

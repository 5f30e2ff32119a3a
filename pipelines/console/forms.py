"""The pages that write: logging in, and RESUME in steps of plain forms.

1. `/resume` previews it: the result for each target. It writes nothing and needs no token.
2. Its form is sent with a reason and a confirmation: the records are written to Kafka.
3. `/resumed` shows the job's result for each record.

The lake itself is never written.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipelines.console import query_params
from pipelines.console.render import page
from pipelines.console.session import SESSION_S, is_token
from pipelines.console.urls import url
from pipelines.console.views import site_of
from pipelines.errors import JobError, OperatorError
from pipelines.explain import rule_texts
from pipelines.health.transactions import Filters
from pipelines.operate import records
from pipelines.operate.bulk import dead_targets
from pipelines.operate.preview import preview_command
from pipelines.settings import Settings
from storage.lake.lake import Lake
from txlake.protocol import RESUME, Target, command_target

Form = Mapping[str, list[str]]

log = logging.getLogger("txlake.console")

TARGETS_MAX: Final = 100
WRONG_TOKEN: Final = "this is not the token of this console"  # noqa: S105 - a sentence
_ACTOR_MAX, _REASON_MAX = 100, 1_000
_WRITTEN = re.compile(r"(?P<offset>[0-9]{1,18})\.(?P<target>.{1,100})", re.ASCII)


def login_page(request: Request) -> Response:
    """Shows the form for a name and the token."""
    return_to = _safe_path(request.query_params.get("then"))
    return page(request, "login", then=return_to, trouble="", name="")


def login(request: Request, form: Form) -> Response:
    """Begins a session for an actor with the right token."""
    site = site_of(request)
    name = _field(form, "actor").strip()
    return_to = _safe_path(_field(form, "then"))

    trouble = ""
    if not is_token(_field(form, "token").strip(), site.token):
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
    _require_session(request, form)
    site = site_of(request)
    site.sessions.end(request.cookies[site.cookie_name])

    answer = RedirectResponse("/", 303)
    answer.delete_cookie(site_of(request).cookie_name, httponly=True, samesite="strict")
    return answer


def resume_page(request: Request) -> Response:
    """Previews a RESUME of targets, or of the dead letters that match filters; writes nothing."""
    lake = site_of(request).open_lake()
    query = request.query_params

    chosen = query.getlist("target")
    if chosen or "max" not in query:
        return _preview_page(request, lake, _targets(chosen), 0)

    filters = Filters(query_params.text(query, "group"), query_params.text(query, "topic"))
    maximum = query_params.number(query, "max", 10, TARGETS_MAX)
    matching = dead_targets(lake, filters)
    return _preview_page(request, lake, matching[:maximum], max(0, len(matching) - maximum))


def resume(request: Request, form: Form) -> Response:
    """Writes a RESUME for each target. A form that is sent again leads to the same page as before.

    Errors: HTTPException without a session, or on a console that may not write; OperatorError;
    KafkaAwayError, LostInputError, StartError.
    """
    actor = _require_session(request, form)
    site = site_of(request)
    settings = site.settings
    if not site.allow_writes or settings is None:
        raise HTTPException(403)

    form_value = _field(form, "form")
    with site.sent_forms.writing:
        address = site.sent_forms.answer(form_value)
        if address is not None:
            return RedirectResponse(address, 303)

        answer = _write_resume(request, form, actor, settings)
        if answer.status_code == 303:
            site.sent_forms.keep(form_value, answer.headers["location"])
    return answer


def _write_resume(request: Request, form: Form, actor: str, settings: Settings) -> Response:
    """Writes the records, and leads to their results; or shows again what the form lacks."""
    lake = site_of(request).open_lake()
    reason = _field(form, "reason").strip()
    targets = _targets(form.get("target", []))

    if not reason or len(reason) > _REASON_MAX or _field(form, "confirmed") != "yes":
        trouble = "say why, and confirm it" if reason else "say why: it is stored with the record"
        return _preview_page(request, lake, targets, 0, 400, trouble, reason)

    previews = [
        (target, preview_command(lake, RESUME, target, actor, reason)) for target in targets
    ]
    written: list[str] = []

    for target, preview in previews:
        try:
            offset = records.write(
                settings.kafka, preview.record, preview.cluster_id, settings.security
            )
        except JobError:
            if not written:
                raise
            break
        written.append(f"{offset}.{target}")

    remaining = len(targets) - len(written)
    return RedirectResponse(url("/resumed", at=written, left=remaining or None), 303)


def resume_result_page(request: Request) -> Response:
    """Shows the job's results for the records that were written."""
    lake = site_of(request).open_lake()
    rows = []

    for text in request.query_params.getlist("at")[:TARGETS_MAX]:
        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise query_params.BadQueryError(
                f"at = {text!r}: an offset, a dot and a target is allowed"
            )

        result = records.command_result(lake, int(match["offset"]))
        result_text = (
            "not landed yet" if result is None else f"{result}: {rule_texts.RESULTS[result]}"
        )
        rows.append(
            {
                "target": match["target"],
                "admin_offset": int(match["offset"]),
                "result": result_text,
                "is_there": result is not None,
            }
        )

    waits = sum(not row["is_there"] for row in rows)
    remaining = query_params.number(request.query_params, "left", 0, TARGETS_MAX)

    return page(
        request,
        "resumed",
        rows=rows,
        waits=waits,
        left=remaining,
        columns=("target", "admin_offset", "result"),
    )


def _preview_page(
    request: Request,
    lake: Lake,
    targets: list[Target],
    more: int,
    status: int = 200,
    trouble: str = "",
    reason: str = "",
) -> Response:
    rows = []
    for target in targets:
        try:
            expected = preview_command(lake, RESUME, target, "", "").expected
        except OperatorError as error:
            expected = str(error)

        rows.append({"target": str(target), "expected": expected})

    return page(
        request,
        "resume",
        status,
        rows=rows,
        more=more,
        trouble=trouble,
        reason=reason,
        columns=("target", "expected"),
        then=url("/resume", target=[str(target) for target in targets]),
    )


def _targets(texts: list[str]) -> list[Target]:
    parsed = [command_target(RESUME, text) for text in texts]
    targets = [target for target in parsed if target is not None]
    if len(targets) < len(texts) or not 0 < len(targets) <= TARGETS_MAX:
        raise query_params.BadQueryError(f"choose 1 to {TARGETS_MAX} dead messages")
    return targets


def _require_session(request: Request, form: Form) -> str:
    """Returns the actor. Errors: HTTPException if the form is not of a session of this console."""
    site = site_of(request)
    cookie = request.cookies.get(site.cookie_name, "")
    actor = site.sessions.actor(cookie)
    if actor is None or not site.sessions.has_form_token(cookie, _field(form, "form")):
        raise HTTPException(403)
    return actor


def _field(form: Form, name: str) -> str:
    return form.get(name, [""])[0]


def _safe_path(text: str | None) -> str:
    """Returns a path of this console: a link to the login page cannot lead to another site."""
    path = text or "/"
    is_here = path.startswith("/") and not path.startswith(("//", "/\\"))
    parts = urlsplit(path) if is_here and path.isprintable() else None
    return path if parts is not None and not parts.netloc and not parts.scheme else "/"

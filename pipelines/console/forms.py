"""The pages that write: logging in, and RESUME in steps of plain forms.

1. `/resume` tries it: what would come of each target. Nothing is written, no token is needed.
2. Its form is sent with a reason and a confirmation: the records are written to Kafka.
3. `/resumed` says what the job made of them.

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
    """Asks for a name and the token."""
    then = _safe_path(request.query_params.get("then"))
    return page(request, "login", then=then, trouble="", name="")


def login(request: Request, form: Form) -> Response:
    """Begins a session for who has the token."""
    site = site_of(request)
    name, then = _field(form, "actor").strip(), _safe_path(_field(form, "then"))
    trouble = ""
    if not is_token(_field(form, "token").strip(), site.token):
        trouble = WRONG_TOKEN
        client = "unknown" if request.client is None else request.client.host
        log.warning("a login with a wrong token, from %s, as %r", client, name[:_ACTOR_MAX])
    elif not name or len(name) > _ACTOR_MAX or not name.isprintable():
        trouble = f"say who you are, in up to {_ACTOR_MAX} characters"
    if trouble:
        return page(request, "login", 403, then=then, trouble=trouble, name=name)
    answer = RedirectResponse(then, 303)
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
    """Tries a RESUME of targets, or of what is dead and fits filters; writes nothing."""
    lake, query = site_of(request).open_lake(), request.query_params
    chosen = query.getlist("target")
    if chosen or "max" not in query:
        return _preview_page(request, lake, _targets(chosen), 0)
    filters = Filters(query_params.text(query, "group"), query_params.text(query, "topic"))
    most, fitting = query_params.number(query, "max", 10, TARGETS_MAX), dead_targets(lake, filters)
    return _preview_page(request, lake, fitting[:most], max(0, len(fitting) - most))


def resume(request: Request, form: Form) -> Response:
    """Writes a RESUME for each target. A form that is sent again leads where it led before.

    Errors: HTTPException without a session, or where nothing may be written; OperatorError;
    KafkaAwayError, LostInputError, StartError.
    """
    actor = _require_session(request, form)
    site, settings = site_of(request), site_of(request).settings
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
    """Writes the records, and leads to what became of them; or shows again what is missing."""
    lake, reason = site_of(request).open_lake(), _field(form, "reason").strip()
    targets = _targets(form.get("target", []))
    if not reason or len(reason) > _REASON_MAX or _field(form, "confirmed") != "yes":
        trouble = "say why, and confirm it" if reason else "say why: it is stored with the record"
        return _preview_page(request, lake, targets, 0, 400, trouble, reason)
    tried = [(target, preview_command(lake, RESUME, target, actor, reason)) for target in targets]
    at: list[str] = []
    for target, trial in tried:
        try:
            offset = records.write(
                settings.kafka, trial.record, trial.cluster_id, settings.security
            )
        except JobError:
            if not at:
                raise
            break
        at.append(f"{offset}.{target}")
    left = len(targets) - len(at)
    return RedirectResponse(url("/resumed", at=at, left=left or None), 303)


def resume_result_page(request: Request) -> Response:
    """What the job made of the records that were written."""
    lake, rows = site_of(request).open_lake(), []
    for text in request.query_params.getlist("at")[:TARGETS_MAX]:
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise query_params.BadQueryError(
                f"at = {text!r}: an offset, a dot and a target is allowed"
            )
        result = records.command_result(lake, int(found["offset"]))
        said = "not landed yet" if result is None else f"{result}: {rule_texts.RESULTS[result]}"
        rows.append(
            {
                "target": found["target"],
                "admin_offset": int(found["offset"]),
                "result": said,
                "is_there": result is not None,
            }
        )
    waits = sum(not row["is_there"] for row in rows)
    left = query_params.number(request.query_params, "left", 0, TARGETS_MAX)
    return page(
        request,
        "resumed",
        rows=rows,
        waits=waits,
        left=left,
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
    targets = [command_target(RESUME, text) for text in texts]
    found = [target for target in targets if target is not None]
    if len(found) < len(texts) or not 0 < len(found) <= TARGETS_MAX:
        raise query_params.BadQueryError(f"choose from 1 to {TARGETS_MAX} of what is dead")
    return found


def _require_session(request: Request, form: Form) -> str:
    """Returns who asks. Errors: HTTPException if the form is not of a session of this console."""
    site = site_of(request)
    cookie = request.cookies.get(site.cookie_name, "")
    actor = site.sessions.actor(cookie)
    if actor is None or not site.sessions.has_form_token(cookie, _field(form, "form")):
        raise HTTPException(403)
    return actor


def _field(form: Form, name: str) -> str:
    return form.get(name, [""])[0]


def _safe_path(text: str | None) -> str:
    """Returns a path of this console: a link to the login page cannot lead elsewhere."""
    path = text or "/"
    is_here = path.startswith("/") and not path.startswith(("//", "/\\"))
    parts = urlsplit(path) if is_here and path.isprintable() else None
    return path if parts is not None and not parts.netloc and not parts.scheme else "/"

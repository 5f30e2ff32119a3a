"""The pages of an action, in steps of plain forms.

1. `/NAME` previews it: the result for each target, and all in one sentence. It writes nothing and
   needs no token.
2. Its form is sent with a reason and a confirmation: the records are written to Kafka.
3. `/written` shows the job's result for each record.

What a consumer group has is written to the lake itself: its position, `/position`, and its dead
messages (`refused.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipelines.console import query_params
from pipelines.console.actions import (
    ACTIONS,
    Action,
    changes_nothing,
    command_line,
    result_text,
    summary,
)
from pipelines.console.forms import Form, field, require_session
from pipelines.console.render import page
from pipelines.console.urls import url
from pipelines.console.views import lake_of, site_of
from pipelines.errors import JobError, OperatorError
from pipelines.explain.rows import Row
from pipelines.health.transactions import Filters
from pipelines.operate import consumers, records
from pipelines.operate.topics import topic_limits
from pipelines.settings import SecuritySettings, Settings
from storage.lake.lake import Lake
from txlake.protocol import TOPIC_PATTERN, Target, TopicTarget, matches

log = logging.getLogger("txlake.console")

TARGETS_MAX: Final = 100
REASON_MAX: Final = 1_000
_QUEUES_MAX: Final = 10_000
# The session timeout of an owner that does not record its own, as `txlake consumer reset` has it.
_SESSION_MS: Final = 30_000
_WRITTEN = re.compile(r"(?P<offset>[0-9]{1,18})\.(?P<target>.{1,400})", re.ASCII)


def preview_page(action: Action) -> Callable[[Request], Response]:
    """Returns the page that previews an action; it writes nothing."""

    def view(request: Request) -> Response:
        lake = lake_of(request)
        targets, more = _wanted(request, lake, action)
        return _preview(request, lake, action, targets, more)

    return view


def _wanted(request: Request, lake: Lake, action: Action) -> tuple[list[Target], int]:
    """Returns the targets of an address, and how many more match: named ones, or by filters."""
    query = request.query_params
    if action.name == "create_topic" and "topic" in query:
        return [_new_topic(query)], 0
    if action.name == "alter_topic" and "topic" in query:
        return _limits(site_of(request).settings, query), 0

    chosen = query.getlist("target")
    if chosen or "max" not in query or action.find_targets is None:
        return _targets(action, chosen), 0

    filters = Filters(
        query_params.text(query, "group"),
        query_params.text(query, "topic"),
        query_params.text(query, "keys"),
        until_at=query_params.parse_age(query, "older_than"),
    )
    maximum = query_params.number(query, "max", 10, TARGETS_MAX)
    matching = list(action.find_targets(lake, filters))
    return matching[:maximum], max(0, len(matching) - maximum)


def _new_topic(query: Mapping[str, str]) -> Target:
    name = query["topic"].strip()
    if not matches(TOPIC_PATTERN, name):
        raise query_params.BadQueryError(f"{name!r} is no name of a topic: {TOPIC_PATTERN}")
    count = query_params.offset(query, "queues")
    if count is None or not 1 <= count <= _QUEUES_MAX:
        raise query_params.BadQueryError(f"queues: a number from 1 to {_QUEUES_MAX} is allowed")
    return TopicTarget(name, count)


def _limits(settings: Settings | None, query: Mapping[str, str]) -> list[Target]:
    if settings is None:
        raise query_params.BadQueryError("the limits of a topic are set with --conf")
    retention_ms = query_params.retention(query, "retention")
    retention_bytes = query_params.size(query, "bytes")
    try:
        limits = topic_limits(settings, query["topic"], retention_ms, retention_bytes)
    except OperatorError as error:
        raise query_params.BadQueryError(str(error)) from error
    if not limits:
        raise query_params.BadQueryError("name how long to keep messages, how many bytes, or both")
    return list(limits)


def write(action: Action) -> Callable[[Request, Form], Response]:
    """Returns the handler of an action's form.

    A form that is sent again leads to the same page as before. Its errors: HTTPException without a
    session, or on a console that may not write; OperatorError; KafkaAwayError, LostInputError,
    StartError.
    """

    def view(request: Request, form: Form) -> Response:
        return write_once(
            request, form, lambda actor, settings: _write(request, form, action, actor, settings)
        )

    return view


def write_once(
    request: Request, form: Form, write_form: Callable[[str, Settings], Response]
) -> Response:
    """Lets a form be written; one that is sent again leads to the same page. Errors: as `write`."""
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


def lacks(form: Form) -> str:
    """Returns what a form lacks to be written, in words."""
    reason = field(form, "reason").strip()
    if reason and len(reason) <= REASON_MAX and field(form, "confirmed") == "yes":
        return ""
    return "say why, and confirm it" if reason else "say why: it is stored with the record"


def _write(
    request: Request, form: Form, action: Action, actor: str, settings: Settings
) -> Response:
    """Writes the records, and leads to their results; or shows again what the form lacks."""
    lake = lake_of(request)
    reason = field(form, "reason").strip()
    targets = _targets(action, form.get("target", []))

    trouble = lacks(form)
    if trouble:
        return _preview(request, lake, action, targets, 0, 400, trouble, reason)

    security = settings.security
    previews = [
        (target, action.preview(lake, target, actor, reason, security)) for target in targets
    ]
    written: list[str] = []

    for target, preview in previews:
        try:
            offset = records.write(settings.kafka, preview.record, preview.cluster_id, security)
        except JobError:
            if not written:
                raise
            break
        written.append(f"{offset}.{target}")

    remaining = len(targets) - len(written)
    address = url("/written", do=action.name, at=written, left=remaining or None)
    return RedirectResponse(address, 303)


def written_page(request: Request) -> Response:
    """Shows the job's results for the records that were written."""
    lake = lake_of(request)
    action = ACTIONS.get(request.query_params.get("do", ""))
    if action is None:
        raise query_params.BadQueryError(f"do: one of {', '.join(ACTIONS)} is allowed")

    rows = [
        _written_row(lake, action, text)
        for text in request.query_params.getlist("at")[:TARGETS_MAX]
    ]
    return page(
        request,
        "written",
        action=action,
        rows=rows,
        waits=sum(not row["is_there"] for row in rows),
        refused=sum(changes_nothing(row["result"]) for row in rows),
        left=query_params.number(request.query_params, "left", 0, TARGETS_MAX),
        columns=("target", "admin_offset", "result"),
    )


def _written_row(lake: Lake, action: Action, text: str) -> Row:
    match = _WRITTEN.fullmatch(text)
    target = None if match is None else action.target(match["target"])
    if match is None or target is None:
        raise query_params.BadQueryError(f"at = {text!r}: an offset, a dot and a target is allowed")

    offset = int(match["offset"])
    result = records.result_of(lake, action.written_record(target), offset)
    return {
        "target": match["target"],
        "admin_offset": offset,
        "result": result_text(result),
        "is_there": result is not None,
    }


def _preview(
    request: Request,
    lake: Lake,
    action: Action,
    targets: list[Target],
    more: int,
    status: int = 200,
    trouble: str = "",
    reason: str = "",
) -> Response:
    settings = site_of(request).settings
    security: SecuritySettings | None = None if settings is None else settings.security
    rows = []
    expectations: list[tuple[str, bool]] = []

    for target in targets:
        try:
            expected = action.preview(lake, target, "", "", security).expected
            is_error = False
        except OperatorError as error:
            expected = str(error)
            is_error = True
        rows.append({"target": str(target), "expected": expected})
        expectations.append((expected, is_error))

    return page(
        request,
        "act",
        status,
        action=action,
        rows=rows,
        more=more,
        trouble=trouble,
        reason=reason,
        summary=summary(expectations),
        commands=[command_line(action, target) for target in targets],
        columns=("target", "expected"),
        then=url(f"/{action.name}", target=[str(target) for target in targets]),
    )


def _targets(action: Action, texts: list[str]) -> list[Target]:
    parsed = [action.target(text) for text in texts]
    targets = [target for target in parsed if target is not None]
    if len(targets) < len(texts) or not 0 < len(targets) <= TARGETS_MAX:
        nouns = "dead messages" if action.name == "resume" else f"targets of {action.does}"
        raise query_params.BadQueryError(f"choose 1 to {TARGETS_MAX} {nouns}")
    return targets


def position_page(request: Request) -> Response:
    """Previews where a consumer group would read on; writes nothing."""
    query = request.query_params
    return _position_preview(request, query, query.getlist("queue"))


def set_position(request: Request, form: Form) -> Response:
    """Sets where a consumer group reads on, as `txlake consumer reset` does; errors as `write`."""

    def set_rows(actor: str, _: Settings) -> Response:
        values = {name: field(form, name) for name in ("group", "topic", "to")}
        queues = [queue for queue in form.get("queue", []) if queue]
        trouble = lacks(form)
        if trouble:
            reason = field(form, "reason").strip()
            return _position_preview(request, values, queues, 400, trouble, reason)

        lake = lake_of(request)
        consumers.write_reset(lake, _plan(lake, values, queues), _SESSION_MS)
        log.warning(
            "%s set consumer group %s of topic %s to %s, queues %s: %s",
            actor,
            values["group"],
            values["topic"],
            values["to"],
            ", ".join(queues) or "all",
            field(form, "reason").strip(),
        )
        return RedirectResponse(url("/consumer", group=values["group"]), 303)

    return write_once(request, form, set_rows)


def _plan(lake: Lake, values: Mapping[str, str], queues: list[str]) -> list[Row]:
    to = values.get("to", "")
    numbers = [query_params.offset({"queue": queue}, "queue") for queue in queues if queue]
    is_word = to in (consumers.EARLIEST, consumers.LATEST)
    position = to if is_word else query_params.offset(values, "to")
    if position is None:
        raise query_params.BadQueryError("to: earliest, latest or an offset is allowed")

    chosen = [number for number in numbers if number is not None]
    return consumers.plan_reset(
        lake, values.get("group", ""), values.get("topic", ""), position, chosen
    )


def _position_preview(
    request: Request,
    values: Mapping[str, str],
    queues: list[str],
    status: int = 200,
    trouble: str = "",
    reason: str = "",
) -> Response:
    lake = lake_of(request)
    rows = _plan(lake, values, queues)
    to_reread = sum(max(0, (row["queue_offset"] or 0) - row["new_offset"]) for row in rows)
    to_skip = sum(max(0, row["new_offset"] - (row["queue_offset"] or 0)) for row in rows)

    return page(
        request,
        "position",
        status,
        rows=rows,
        columns=consumers.COLUMNS[2:],
        group=values.get("group", ""),
        topic=values.get("topic", ""),
        to=values.get("to", ""),
        queues=queues,
        again=to_reread,
        skipped=to_skip,
        trouble=trouble,
        reason=reason,
    )

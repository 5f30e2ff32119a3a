"""The pages of an action, in steps of plain forms.

1. `/NAME` previews it: the result for each target, and all in one sentence. It writes nothing and
   needs no token.
2. Its form is sent with a reason and a confirmation: the records are written to Kafka.
3. `/written` shows the job's result for each record.

Other pages go in the same steps, and write elsewhere: what a consumer group has, to the lake
itself (`position.py`, `refused.py`); a skip, to the publisher's Kafka (`publishers.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

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
from pipelines.console.forms import NOT_SENT, Confirmation, Form, confirmation, write_once
from pipelines.console.query_params import TARGETS_MAX
from pipelines.console.render import page
from pipelines.console.urls import url
from pipelines.console.views import lake_of, site_of
from pipelines.errors import JobError, OperatorError
from pipelines.explain.rows import Row
from pipelines.health.transactions import Filters
from pipelines.operate import records
from pipelines.operate.preview import all_of
from pipelines.operate.topics import topic_limits
from pipelines.settings import SecuritySettings, Settings
from storage.lake.lake import Lake
from txlake.protocol import TOPIC_PATTERN, Target, TopicTarget, matches

_QUEUES_MAX: Final = 10_000
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
    """Returns the handler of an action's form. Its errors: those of `write_once`."""

    def view(request: Request, form: Form) -> Response:
        return write_once(
            request, form, lambda actor, settings: _write(request, form, action, actor, settings)
        )

    return view


def _write(
    request: Request, form: Form, action: Action, actor: str, settings: Settings
) -> Response:
    """Writes the records, and leads to their results; or shows again what the form lacks."""
    lake = lake_of(request)
    targets = _targets(action, form.get("target", []))
    sent = confirmation(form)
    if sent.error_text:
        return _preview(request, lake, action, targets, sent=sent)

    security = settings.security
    previews = all_of(action.previews(lake, targets, actor, sent.reason, security))
    written: list[str] = []

    for target, preview in zip(targets, previews, strict=True):
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
    more: int = 0,
    sent: Confirmation = NOT_SENT,
) -> Response:
    settings = site_of(request).settings
    security: SecuritySettings | None = None if settings is None else settings.security
    expectations = [
        (str(preview), True) if isinstance(preview, OperatorError) else (preview.expected, False)
        for preview in action.previews(lake, targets, "", "", security)
    ]
    rows = [
        {"target": str(target), "expected": expected}
        for target, (expected, _) in zip(targets, expectations, strict=True)
    ]

    return page(
        request,
        "act",
        sent.status,
        action=action,
        rows=rows,
        more=more,
        summary=summary(expectations),
        commands=[command_line(action, target) for target in targets],
        columns=("target", "expected"),
        hidden=[("target", row["target"]) for row in rows],
        then=url(f"/{action.name}", target=[row["target"] for row in rows]),
        sent=sent,
    )


def _targets(action: Action, texts: list[str]) -> list[Target]:
    parsed = [action.target(text) for text in texts]
    targets = [target for target in parsed if target is not None]
    if len(targets) < len(texts) or not 0 < len(targets) <= TARGETS_MAX:
        raise query_params.BadQueryError(f"choose 1 to {TARGETS_MAX} targets of {action.does}")
    return targets

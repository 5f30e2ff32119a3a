"""The pages of the messages that listeners of consumer groups have refused, and their resuming.

`/consumer_resume` goes in the steps of an action (`act.py`), and writes to the lake itself, as
`txlake consumer dead resume` does: consumers take it up without the job.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipelines.console import query_params
from pipelines.console.act import TARGETS_MAX
from pipelines.console.forms import Form, field, lacks, write_once
from pipelines.console.render import export, page
from pipelines.console.urls import url
from pipelines.console.views import lake_of
from pipelines.errors import OperatorError
from pipelines.explain.rows import Row
from pipelines.health.consumer_retries import DEAD_COLUMNS, RETRY_COLUMNS, read_refused
from pipelines.operate.consumer_retries import plan_resume, write_resume
from pipelines.settings import Settings
from storage.lake.lake import Lake
from txlake._counted import counted
from txlake._retries import DEAD, WAITING

log = logging.getLogger("txlake.console")

# `reason` is a code in the other tables, and shown as one; a listener's is a sentence.
_LAST_REASON: Final = "last_reason"


def dead_page(request: Request) -> Response:
    """Lists the messages that consumer groups have given up, the longest dead first."""
    return _list(request, "consumer_dead", DEAD, DEAD_COLUMNS)


def retries_page(request: Request) -> Response:
    """Lists the messages that listeners have refused, and that come again."""
    return _list(request, "consumer_retries", WAITING, RETRY_COLUMNS)


def _list(request: Request, template: str, state: str, columns: Sequence[str]) -> Response:
    query = request.query_params
    group = query_params.text(query, "group")
    topic = query_params.text(query, "topic")
    rows = read_refused(lake_of(request), state, group, topic)
    shown = rows[: query_params.limit(query)]

    return export(request, columns, shown) or page(
        request,
        template,
        columns=_shown_columns(columns),
        rows=list(map(_shown, shown)),
        count=len(rows),
        query=query,
    )


def _shown_columns(columns: Sequence[str]) -> list[str]:
    return [_LAST_REASON if name == "reason" else name for name in columns]


def _shown(row: Row) -> Row:
    """Returns a row with its name in forms, and with what links and cells need."""
    return {
        **row,
        _LAST_REASON: row["reason"],
        "message_topic": row["topic"],
        "target": f"{row['topic']}:{row['queue_id']}-{row['queue_offset']}",
    }


def resume_page(request: Request) -> Response:
    """Previews which dead messages of a group would come again; writes nothing."""
    query = request.query_params
    group = query.get("group", "")
    lake = lake_of(request)

    targets = query.getlist("target")
    if not targets and "max" in query:
        maximum = query_params.number(query, "max", TARGETS_MAX, TARGETS_MAX)
        topic = query_params.text(query, "topic")
        rows = plan_resume(lake, group, topic, None, None)[:maximum]
        targets = [_shown(row)["target"] for row in rows]

    return _preview(request, group, _plan(lake, group, targets), targets)


def resume(request: Request, form: Form) -> Response:
    """Lets dead messages come again, as `txlake consumer dead resume` does; errors as `write`."""

    def write_rows(actor: str, _: Settings) -> Response:
        group = field(form, "group")
        reason = field(form, "reason").strip()
        targets = form.get("target", [])
        lake = lake_of(request)
        rows = _plan(lake, group, targets)

        trouble = lacks(form)
        if trouble:
            return _preview(request, group, rows, targets, 400, trouble, reason)

        count = write_resume(lake, rows)
        log.warning(
            "%s resumed %s of consumer group %s, %s: %s",
            actor,
            counted(count, "dead message"),
            group,
            ", ".join(row["target"] for row in rows),
            reason,
        )
        return RedirectResponse(url("/consumer_retries", group=group), 303)

    return write_once(request, form, write_rows)


def _plan(lake: Lake, group: str, targets: Sequence[str]) -> list[Row]:
    """Returns the chosen messages that are dead. Errors: OperatorError if none is."""
    if not 0 < len(targets) <= TARGETS_MAX:
        raise query_params.BadQueryError(f"choose 1 to {TARGETS_MAX} dead messages")

    chosen = set(targets)
    dead = map(_shown, plan_resume(lake, group, None, None, None))
    rows = [row for row in dead if row["target"] in chosen]
    if not rows:
        raise OperatorError(
            f"none of the chosen messages of consumer group {group} is dead: nothing was written"
        )
    return rows


def _preview(
    request: Request,
    group: str,
    rows: Sequence[Row],
    targets: Sequence[str],
    status: int = 200,
    trouble: str = "",
    reason: str = "",
) -> Response:
    return page(
        request,
        "consumer_resume",
        status,
        group=group,
        rows=rows,
        columns=_shown_columns(DEAD_COLUMNS[1:]),
        not_dead=len(set(targets)) - len(rows),
        trouble=trouble,
        reason=reason,
        then=url("/consumer_resume", group=group, target=[row["target"] for row in rows]),
    )

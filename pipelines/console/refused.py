"""The pages of the messages that listeners of consumer groups have refused.

`/consumer_resume` and `/consumer_drop` go in the steps of an action (`act.py`), and write to the
lake itself, as `txlake consumer dead resume` and `drop` do: it needs no job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipelines.console import query_params
from pipelines.console.forms import Form, field, lacks, write_once
from pipelines.console.query_params import TARGETS_MAX
from pipelines.console.render import export, page
from pipelines.console.urls import url
from pipelines.console.views import lake_of
from pipelines.errors import OperatorError
from pipelines.explain.rows import Row
from pipelines.health.consumer_retries import DEAD_COLUMNS, RETRY_COLUMNS, read_refused
from pipelines.operate.consumer_retries import find_dead, write_drop, write_resume
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


@dataclass(frozen=True)
class DeadAction:
    """One thing that an operator can do with dead messages, as `txlake consumer dead NAME` does.

    `would`: what would become of them, with GROUP for the group; `options`: of the command, beside
    those of all; `why`: what becomes of the reason; `returns_to`: the page to go on with.
    """

    name: str
    gerund: str
    done: str
    would: str
    options: str
    why: str
    returns_to: str
    write: Callable[[Lake, Sequence[Row], str, str], int]


ACTIONS: Final = (
    DeadAction(
        "resume",
        "resuming",
        "resumed",
        "would come to the listener of GROUP again, at once and as often as a new message",
        "",
        "Why; it is written to the console's log",
        "/consumer_retries",
        lambda lake, rows, _actor, _reason: write_resume(lake, rows),
    ),
    DeadAction(
        "drop",
        "dropping",
        "dropped",
        "would not come to the listener of GROUP any more",
        " --reason ...",
        "Why; it is stored with the messages",
        "/consumer_dead",
        write_drop,
    ),
)


def preview_page(action: DeadAction) -> Callable[[Request], Response]:
    """Returns the page that previews an action on dead messages of a group; it writes nothing."""

    def view(request: Request) -> Response:
        query = request.query_params
        group = query.get("group", "")
        lake = lake_of(request)

        targets = query.getlist("target")
        if not targets and "max" in query:
            maximum = query_params.number(query, "max", TARGETS_MAX, TARGETS_MAX)
            topic = query_params.text(query, "topic")
            rows = find_dead(lake, group, topic, None, None)[:maximum]
            targets = [_shown(row)["target"] for row in rows]

        return _preview(request, action, group, _plan(lake, group, targets), targets)

    return view


def write(action: DeadAction) -> Callable[[Request, Form], Response]:
    """Returns the page that writes an action on dead messages; errors as `act.write`."""

    def view(request: Request, form: Form) -> Response:
        return write_once(request, form, lambda actor, _: _write(request, form, action, actor))

    return view


def _write(request: Request, form: Form, action: DeadAction, actor: str) -> Response:
    """Writes what becomes of dead messages; or shows again what the form lacks."""
    group = field(form, "group")
    reason = field(form, "reason").strip()
    targets = form.get("target", [])
    lake = lake_of(request)
    rows = _plan(lake, group, targets)

    error_text = lacks(form)
    if error_text:
        return _preview(request, action, group, rows, targets, 400, error_text, reason)

    count = action.write(lake, rows, actor, reason)
    log.warning(
        "%s %s %s of consumer group %s, %s: %s",
        actor,
        action.done,
        counted(count, "dead message"),
        group,
        ", ".join(row["target"] for row in rows),
        reason,
    )
    return RedirectResponse(url(action.returns_to, group=group), 303)


def _plan(lake: Lake, group: str, targets: Sequence[str]) -> list[Row]:
    """Returns the chosen messages that are dead. Errors: OperatorError if none is."""
    if not 0 < len(targets) <= TARGETS_MAX:
        raise query_params.BadQueryError(f"choose 1 to {TARGETS_MAX} dead messages")

    chosen = set(targets)
    dead = map(_shown, find_dead(lake, group, None, None, None))
    rows = [row for row in dead if row["target"] in chosen]
    if not rows:
        raise OperatorError(
            f"none of the chosen messages of consumer group {group} is dead: nothing was written"
        )
    return rows


def _preview(
    request: Request,
    action: DeadAction,
    group: str,
    rows: Sequence[Row],
    targets: Sequence[str],
    status: int = 200,
    error_text: str = "",
    reason: str = "",
) -> Response:
    return page(
        request,
        "consumer_dead_act",
        status,
        act=action,
        group=group,
        rows=rows,
        columns=_shown_columns(DEAD_COLUMNS[1:]),
        not_dead=len(set(targets)) - len(rows),
        error_text=error_text,
        reason=reason,
        then=url(f"/consumer_{action.name}", group=group, target=[row["target"] for row in rows]),
    )

"""The page that sets where a consumer group reads on, in the steps of an action (`act.py`).

It writes to the lake itself, as `txlake consumer reset` does; consumers take it up without the job.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipelines.console import query_params
from pipelines.console.forms import (
    NOT_SENT,
    Confirmation,
    Form,
    confirmation,
    field,
    write_once,
)
from pipelines.console.render import page
from pipelines.console.urls import url
from pipelines.console.views import lake_of
from pipelines.explain.rows import Row
from pipelines.operate import consumers
from pipelines.settings import Settings
from storage.lake.lake import Lake
from txlake.protocol import SESSION_TIMEOUT_MS

log = logging.getLogger("txlake.console")

_FIELDS: Final = ("group", "topic", "to")


def position_page(request: Request) -> Response:
    """Previews where a consumer group would read on; writes nothing."""
    query = request.query_params
    values = {name: query.get(name, "") for name in _FIELDS}
    return _preview(request, values, query.getlist("queue"))


def set_position(request: Request, form: Form) -> Response:
    """Sets where a consumer group reads on; errors as `write_once`."""

    def set_rows(actor: str, _: Settings) -> Response:
        values = {name: field(form, name) for name in _FIELDS}
        queues = form.get("queue", [])
        sent = confirmation(form)
        if sent.error_text:
            return _preview(request, values, queues, sent)

        lake = lake_of(request)
        consumers.write_reset(lake, _plan(lake, values, queues), SESSION_TIMEOUT_MS)
        log.warning(
            "%s set consumer group %s of topic %s to %s, queues %s: %s",
            actor,
            values["group"],
            values["topic"],
            values["to"],
            ", ".join(filter(None, queues)) or "all",
            sent.reason,
        )
        return RedirectResponse(url("/consumer", group=values["group"]), 303)

    return write_once(request, form, set_rows)


def _plan(lake: Lake, values: Mapping[str, str], queues: Sequence[str]) -> list[Row]:
    """Returns each queue's offset now and then. Input: `queues`: an empty text names none."""
    numbers = [query_params.offset({"queue": queue}, "queue") for queue in queues]
    chosen = [number for number in numbers if number is not None]
    try:
        position = consumers.parse_position(values["to"])
    except ValueError as error:
        raise query_params.BadQueryError(f"to = {error} is allowed") from error
    return consumers.plan_reset(lake, values["group"], values["topic"], position, chosen)


def _preview(
    request: Request,
    values: Mapping[str, str],
    queues: Sequence[str],
    sent: Confirmation = NOT_SENT,
) -> Response:
    rows = _plan(lake_of(request), values, queues)
    to_reread = sum(max(0, (row["queue_offset"] or 0) - row["new_offset"]) for row in rows)
    to_skip = sum(max(0, row["new_offset"] - (row["queue_offset"] or 0)) for row in rows)
    queues = list(filter(None, queues))

    return page(
        request,
        "position",
        sent.status,
        rows=rows,
        columns=consumers.COLUMNS[2:],
        **values,
        to_reread=to_reread,
        to_skip=to_skip,
        hidden=[*values.items(), *(("queue", queue) for queue in queues)],
        command=_command(values, queues),
        then=url("/position", **values, queue=queues),
        sent=sent,
    )


def _command(values: Mapping[str, str], queues: Sequence[str]) -> str:
    """Returns the command line that does the same."""
    words = ["txlake", "consumer", "reset", values["group"], "--topic", values["topic"]]
    words += ["--to", values["to"]]
    for queue in queues:
        words += ["--queue", queue]
    return shlex.join([*words, "--yes", "--conf", "job.toml"])

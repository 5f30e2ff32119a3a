"""The pages of messages: those of a topic, one of them, a half or a schedule record, a download.

Bodies and properties are shown only where the console may show them (`--bodies`).
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pipelines.console import bodies, query_params
from pipelines.console.render import export, page
from pipelines.console.urls import url
from pipelines.console.views import lake_of, site_of
from pipelines.errors import OperatorError
from pipelines.explain.message_readers import Reader, read_refusals, readers_of
from pipelines.explain.rows import Row, latest_committed, to_dicts
from pipelines.health import consumers, messages, topics
from storage.lake.lake import Lake
from storage.lake.pruned import read_rows
from txlake._retries import DEAD, DROPPED, WAITING
from txlake.protocol import RecordTarget, read_target

_LISTED: Final = (
    "queue_id",
    "queue_offset",
    "stored_at",
    "keys",
    "tags",
    "producer_group",
    "transaction_id",
)
_PAGE: Final = 25
_PAGE_MAX: Final = 200
_FACTS: Final = (
    "producer_group",
    "transaction_id",
    "keys",
    "tags",
    "stored_at",
    "born_at",
    "reason",
    "delay_level",
    "delay_ms",
    "deliver_at",
    "immunity_ms",
    "tran_size",
    "tran_seq",
    "error",
    "epoch",
)
_CONTENTS: Final = ("properties", "body", "raw_headers")
_REFUSED: Final = {WAITING: "comes again", DEAD: "given up", DROPPED: "dropped"}


def messages_page(request: Request) -> Response:
    """Lists messages of a topic: the newest, or from an offset, by time or by keys."""
    query = request.query_params
    topic = query.get("topic", "")
    lake = lake_of(request)
    queues = topics.read_queues(lake, topic)

    queue_id = query_params.offset(query, "queue")
    first = query_params.offset(query, "from")
    limit = query_params.limit(query, _PAGE, _PAGE_MAX)
    keys = query_params.text(query, "keys")
    since = query.get("since") or "any"
    since_at = None if since == "any" else query_params.parse_age({"since": since}, "since")
    is_tail = first is None and query.get("order", "newest") == "newest"

    choice = messages.Choice(
        limit,
        is_tail,
        queue_id,
        first,
        keys,
        since_at,
        query_params.parse_age(query, "older_than"),
    )
    shows_bodies = site_of(request).shows_bodies
    read = [*_LISTED, "epoch", *(["body"] if shows_bodies else [])]
    table, has_more = messages.read_messages(lake, topic, choice, read)
    rows = [_listed(row, topic) for row in to_dicts(table)]
    if is_tail:
        rows.reverse()

    columns = (*_LISTED, "preview") if shows_bodies else _LISTED
    return export(request, columns, rows) or page(
        request,
        "messages",
        topic=topic,
        queues=queues,
        queue_id=queue_id,
        columns=columns,
        rows=rows,
        has_more=has_more,
        is_tail=is_tail,
        since=since,
        query=query,
        earlier=_earlier(rows, queues, queue_id, limit),
        later=_later(rows, queues, queue_id),
        shows_bodies=shows_bodies,
    )


def _listed(row: Row, topic: str) -> Row:
    body = row.pop("body", None)
    return {**row, "preview": bodies.preview(body), "message_topic": topic}


def _earlier(rows: list[Row], queues: list[Row], queue_id: int | None, limit: int) -> int | None:
    """Returns the offset from which the messages before the shown ones begin, if there are some."""
    if queue_id is None or not rows:
        return None
    first = min(row["queue_offset"] for row in rows)
    begin = queues[queue_id]["begin_offset"]
    return None if first <= begin else max(begin, first - limit)


def _later(rows: list[Row], queues: list[Row], queue_id: int | None) -> int | None:
    """Returns the offset behind the shown messages, if the queue has more."""
    if queue_id is None or not rows:
        return None
    following = max(row["queue_offset"] for row in rows) + 1
    return following if following < queues[queue_id]["end_offset"] else None


def message_page(request: Request) -> Response:
    """Shows a delivered message: its body, properties, transaction and readers."""
    topic, queue_id, offset = _place(request)
    lake = lake_of(request)
    row = _message(lake, topic, queue_id, offset, _columns(request))
    queue = topics.read_queues(lake, topic)[queue_id]

    has_before = offset > queue["begin_offset"]
    has_after = offset + 1 < queue["end_offset"]
    place: Row = {"topic": topic, "queue": queue_id}
    return _contents_page(
        request,
        row,
        title=f"Message {offset} of {topic}, queue {queue_id}",
        crumbs=[
            ("Topics", "/topics"),
            (topic, url("/topic", name=topic)),
            ("Messages", url("/messages", topic=topic)),
            (f"queue {queue_id}", url("/messages", **place)),
        ],
        download=url("/download", **place, offset=offset),
        story=_story_of(row),
        readers=_readers(lake, topic, queue_id, offset),
        before=url("/message", **place, offset=offset - 1) if has_before else None,
        after=url("/message", **place, offset=offset + 1) if has_after else None,
    )


def record_page(request: Request) -> Response:
    """Shows a half or a schedule record as the lake has it, delivered or not."""
    target = _record_target(request)
    row = _record(lake_of(request), target, _columns(request))
    name = f"{target.queue_id}-{target.queue_offset}"

    return _contents_page(
        request,
        row,
        title=f"{'Half' if target.kind == 'half' else 'Schedule record'} {name}",
        crumbs=[
            ("Transactions", "/transactions"),
            (f"the story of {name}", url("/story", of=str(target))),
        ],
        download=url("/download", of=str(target)),
        story=str(target),
        readers=None,
        before=None,
        after=None,
    )


def download(request: Request) -> Response:
    """Returns a body as a file. Errors: HTTPException if the console shows no bodies."""
    if not site_of(request).shows_bodies:
        raise HTTPException(403, "this console shows no bodies: it was started with --no-bodies")

    if "of" in request.query_params:
        target = _record_target(request)
        row = _record(lake_of(request), target, ["body"])
        name = f"{target.kind}_{target.queue_id}-{target.queue_offset}"
    else:
        topic, queue_id, offset = _place(request)
        row = _message(lake_of(request), topic, queue_id, offset, ["body"])
        name = f"{re.sub('[^A-Za-z0-9_.-]', '_', topic)}_{queue_id}-{offset}"

    headers = {"content-disposition": f'attachment; filename="{name}.bin"'}
    return Response(row["body"] or b"", media_type="application/octet-stream", headers=headers)


def _contents_page(request: Request, row: Row, **values: Any) -> Response:
    form = request.query_params.get("as")
    if form is not None and form not in bodies.FORMS:
        raise query_params.BadQueryError(
            f"as = {form!r}: one of {', '.join(bodies.FORMS)} is allowed"
        )

    body = row.get("body")
    headers = row.get("raw_headers") or []
    return page(
        request,
        "message",
        row=row,
        facts=[name for name in _FACTS if row.get(name) not in (None, "")],
        shows_bodies=site_of(request).shows_bodies,
        body=None if body is None else bodies.body_text(body, form),
        body_bytes=None if body is None else len(body),
        forms=bodies.FORMS,
        properties=row.get("properties") or [],
        headers=[(each["key"], bodies.preview(each["value"], 200)) for each in headers],
        **values,
    )


def _columns(request: Request) -> list[str]:
    return list(_CONTENTS) if site_of(request).shows_bodies else []


def _place(request: Request) -> tuple[str, int, int]:
    query = request.query_params
    queue_id, offset = query_params.offset(query, "queue"), query_params.offset(query, "offset")
    if queue_id is None or offset is None:
        raise query_params.BadQueryError("a message is named by topic, queue and offset")
    return query.get("topic", ""), queue_id, offset


def _message(lake: Lake, topic: str, queue_id: int, offset: int, contents: list[str]) -> Row:
    """Returns a delivered message. Errors: OperatorError if the topic has no such message."""
    table = f"topics/{topics.require_topic(lake, topic)['table_id']}"
    kept = [name for name in lake.schema(table).names if name not in _CONTENTS]
    return _row_at(lake, table, queue_id, offset, [*kept, *contents], f"topic {topic}")


def _record(lake: Lake, target: RecordTarget, contents: list[str]) -> Row:
    """Returns a half or a schedule record. Errors: OperatorError if the lake has none there."""
    kept = [name for name in lake.schema(target.kind).names if name not in _CONTENTS]
    columns = [name for name in [*kept, *contents] if name != "raw_key"]
    return _row_at(lake, target.kind, target.queue_id, target.queue_offset, columns, target.kind)


def _row_at(
    lake: Lake, table: str, queue_id: int, offset: int, columns: list[str], place: str
) -> Row:
    bounds = {"queue_id": [queue_id], "queue_offset": [offset]}
    rows: pa.Table = read_rows(lake, table, list(dict.fromkeys([*columns, "epoch"])), bounds)
    rows = rows.filter(pc.less_equal(rows["epoch"], latest_committed(lake)[0]))
    if rows.num_rows == 0:
        raise OperatorError(
            f"{place} has no message {queue_id}-{offset}: it was not landed yet, or is deleted"
        )
    return to_dicts(rows)[0]


def _record_target(request: Request) -> RecordTarget:
    text = request.query_params.get("of", "")
    try:
        target = read_target(text)
    except ValueError:
        target = None
    if not isinstance(target, RecordTarget):
        raise query_params.BadQueryError(f"of = {text!r}: half:0-17 or schedule:0-17 is allowed")
    return target


def _story_of(row: Row) -> str | None:
    if row["half_queue_id"] is None or row["source"] is None:
        return None
    return str(RecordTarget(row["source"], row["half_queue_id"], row["half_queue_offset"]))


def _readers(lake: Lake, topic: str, queue_id: int, offset: int) -> list[Row]:
    """Returns each consumer group of a topic, and where it stands seen from a message."""
    lags = consumers.read_lags(lake, topic=topic)
    committed_at = {
        row["consumer_group"]: row["committed_at"] for row in lags if row["queue_id"] == queue_id
    }

    message = topic, queue_id, offset
    readers = readers_of(message, lags, read_refusals(lake, [message]))
    return [
        {
            "consumer_group": reader.consumer_group,
            "state": _reader_state(reader),
            "has_read": reader.has_read,
            "what": _position_text(reader, offset),
            "committed_at": committed_at.get(reader.consumer_group),
        }
        for reader in readers
    ]


def _reader_state(reader: Reader) -> str:
    if reader.refusal is not None:
        return _REFUSED[reader.refusal]
    return "has read it" if reader.has_read else "has not read it"


def _position_text(reader: Reader, offset: int) -> str:
    position = reader.queue_offset
    if reader.refusal is not None:
        return reader.refusal_text
    if position is None:
        return "has committed nothing of this queue"
    if position > offset:
        return f"next: {position}, {position - offset} after this"
    return f"next: {position}, {offset - position} before this"

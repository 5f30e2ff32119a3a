"""The pages of publishers: how far they are, why one has stopped, and what an operator skips.

`/skip` goes in the steps of an action (`act.py`), and writes to the publisher's own Kafka, as
`txlake publish skip` does: into its progress topic, where the publisher reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from pipelines.console.render import export, page
from pipelines.console.urls import url
from pipelines.console.views import lake_of, site_of
from pipelines.errors import JobError, OperatorError
from pipelines.explain.rows import Row, to_dicts
from pipelines.health.messages import Choice, read_messages
from pipelines.output import now_ms
from pipelines.publish.operate import Change, Operator, skip_command
from pipelines.publish.status import COLUMNS, PublisherStatus, find_publishers, topic_rows
from pipelines.settings import Settings
from storage.lake.lake import Lake

# `reason` is a code in the other tables, and shown as one; an operator's is a sentence.
_SKIP_COLUMNS: Final = (
    "skipped_at",
    "publisher",
    "topic",
    "queue_id",
    "from_offset",
    "to_offset",
    "actor",
    "why",
)
_MESSAGE_COLUMNS: Final = (
    "queue_id",
    "queue_offset",
    "stored_at",
    "keys",
    "producer_group",
    "transaction_id",
)
_FIELDS: Final = ("publisher", "topic", "queue", "offset", "to")
_STATUS: Final = "publishers"  # the name of the query to Kafka


@dataclass(frozen=True)
class _Messages:
    """The messages that a publisher is to skip. `last` is inclusive."""

    publisher: str
    topic: str
    queue_id: int
    first: int
    last: int

    def query(self) -> dict[str, str | int]:
        """Returns them as the fields of an address or a form."""
        values = (self.publisher, self.topic, self.queue_id, self.first, self.last)
        return dict(zip(_FIELDS, values, strict=True))


def publishers_page(request: Request) -> Response:
    """Shows each publisher's topics, why it has stopped, and what operators have skipped."""
    site = site_of(request)
    settings = site.settings
    lake_of(request)

    publishers: list[PublisherStatus] = []
    error_text = ""
    if settings is not None:
        try:
            publishers = site.kafka.ask(_STATUS, lambda: _read_publishers(settings))
        except JobError as error:
            error_text = str(error)

    rows = topic_rows(publishers, now_ms())
    return export(request, COLUMNS, rows) or page(
        request,
        "publishers",
        publishers=publishers,
        names=[] if settings is None else [(name, name) for name in settings.publish],
        error_text=error_text,
        columns=[name for name in COLUMNS if name != "stopped"],
        rows=rows,
        skips=_skip_rows(publishers),
        skip_columns=_SKIP_COLUMNS,
    )


def _read_publishers(settings: Settings) -> list[PublisherStatus]:
    """Returns the status of all publishers. Errors: JobError if Kafka tells of none of them."""
    publishers = find_publishers(settings)
    reasons = [publisher.unknown_reason for publisher in publishers if publisher.unknown_reason]
    if reasons and len(reasons) == len(publishers):
        raise JobError(reasons[0])
    return publishers


def _skip_rows(publishers: Sequence[PublisherStatus]) -> list[Row]:
    """Returns what operators have skipped, the newest first."""
    rows = [
        {
            **asdict(skip),
            "publisher": publisher.publisher,
            "skipped_at": skip.at,
            "why": skip.reason,
        }
        for publisher in publishers
        for skip in publisher.skips
    ]
    return sorted(rows, key=lambda row: -row["skipped_at"])


def skip_page(request: Request) -> Response:
    """Previews which messages a publisher would never publish; writes nothing."""
    settings = _settings(request)
    return _preview(request, settings, _messages(settings, request.query_params))


def skip(request: Request, form: Form) -> Response:
    """Lets a publisher go past messages, as `txlake publish skip` does; errors as `write_once`."""

    def write_skip(actor: str, settings: Settings) -> Response:
        messages = _messages(settings, {name: field(form, name) for name in _FIELDS})
        sent = confirmation(form)
        if sent.error_text:
            return _preview(request, settings, messages, sent)

        _skip(settings, messages, actor, sent.reason, dry_run=False)
        site_of(request).kafka.forget(_STATUS)
        return RedirectResponse("/publishers#skips", 303)

    return write_once(request, form, write_skip)


def _settings(request: Request) -> Settings:
    settings = site_of(request).settings
    if settings is None:
        raise query_params.BadQueryError("publishers are known with --conf")
    return settings


def _messages(settings: Settings, values: Mapping[str, str]) -> _Messages:
    name = values.get("publisher", "")
    if name not in settings.publish:
        known = ", ".join(settings.publish) or "(none)"
        raise query_params.BadQueryError(f"publisher = {name!r}: one of {known} is allowed")

    queue_id = query_params.offset(values, "queue")
    first = query_params.offset(values, "offset")
    last = query_params.offset(values, "to")
    if queue_id is None or first is None:
        raise query_params.BadQueryError("a message is named by topic, queue and offset")

    return _Messages(
        name, values.get("topic", ""), queue_id, first, first if last is None else last
    )


def _skip(
    settings: Settings, messages: _Messages, actor: str, reason: str, *, dry_run: bool
) -> Change:
    operator = Operator(settings, settings.publish[messages.publisher], actor, reason)
    return operator.skip(
        messages.topic, messages.queue_id, messages.first, messages.last, dry_run=dry_run
    )


def _preview(
    request: Request,
    settings: Settings,
    messages: _Messages,
    sent: Confirmation = NOT_SENT,
) -> Response:
    lake = lake_of(request)
    change = None
    refusal = ""
    rows: list[Row] = []
    try:
        change = site_of(request).kafka.ask(
            messages, lambda: _skip(settings, messages, "", "", dry_run=True), is_form=True
        )
        rows = _rows(lake, messages)
    except OperatorError as error:
        refusal = str(error)

    return page(
        request,
        "skip",
        sent.status,
        change=change,
        refusal=refusal,
        messages=messages,
        count=messages.last - messages.first + 1,
        destination=settings.publish[messages.publisher].destination_of(messages.topic),
        rows=rows,
        columns=_MESSAGE_COLUMNS,
        hidden=messages.query().items(),
        command=skip_command(
            messages.publisher, messages.topic, messages.queue_id, messages.first, messages.last
        ),
        then=url("/skip", **messages.query()),
        sent=sent,
    )


def _rows(lake: Lake, messages: _Messages) -> list[Row]:
    """Returns the first of the messages; those that the topic does not keep any more are missing.

    Errors: OperatorError if there is no such topic or queue.
    """
    choice = Choice(query_params.ROWS, queue_id=messages.queue_id, from_offset=messages.first)
    table, _ = read_messages(lake, messages.topic, choice, _MESSAGE_COLUMNS)

    return [
        {**row, "message_topic": messages.topic}
        for row in to_dicts(table)
        if row["queue_offset"] <= messages.last
    ]

"""The pages that read: each calls the functions of the command of its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipelines.console import query_params
from pipelines.console.context import ConsoleContext
from pipelines.console.render import error_page, export, page
from pipelines.console.urls import url
from pipelines.errors import JobError
from pipelines.explain.fetch import find, find_by_keys
from pipelines.explain.report import Report, nothing_found, reports
from pipelines.explain.rows import Row
from pipelines.explain.show import lines
from pipelines.explain.target import ExplainTarget, Transaction, parse_target
from pipelines.explain.units import only_target
from pipelines.health import (
    conflicts,
    consumers,
    dead_letters,
    groups,
    topics,
    transactions,
)
from pipelines.health.consumer_retries import count_refused
from pipelines.operate import delays
from pipelines.output import now_ms
from storage.lake.lake import Lake
from txlake.protocol import TRANSACTION_ID_PATTERN, RecordTarget, matches

_ANY: Final = "any"
_STORIES: Final = 20
_SHOWN: Final = 5  # of the messages of a story


def site_of(request: Request) -> ConsoleContext:
    """Returns the console of a request."""
    site: ConsoleContext = request.app.state.site
    return site


def lake_of(request: Request) -> Lake:
    """Returns the lake of a request, opened for it. Errors: LakeError."""
    lake = site_of(request).open_lake()
    request.state.lake = lake
    return lake


def _rows_page(
    request: Request, template: str, columns: Sequence[str], rows: Sequence[Row], **more: Any
) -> Response:
    """Returns a page of the first rows, up to the limit in its address."""
    shown = rows[: query_params.limit(request.query_params)]
    return export(request, columns, shown) or page(
        request, template, columns=columns, rows=shown, count=len(rows), **more
    )


def find_page(request: Request) -> Response:
    """Leads to the story of a transaction, named by id, keys or place, or to a list of several.

    With `keys` in place of `q` it is keys, whatever else it looks like.
    """
    keys = query_params.text(request.query_params, "keys")
    query = keys or request.query_params.get("q", "").strip()
    if not query:
        return RedirectResponse(url("/transactions"), 303)

    lake = lake_of(request)
    target = None if keys else _target_of(query)
    if target and find(lake, target).messages:
        return RedirectResponse(url("/story", of=query), 303)

    rows: list[Row] = [
        {**row, "target": str(RecordTarget(row["source"], row["queue_id"], row["queue_offset"]))}
        for row in find_by_keys(lake, query)
    ]

    only = only_target(rows)
    if only is not None:
        return RedirectResponse(url("/story", of=str(only)), 303)

    of_group = 0 if keys else transactions.count_of_group(lake, query)
    if not keys and not rows:
        address = _address_of_name(lake, query, target, of_group)
        if address is not None:
            return RedirectResponse(address, 303)

    columns = ("target", "stored_at", "transaction_id", "producer_group", "real_topic", "keys")
    return _rows_page(request, "found", columns, rows, asked=query, of_group=of_group)


def _target_of(query: str) -> ExplainTarget | None:
    try:
        return parse_target(query)
    except ValueError:
        return None


def _address_of_name(
    lake: Lake, query: str, target: ExplainTarget | None, of_group: int
) -> str | None:
    """Returns the page of what a text names that is no keys and names no message by itself.

    Order numbers and transaction ids can look like a half's place: `2026-1001`. What is nothing
    else is one, and its story says why it is not there.
    """
    is_place = isinstance(target, RecordTarget)
    can_be_id = is_place and matches(TRANSACTION_ID_PATTERN, query)
    if can_be_id and find(lake, Transaction(query)).messages:
        return url("/story", of=f"id:{query}")

    if of_group:
        return url("/transactions", group=query, state="all", since=_ANY)
    return url("/story", of=query) if is_place else None


def transactions_page(request: Request) -> Response:
    """Lists the pending transactions, or all that were stored in a span of time."""
    query = request.query_params
    state = query.get("state", "pending")
    # A lake has many transactions: without keys or a time those of the last hour are shown.
    is_pending_or_named = state == "pending" or query.get("keys")
    since = query.get("since") or (_ANY if is_pending_or_named else "1h")
    since_at = None if since == _ANY else query_params.parse_age({"since": since}, "since")

    filters = transactions.Filters(
        query_params.text(query, "group"),
        query_params.text(query, "topic"),
        query_params.text(query, "keys"),
        since_at,
        query_params.parse_age(query, "older_than"),
    )

    list_rows = transactions.list_pending if state == "pending" else transactions.list_stored
    rows, count = list_rows(lake_of(request), filters, query_params.limit(query))

    return export(request, transactions.COLUMNS, rows) or page(
        request,
        "transactions",
        columns=transactions.SHOWN,
        rows=rows,
        count=count,
        state=state,
        since=since,
        query=query,
    )


def story(request: Request) -> Response:
    """Shows all that happened to a transaction, and why."""
    query = request.query_params.get("of", "").strip()
    try:
        target: ExplainTarget = parse_target(query)
    except ValueError as error:
        raise query_params.BadQueryError(str(error)) from error

    lake = lake_of(request)
    rows = find(lake, target)
    shown, more = reports(rows, now_ms(), _STORIES)
    if not shown:
        return error_page(request, 404, nothing_found(rows, target, lake.path))

    stories = [(each, list(lines(each)), _resume_targets(each)) for each in shown]
    return page(
        request,
        "story",
        asked=query,
        stories=stories,
        more=more,
        shown_max=_SHOWN,
        targets_max=query_params.TARGETS_MAX,
    )


def _resume_targets(story: Report) -> list[str]:
    """Returns the targets with which RESUME ends what a story waits for."""
    waits = [*story.waits, *(wait for message in story.messages for wait in message.waits)]
    return list(dict.fromkeys(wait.resume for wait in waits if wait.resume))


def dead_page(request: Request) -> Response:
    """Lists the discarded halves and the undeliverable messages."""
    query = request.query_params
    group = query_params.text(query, "group")
    topic = query_params.text(query, "topic")
    rows = dead_letters.read_dead(lake_of(request), topic, group)
    return _rows_page(request, "dead", dead_letters.COLUMNS, rows, query=query)


def groups_page(request: Request) -> Response:
    """Lists the producer groups: their pending halves, and whether they answer."""
    site = site_of(request)
    lake = lake_of(request)
    rows = groups.read_groups(lake, transactions.state_of(lake), now_ms())
    shown = rows[: query_params.limit(request.query_params)]
    error_text = ""

    if site.settings is not None:
        from pipelines.health.kafka import members_of

        try:
            names = tuple(row["producer_group"] for row in shown)
            kafka = site.settings.kafka
            members = site.kafka.ask(("members", names), lambda: members_of(kafka, names))
        except JobError as error:
            error_text = str(error)
            members = {}

        shown = [{**row, "members": members.get(row["producer_group"])} for row in shown]
    return export(request, groups.COLUMNS, shown) or page(
        request,
        "groups",
        columns=groups.COLUMNS,
        rows=shown,
        count=len(rows),
        error_text=error_text,
    )


def conflicts_page(request: Request) -> Response:
    """Lists the operations without effect: counted by group and reason, then the newest first."""
    query = request.query_params
    since = query.get("since") or "1d"
    since_at = query_params.parse_age({"since": since}, "since")
    group = query_params.text(query, "group")
    reason = query_params.text(query, "reason")
    conflicts.require_reason(reason)

    limit = query_params.limit(query)
    newest = conflicts.read_conflicts(lake_of(request), since_at, group, reason, limit)
    rows = newest.rows[::-1]

    return export(request, conflicts.COLUMNS, rows) or page(
        request,
        "conflicts",
        columns=conflicts.COLUMNS,
        rows=rows,
        count=newest.counts.total(),
        counts=newest.counts,
        since=since,
        query=query,
    )


def topics_page(request: Request) -> Response:
    """Lists the real topics."""
    rows = topics.read_topics(lake_of(request), site_of(request).retention())
    return _rows_page(request, "topics", topics.COLUMNS, rows)


def topic_page(request: Request) -> Response:
    """Shows one real topic, which need not exist yet: its queues, and its consumer groups."""
    name = request.query_params.get("name", "")
    lake = lake_of(request)

    is_made = any(row["topic"] == name for row in topics.catalog(lake))
    rows = topics.read_queues(lake, name) if is_made else []
    readers = consumers.read_lags(lake, topic=name)
    if not is_made and not readers and not _is_named(lake, name):
        raise topics.no_topic(lake, name)

    return page(
        request,
        "topic",
        name=name,
        columns=topics.QUEUE_COLUMNS[1:],
        rows=rows,
        readers=readers,
        reader_columns=consumers.LAG_COLUMNS,
    )


def _is_named(lake: Lake, topic: str) -> bool:
    """Returns whether a message of the lake is for a topic."""
    _, halves = transactions.list_stored(lake, transactions.Filters(topic=topic), 1)
    delayed = delays.read_waiting(lake, topic, limit=1).count
    return bool(halves or delayed or dead_letters.read_dead(lake, topic))


def consumers_page(request: Request) -> Response:
    """Lists the consumer groups, what they read and how far behind they are."""
    rows = consumers.read_consumers(lake_of(request))
    return _rows_page(request, "consumers", consumers.COLUMNS, rows)


def consumer_page(request: Request) -> Response:
    """Shows one consumer group, queue by queue, the largest lag first."""
    name = request.query_params.get("group", "")
    lake = lake_of(request)
    refused = [row for row in count_refused(lake) if row["consumer_group"] == name]
    rows = consumers.read_lags(lake, name) if refused else consumers.find_lags(lake, name, None)
    rows.sort(key=lambda row: -row["lag"])

    return _rows_page(
        request, "consumer", consumers.LAG_COLUMNS[1:], rows, name=name, refused=refused
    )


def delayed_page(request: Request) -> Response:
    """Lists the messages that wait for their time, the next first."""
    query = request.query_params
    group = query_params.text(query, "group")
    topic = query_params.text(query, "topic")
    waiting = delays.read_waiting(lake_of(request), topic, group, limit=query_params.limit(query))
    return export(request, delays.COLUMNS, waiting.messages) or page(
        request, "delayed", columns=delays.COLUMNS, waiting=waiting, query=query
    )

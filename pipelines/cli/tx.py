"""`txlake tx`: pending transactions, the story of one, and ending one by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pipelines.cli.bulk import BulkOptions, bulk_options
from pipelines.cli.option_types import Duration
from pipelines.cli.options import (
    empty_text,
    lake_options,
    list_options,
    open_lake,
    output_option,
    print_list,
    settings_of,
)
from pipelines.cli.write_options import WriteOptions, write_options
from pipelines.errors import OperatorError
from pipelines.output import now_ms, print_json, print_rows
from txlake.protocol import COMMIT, ROLLBACK, RecordTarget

if TYPE_CHECKING:
    from pipelines.explain.rows import Row
    from pipelines.explain.target import ExplainTarget
    from pipelines.operate.preview import Preview
    from pipelines.settings import Settings
    from storage.lake.lake import Lake
    from txlake.protocol import Target

_HOUR_MS = 3_600_000


@click.group()
def tx() -> None:
    """Look at transactions, or end one by hand."""


@tx.command("list")
@click.option("--pending", is_flag=True, help="Only pending transactions, however old.")
@list_options
@click.option("--keys", help="Only messages with these KEYS (an order number, say).")
@click.option("--older-than", type=Duration(), help="Only what was stored longer ago: 10m, 2h.")
@click.option(
    "--since",
    type=Duration(),
    help="Only what was stored since: 10m, 2h.  [default: 1h, unless --pending or --keys is given]",
)
def list_transactions(
    pending: bool,
    topic: str | None,
    group: str | None,
    keys: str | None,
    older_than: int | None,
    since: int | None,
    limit: int,
    lake_path: str | None,
    conf: str | None,
    output: str,
) -> None:
    """List transactions, the oldest first.

    Whose they are, since when, and how often they were asked about.
    """
    from pipelines.health import transactions

    if since is None and not pending and keys is None:
        since = _HOUR_MS

    now = now_ms()

    filters = transactions.Filters(
        group,
        topic,
        keys,
        since_at=None if since is None else max(0, now - since),
        until_at=None if older_than is None else now - older_than,
    )

    list_rows = transactions.list_pending if pending else transactions.list_stored
    rows, count = list_rows(open_lake(lake_path, conf), filters, limit)

    none = empty_text("no matching transactions", group=group, topic=topic, keys=keys)
    print_list(transactions.COLUMNS, rows, count, output, none, transactions.ONLY_DATA)


@tx.command()
@click.argument("target", required=False)
@click.option("--keys", help="Of what has these KEYS instead (an order number, say).")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Transactions to tell: one id can be on many halves.",
)
@lake_options
@output_option
def explain(
    target: str | None,
    keys: str | None,
    limit: int,
    lake_path: str | None,
    conf: str | None,
    output: str,
) -> None:
    """Tell all that happened to TARGET, and why.

    TARGET is a transaction id, <queue>-<offset> or half:<queue>-<offset> of a half,
    schedule:<queue>-<offset>, or undeliverable:<offset> of a message that could not be delivered.
    Where several transactions have the KEYS they are listed; for programs always.

    With --conf publishers' Kafka is asked, too: where and when a message was published.
    """
    if (target is None) == (keys is None):
        raise click.UsageError("name one: a transaction id, <queue>-<offset>, or --keys KEY")

    lake = open_lake(lake_path, conf)
    settings = None if conf is None else settings_of(conf, lake_path)
    if keys is None:
        _show_target(lake, settings, _target(str(target)), limit, output, str(target))
    else:
        _show_keys(lake, settings, keys, limit, output)


def _show_target(
    lake: Lake,
    settings: Settings | None,
    target: ExplainTarget,
    limit: int,
    output: str,
    target_text: str,
) -> None:
    """Prints the story of each unit of a target. Errors: OperatorError if there is none."""
    from pipelines.explain.fetch import find
    from pipelines.explain.report import nothing_found, reports, with_publications
    from pipelines.explain.show import show, to_json

    rows = find(lake, target)
    shown, more = reports(rows, now_ms(), limit)
    if not shown:
        raise OperatorError(nothing_found(rows, target, lake.path))
    if settings is not None and settings.publish:
        shown = with_publications(shown, settings)

    if output == "json":
        print_json(
            {
                "lake": lake.path,
                "target": target_text,
                "epoch": rows.epoch,
                "transactions": [to_json(report) for report in shown],
                "more": more,
            }
        )
        return

    for number, report in enumerate(shown):
        if number:
            click.echo()
        show(report)

    if more:
        click.echo(f"\n{more} more: --limit shows more, <queue>-<offset> names one half")


def _show_keys(lake: Lake, settings: Settings | None, keys: str, limit: int, output: str) -> None:
    """Prints the story of the one unit with these keys, or lists the messages of several units.

    Programs always get the list. Errors: OperatorError if there is none.
    """
    from pipelines.explain.fetch import find_by_keys
    from pipelines.explain.units import only_target

    rows = find_by_keys(lake, keys)
    if not rows:
        raise OperatorError(f"no message in the lake {lake.path} has the keys {keys!r}")

    only = only_target(rows)
    if only is None or output == "json":
        _list_messages(rows, limit, output)
    else:
        _show_target(lake, settings, only, limit, output, str(only))


def _list_messages(rows: Sequence[Row], limit: int, output: str) -> None:
    from pipelines.output import instant

    names = ("transaction_id", "producer_group", "real_topic", "keys")
    messages = [
        {
            "target": str(RecordTarget(row["source"], row["queue_id"], row["queue_offset"])),
            "stored_at": instant(row["stored_at"]),
            **{name: row[name] for name in names},
        }
        for row in rows
    ]

    if output == "json":
        print_json(messages)
        return

    print_rows(list(messages[0]), [list(row.values()) for row in messages[:limit]])
    if len(messages) > limit:
        click.echo(f"{len(messages) - limit} more: --limit shows more")


@tx.command()
@click.argument("target", required=False)
@bulk_options
@write_options
def commit(target: str | None, bulk: BulkOptions, writing: WriteOptions) -> None:
    """Commit a transaction by hand.

    TARGET is its id, or one of its halves: <queue>-<offset> or half:<queue>-<offset>. Without
    TARGET: all that is pending and fits the filters, the oldest first.
    """
    _end(COMMIT, target, bulk, writing)


@tx.command()
@click.argument("target", required=False)
@bulk_options
@write_options
def rollback(target: str | None, bulk: BulkOptions, writing: WriteOptions) -> None:
    """Roll back a transaction by hand.

    TARGET is its id, or one of its halves: <queue>-<offset> or half:<queue>-<offset>. Without
    TARGET: all that is pending and fits the filters, the oldest first.
    """
    _end(ROLLBACK, target, bulk, writing)


def _end(decision: str, text: str | None, bulk: BulkOptions, writing: WriteOptions) -> None:
    from pipelines.operate.bulk import pending_targets
    from pipelines.operate.preview import preview_ends

    bulk.check(text)

    target = None if text is None else writing.target(decision, text)
    lake = writing.lake
    actor, reason = writing.actor_and_reason
    security = writing.settings.security

    def preview_targets(targets: Sequence[Target]) -> list[Preview | OperatorError]:
        halves = [half for half in targets if isinstance(half, RecordTarget)]
        return preview_ends(lake, halves, decision, actor, reason, security)

    bulk.write(writing, target, pending_targets, preview_targets)


def _target(text: str) -> ExplainTarget:
    from pipelines.explain.target import parse_target

    try:
        return parse_target(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error

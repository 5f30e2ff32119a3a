"""`txlake verify`: check a lake's invariants, and name the rows that violate one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from pipelines.cli.options import (
    lake_options,
    location_from_options,
    output_option,
    print_list,
    refuse_if,
    settings_of,
)
from pipelines.output import TABLE
from storage.verify.invariant import EPOCH_MAX, NAMED_MAX
from txlake._counted import counted

if TYPE_CHECKING:
    from rich.console import Console

    from storage.verify.run import Finding, Report

VIOLATED = 3  # the exit code
_MEMORY_MB_MAX: Final = 1_000_000_000  # more than any machine has, and DuckDB takes it


def _epochs(_: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int]:
    """Returns the two epochs of a text such as 5-70."""
    if text is None:
        return 1, EPOCH_MAX

    first, _dash, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= EPOCH_MAX):
        raise click.BadParameter(f"{text!r}: two epochs as in 5-70 are allowed", param=parameter)
    return int(first), int(last)


# A command gets the first and the last epoch of its range.
epochs_option = click.option(
    "--epochs",
    metavar="FROM-TO",
    callback=_epochs,
    help="Only these epochs, as if there were no later ones.",
)


@click.command()
@lake_options
@epochs_option
@click.option(
    "--memory-mb",
    type=click.IntRange(10, _MEMORY_MB_MAX),
    help="How much memory it can take.  [default: a quarter of the machine's]",
)
@click.option(
    "--published",
    is_flag=True,
    help="Compare what publishers have written to Kafka with the tables instead.",
)
@click.option("--name", help="With --published: only this publisher.")
@click.option(
    "--from-offset",
    type=click.IntRange(0),
    help="With --published: from this queue offset on, in each queue.  [default: 0]",
)
@output_option
def verify(
    lake_path: str | None,
    conf: str | None,
    epochs: tuple[int, int],
    memory_mb: int | None,
    published: bool,
    name: str | None,
    from_offset: int | None,
    output: str,
) -> None:
    """Check the invariants of a lake; or, with --published, what is published from it.

    Exits with 3 when one is violated. --published compares count, order, keys, values and headers
    of each queue; what Kafka's retention has deleted is left out.
    """
    refuse_if(
        {
            "--name and --from-offset are about --published": not published
            and (name is not None or from_offset is not None),
            "--published needs --conf, and goes without --lake, --epochs and --memory-mb": published
            and (
                conf is None
                or lake_path is not None
                or epochs != (1, EPOCH_MAX)
                or memory_mb is not None
            ),
        }
    )
    if published:
        _verify_published(str(conf), name, from_offset or 0, output)
        return

    from storage.lake.lake import Lake
    from storage.verify.run import verify as verify_lake

    report = verify_lake(Lake(location_from_options(lake_path, conf)), *epochs, memory_mb)
    if output == "json":
        click.echo(json.dumps(as_json(report), indent=1, default=str))
    else:
        _print(report)

    if not report.is_sound:
        raise click.exceptions.Exit(VIOLATED)


def _verify_published(conf: str, name: str | None, from_offset: int, output: str) -> None:
    """Compares what publishers have written with the tables; exits with 3 where they differ."""
    from pipelines.publish.process import publisher_of
    from pipelines.publish.verification import verify_published

    settings = settings_of(conf)
    publishers = list(settings.publish.values())
    if name is not None or not publishers:
        publishers = [publisher_of(settings, name)]

    rows = [
        {"publisher": publisher.name, **asdict(queue)}
        for publisher in publishers
        for queue in verify_published(settings, publisher, from_offset)
    ]
    columns = ("publisher", "topic", "queue_id", "first", "count", "problem")
    table_form = TABLE if output == "text" else output
    print_list(columns, rows, len(rows), table_form, "nothing was published yet")

    wrong = [row for row in rows if row["problem"]]
    if not wrong:
        return
    first = wrong[0]
    click.echo(
        f"Error: queues that differ: {len(wrong)} of {len(rows)}: topic {first['topic']} queue "
        f"{first['queue_id']}: {first['problem']}",
        err=True,
    )
    raise click.exceptions.Exit(VIOLATED)


def as_json(report: Report) -> dict[str, Any]:
    """Returns a report as plain values."""
    invariants = [
        {
            "name": finding.invariant.name,
            "says": finding.invariant.statement,
            "rows_checked": finding.checked,
            "violations": finding.violations,
            "rows": finding.rows,
        }
        for finding in report.findings
    ]

    return {
        "lake_id": report.lake_id,
        "epochs": [report.first_epoch, report.last_epoch],
        "is_sound": report.is_sound,
        "numbers": report.numbers,
        "ignored": report.ignored,
        "invariants": invariants,
    }


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    n = report.numbers

    console.print(f"lake {report.lake_id}, epochs {report.first_epoch} to {report.last_epoch}")
    console.print(
        f"{counted(n['halves'], 'half', 'halves')} ="
        f" {n['committed']} committed + {n['rolled_back']} rolled back"
        f" + {n['pending']} pending + {n['unreadable']} unreadable;"
        f" discarded: {n['discarded']}; {counted(n['operations'], 'operation')},"
        f" {counted(n['schedules'], 'schedule record')}, {counted(n['messages'], 'message')}"
    )

    if report.ignored:
        rows = ", ".join(f"{count} of {table}" for table, count in report.ignored.items())
        console.print(f"not looked at, since their epoch is not committed: {rows}")

    table = Table("invariant")
    table.add_column("rows checked", justify="right")
    table.add_column("violations", justify="right")

    for finding in report.findings:
        mark = f"[red]{finding.violations}[/]" if finding.violations else "0"
        table.add_row(finding.invariant.name, str(finding.checked), mark)
    console.print(table)

    violated = [finding for finding in report.findings if finding.violations]
    for finding in violated:
        _print_rows(console, finding)
    names = ", ".join(finding.invariant.name for finding in violated)
    console.print(f"[red]violated: {names}[/]" if violated else "all invariants hold")


def _print_rows(console: Console, finding: Finding) -> None:
    from rich.markup import escape

    console.print(f"\n[red]{finding.invariant.name}[/]: {escape(finding.invariant.statement)}")
    for row in finding.rows:
        place = " ".join(
            f"{name}={value}"
            for name, value in row.items()
            if name != "problem" and value is not None
        )
        console.print(f"  {escape(place)}: {escape(row['problem'])}", soft_wrap=True)

    if finding.violations > NAMED_MAX:
        console.print(f"  and {finding.violations - NAMED_MAX} more")

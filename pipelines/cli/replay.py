"""`txlake replay`: history run again."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli.options import (
    conf_of,
    lake_option,
    location_from_options,
    output_option,
    refuse_if,
    settings_of,
)
from pipelines.cli.verify import VIOLATED, epochs_option
from pipelines.output import print_json, print_line, print_rows
from storage.verify.invariant import EPOCH_MAX
from txlake._counted import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelines.replay import Rebuilt, Verified, WhatIf
    from pipelines.replay.refill import Identity
    from pipelines.settings import Settings
    from storage.files.location import LakeLocation

_SHOWN = 20


@click.command()
@lake_option
@click.option("--verify", "is_verify", is_flag=True, help="Compare every row; 3 on a difference.")
@click.option("--into", metavar="NEW_LAKE", help="Rebuild the lake there.")
@click.option(
    "--what-if",
    "changes",
    metavar="KEY=VALUE",
    multiple=True,
    help="Decide under another [transaction] parameter; can be repeated.",
)
@epochs_option
@click.option(
    "--one-batch", is_flag=True, help="With --into: from half, op, schedule, admin alone."
)
@conf_of(
    "The job's settings: they name the lake and its store, and with --into the Kafka of a lake "
    "without epochs."
)
@output_option
def replay(
    lake_path: str | None,
    is_verify: bool,
    into: str | None,
    changes: tuple[str, ...],
    epochs: tuple[int, int],
    one_batch: bool,
    conf: str | None,
    output: str,
) -> None:
    """Run a lake's history again.

    To --verify it, to rebuild it --into another lake, or to ask --what-if.
    """
    is_all = epochs == (1, EPOCH_MAX)
    modes = (is_verify, into is not None, bool(changes))
    refuse_if(
        {
            "name one: --verify, --into NEW_LAKE, or --what-if KEY=VALUE": modes.count(True) != 1,
            "only --verify can begin later than with epoch 1": not is_verify and epochs[0] != 1,
            "--one-batch goes with --into, and takes all that was landed": one_batch
            and (into is None or not is_all),
            "--what-if is about the whole history: no --epochs": bool(changes) and not is_all,
        }
    )

    location = location_from_options(lake_path, conf)
    register_with_spark_submit()

    from pipelines.progress import progress_bar
    from pipelines.replay import rebuild, verify
    from pipelines.replay.what_if import run_what_if
    from storage.files.location import lake_location

    with progress_bar("replay", "records") as meter:
        if is_verify:
            verified = verify(location, *epochs, progress=meter)
        elif into is not None:
            identity = None
            store = {}
            if conf is not None:
                settings = settings_of(conf)
                store = settings.lake.store
                identity = _identity(location, settings) if one_batch else None

            target = lake_location(into, store)
            rebuilt = rebuild(location, target, one_batch, epochs[1], identity, meter)
        else:
            answer = run_what_if(location, _parse_overrides(changes), progress=meter)

    if is_verify:
        _print_verified(verified, output)
    elif into is not None:
        print_rebuilt(rebuilt, into, output)
    else:
        _print_what_if(answer, output)


def _identity(location: LakeLocation, settings: Settings) -> Identity:
    """Returns the identity of a lake's log: from its epochs, or else from Kafka."""
    from pipelines.errors import StartError
    from pipelines.replay.from_kafka import identity_from_kafka
    from pipelines.replay.rebuild import identity_of
    from storage.lake.lake import Lake

    try:
        return identity_of(Lake(location))
    except StartError:
        return identity_from_kafka(settings)


_FLAGS = {"true": True, "false": False}


def _parse_override(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    if not (key and value):
        raise click.BadParameter(f"{text!r}: KEY=VALUE is allowed, as in check_max=5")
    if value in _FLAGS:
        return key, _FLAGS[value]
    return key, int(value) if re.fullmatch("-?[0-9]{1,18}", value) else value


def _parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Returns the parameters of --what-if. Errors: click.BadParameter, also for one named twice."""
    changes = [_parse_override(text) for text in texts]
    names = [name for name, _ in changes]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name} is named twice")
    return dict(changes)


def register_with_spark_submit() -> None:
    """Starts a Spark session under spark-submit: a cluster gives up a driver that starts none."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pipelines.jvm.session import start_session

        start_session("txlake replay")


def _print_verified(verified: Verified, output: str) -> None:
    if output == "json":
        print_json(
            {
                "epochs": [verified.first_epoch, verified.last_epoch],
                "transactions": verified.transactions,
                "seconds": round(verified.seconds, 3),
                "is_equal": verified.is_equal,
                "compared": verified.compared.to_pylist(),
                "differences": verified.differences.to_pylist(),
            }
        )
    else:
        _show_verified(verified)

    if not verified.is_equal:
        raise click.exceptions.Exit(VIOLATED)


def _show_verified(verified: Verified) -> None:
    click.echo(
        f"epochs {verified.first_epoch} to {verified.last_epoch}: "
        f"{counted(verified.transactions, 'transaction', form=',')} in {verified.seconds:.1f} s"
    )
    _print_table(verified.compared)

    for row in verified.differences.slice(0, _SHOWN).to_pylist():
        print_line(_difference_text(row))

    count = sum(verified.compared["differences"].to_pylist())
    if count > _SHOWN:
        click.echo(f"and {count - _SHOWN} more; all that are named: -o json")
    click.echo("all rows are equal" if verified.is_equal else counted(count, "difference"))


def _difference_text(row: dict[str, Any]) -> str:
    topic = f" ({row['topic']})" if row["topic"] else ""
    epoch = "" if row["epoch"] is None else f", epoch {row['epoch']}"
    place = f"{row['table']}{topic} {row['row']}{epoch}"

    kinds = {
        "changed": f"{row['column']} is {row['there']}, replayed {row['replayed']}",
        "missing": f"missing, replayed {row['replayed']}",
        "extra": "is there, but not in the replay",
        "twice": "is there more than once",
    }
    return f"{place}: {kinds[row['kind']]}"


def print_rebuilt(rebuilt: Rebuilt, into: str, output: str) -> None:
    """Prints the result of a rebuild or a backfill."""
    if output == "json":
        print_json({"lake": into, **rebuilt.__dict__})
        return

    if rebuilt.floor_epoch:
        click.echo(f"{into}: what is left below the floor, epoch {rebuilt.floor_epoch}, copied")

    if rebuilt.epochs:
        click.echo(
            f"{into}: epochs {rebuilt.first_epoch} to {rebuilt.last_epoch} added, "
            f"{counted(rebuilt.transactions, 'transaction', form=',')} in {rebuilt.seconds:.1f} s"
        )
    elif not rebuilt.floor_epoch:
        click.echo(f"{into} had all of it already: nothing was added")


def _print_what_if(answer: WhatIf, output: str) -> None:
    if output == "json":
        print_json(
            {
                "epochs": [answer.first_epoch, answer.last_epoch],
                "parameters": dict(answer.parameters),
                "numbers": answer.numbers.to_pylist(),
                "groups": answer.groups.to_pylist(),
                "outcomes": _plain(answer.outcomes),
            }
        )
        return

    click.echo(f"epochs {answer.first_epoch} to {answer.last_epoch}")
    _print_table(answer.numbers)
    _print_table(answer.groups)

    click.echo(
        f"{counted(answer.outcomes.num_rows, 'half', 'halves')} would have ended differently"
    )
    if answer.outcomes.num_rows:
        _print_table(answer.outcomes.slice(0, _SHOWN))


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    return [
        {
            name: value.isoformat() if isinstance(value, dt.datetime) else value
            for name, value in row.items()
        }
        for row in rows.to_pylist()
    ]


def _print_table(rows: pa.Table) -> None:
    print_rows(rows.column_names, [list(row.values()) for row in _plain(rows)])

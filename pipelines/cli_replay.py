"""`txlake replay`: history run again. `txlake backfill`: a lake filled from the past."""

from __future__ import annotations

import datetime as dt
import json
import os
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli_lake import conf_option, output_option
from pipelines.cli_verify import VIOLATED, epochs_option
from pipelines.screen import print_json, print_rows
from storage.verify.run import EPOCH_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelines.replay import Rebuilt, Verified, WhatIf

_SHOWN = 20


@click.command()
@click.option("--lake", "path", required=True, help="The lake's folder.")
@click.option("--verify", "is_verify", is_flag=True, help="Compare every row; 3 on a difference.")
@click.option("--into", metavar="NEW_LAKE", help="Rebuild the lake there.")
@click.option("--what-if", "changes", metavar="KEY=VALUE", multiple=True,
              help="Decide under another [transaction] parameter; may be repeated.")  # fmt: skip
@epochs_option
@click.option(
    "--one-batch", is_flag=True, help="With --into: from half, op, schedule, admin alone."
)
@click.option(
    "--conf", type=click.Path(dir_okay=False), help="The job's settings, for a lake without epochs."
)
@output_option
def replay(
    path: str,
    is_verify: bool,
    into: str | None,
    changes: tuple[str, ...],
    epochs: tuple[int, int],
    one_batch: bool,
    conf: str | None,
    output: str,
) -> None:
    """Run a lake's history again: --verify it, rebuild it --into another, or ask --what-if."""
    if (is_verify, into is not None, bool(changes)).count(True) != 1:
        raise click.UsageError("name one: --verify, --into NEW_LAKE, or --what-if KEY=VALUE")
    if not is_verify and epochs[0] != 1:
        raise click.UsageError("only --verify can begin later than with epoch 1")
    if one_batch and (into is None or epochs != (1, EPOCH_MAX)):
        raise click.UsageError("--one-batch goes with --into, and takes all that was landed")
    if changes and epochs != (1, EPOCH_MAX):
        raise click.UsageError("--what-if is about the whole history: no --epochs")
    _show_spark_that_we_run()
    from pipelines.meter import Meter
    from pipelines.replay import rebuild, verify
    from pipelines.replay.other_parameters import imagine

    with Meter("replay", "records") as meter:
        if is_verify:
            verified = verify(path, *epochs, progress=meter)
        elif into is not None:
            identity = None
            if conf is not None:
                from pipelines.replay.from_kafka import identity_from_kafka
                from pipelines.settings import load

                identity = identity_from_kafka(load(conf))
            rebuilt = rebuild(path, into, one_batch, epochs[1], identity, meter)
        else:
            answer = imagine(path, dict(map(_change, changes)), progress=meter)
    if is_verify:
        _print_verified(verified, output)
    elif into is not None:
        _print_rebuilt(rebuilt, into, output)
    else:
        _print_what_if(answer, output)


def _change(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    if not (key and value):
        raise click.BadParameter(f"{text!r}: KEY=VALUE is allowed, as in check_max=5")
    return key, int(value) if value.lstrip("-").isdecimal() else value


def _show_spark_that_we_run() -> None:
    """Make a Spark session under spark-submit: a cluster takes a driver without one for dead."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pipelines.session import start_session

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
        click.echo(
            f"epochs {verified.first_epoch} to {verified.last_epoch}: {verified.transactions:,} "
            f"transactions in {verified.seconds:.1f} s"
        )
        _print_table(verified.compared)
        for row in verified.differences.slice(0, _SHOWN).to_pylist():
            click.echo(_told(row))
        count = sum(verified.compared["differences"].to_pylist())
        if count > _SHOWN:
            click.echo(f"and {count - _SHOWN} more; all that are named: -o json")
        click.echo("all rows are equal" if verified.is_equal else f"{count} differences")
    if not verified.is_equal:
        raise click.exceptions.Exit(VIOLATED)


def _told(row: dict[str, Any]) -> str:
    topic = f" ({row['topic']})" if row["topic"] else ""
    epoch = "" if row["epoch"] is None else f", epoch {row['epoch']}"
    place = f"{row['table']}{topic} {row['row']}{epoch}"
    if row["kind"] == "changed":
        return f"{place}: {row['column']} is {row['there']}, replayed {row['replayed']}"
    if row["kind"] == "missing":
        return f"{place}: missing, replayed {row['replayed']}"
    kinds = {"extra": "is there, and the replay has none", "twice": "is there once too often"}
    return f"{place}: {kinds[row['kind']]}"


def _print_rebuilt(rebuilt: Rebuilt, into: str, output: str) -> None:
    if output == "json":
        print_json({"lake": into, **rebuilt.__dict__})
    elif rebuilt.epochs == 0:
        click.echo(f"{into} had all of it already: nothing was added")
    else:
        click.echo(
            f"{into}: epochs {rebuilt.first_epoch} to {rebuilt.last_epoch} added, "
            f"{rebuilt.transactions:,} transactions in {rebuilt.seconds:.1f} s"
        )


def _print_what_if(answer: WhatIf, output: str) -> None:
    if output == "json":
        print_json(
            {
                "parameters": dict(answer.parameters),
                "numbers": answer.numbers.to_pylist(),
                "groups": answer.groups.to_pylist(),
                "outcomes": _plain(answer.outcomes),
            }
        )
        return
    _print_table(answer.numbers)
    _print_table(answer.groups)
    click.echo(f"{answer.outcomes.num_rows} halves would have ended otherwise")
    if answer.outcomes.num_rows:
        _print_table(answer.outcomes.slice(0, _SHOWN))


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    return [
        {k: v.isoformat() if isinstance(v, dt.datetime) else v for k, v in row.items()}
        for row in rows.to_pylist()
    ]


def _print_table(rows: pa.Table) -> None:
    print_rows(rows.column_names, [list(row.values()) for row in _plain(rows)])


def _instant(_: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        at = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r}: an instant as 2026-01-31T12:00:00Z is allowed", param=parameter
        ) from error
    if at.tzinfo is None:
        raise click.BadParameter(f"{text!r}: say its time zone, as in ...Z", param=parameter)
    return int(at.timestamp() * 1000)


def _offsets(
    _: click.Context, parameter: click.Parameter, text: str | None
) -> dict[tuple[str, int], int] | None:
    if text is None:
        return None
    try:
        topics = json.loads(text)
        return {(t, int(n)): int(offset) for t, found in topics.items()
                for n, offset in found.items()}  # fmt: skip
    except (ValueError, AttributeError, TypeError) as error:
        raise click.BadParameter(
            f'{text!r}: offsets as {{"TOPIC": {{"0": 17}}}} are allowed', param=parameter
        ) from error


@click.command()
@conf_option
@click.option("--from-time", callback=_instant, metavar="INSTANT", help="As 2026-01-31T12:00:00Z.")
@click.option("--to-time", callback=_instant, metavar="INSTANT")
@click.option("--from-offsets", callback=_offsets, metavar="JSON", help='{"TOPIC": {"0": 17}}')
@click.option("--to-offsets", callback=_offsets, metavar="JSON", help="Exclusive.")
@click.option("--half", help="Archived halves: a Delta table or Parquet, as the table half.")
@click.option("--op", help="Archived operations.")
@click.option("--schedule", help="Archived schedule records.")
@click.option("--admin", help="Archived operators' commands.")
@output_option
def backfill(
    conf: str,
    from_time: int | None,
    to_time: int | None,
    from_offsets: dict[tuple[str, int], int] | None,
    to_offsets: dict[tuple[str, int], int] | None,
    half: str | None,
    op: str | None,
    schedule: str | None,
    admin: str | None,
    output: str,
) -> None:
    """Fill the lake of the settings from the past: from Kafka, or from files of landed records."""
    paths = {"half": half, "op": op, "schedule": schedule, "admin": admin}
    files = {kind: path for kind, path in paths.items() if path is not None}
    bounds = (from_time, to_time, from_offsets, to_offsets)
    if files and any(bound is not None for bound in bounds):
        raise click.UsageError("files are taken whole: no --from or --to beside them")
    if files and (half is None or op is None):
        raise click.UsageError("files: --half and --op are both needed")
    for time, offsets, name in ((from_time, from_offsets, "from"), (to_time, to_offsets, "to")):
        if time is not None and offsets is not None:
            raise click.UsageError(f"name one: --{name}-time or --{name}-offsets")
    from pipelines.kafka_topics import KafkaTopics
    from pipelines.meter import Meter
    from pipelines.replay import from_kafka
    from pipelines.replay.archive import Archive
    from pipelines.replay.new_lake import fill
    from pipelines.settings import load

    settings = load(conf)
    with Meter("backfill", "records") as meter:
        if files:
            _show_spark_that_we_run()
            identity = from_kafka.identity_from_kafka(settings)
            done = fill(settings.lake.path, Archive.of_files(files), identity, meter)
        else:
            kafka = KafkaTopics(settings, settings.kafka.topics())
            if from_time is not None:
                from_offsets = kafka.offsets_at(kafka.places(), from_time)
            if to_time is not None:
                to_offsets = kafka.offsets_at(kafka.places(), to_time)
            done = from_kafka.backfill(settings, from_offsets, to_offsets, meter)
    _print_rebuilt(done, settings.lake.path, output)


COMMANDS: list[click.Command] = [replay, backfill]

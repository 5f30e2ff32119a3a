"""`txlake backfill`: a lake filled from the past."""

from __future__ import annotations

import json
from typing import Final

import click

from pipelines.amounts import parse_instant
from pipelines.cli.options import conf_option, output_option, refuse_if, settings_of
from pipelines.cli.replay import print_rebuilt, register_with_spark_submit
from pipelines.output import instant, now_ms

_SHOWN_CHARACTERS_MAX: Final = 80


def _instant(_: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        at = parse_instant(text)
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
        return {
            (topic, int(partition)): int(offset)
            for topic, offsets in topics.items()
            for partition, offset in offsets.items()
        }
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        shown = text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."
        raise click.BadParameter(
            f'{shown!r}: offsets as {{"TOPIC": {{"0": 17}}}} are allowed', param=parameter
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
    """Fill a lake from the past, from Kafka or from files.

    The lake is that of the settings; the files are of landed records.
    """
    paths = {"half": half, "op": op, "schedule": schedule, "admin": admin}
    files = {kind: path for kind, path in paths.items() if path is not None}
    bounds = (from_time, to_time, from_offsets, to_offsets)
    refuse_if(
        {
            "files are taken whole: no --from or --to beside them": bool(files)
            and any(bound is not None for bound in bounds),
            "files: --half and --op are both needed": bool(files) and (half is None or op is None),
            "name one: --from-time or --from-offsets": from_time is not None
            and from_offsets is not None,
            "name one: --to-time or --to-offsets": to_time is not None and to_offsets is not None,
        }
    )

    _require_past(from_time, to_time)

    from pipelines.kafka_client.admin import KafkaAdmin
    from pipelines.progress import progress_bar
    from pipelines.replay import from_kafka
    from pipelines.replay.archive import Archive
    from pipelines.replay.from_kafka import offsets_before, offsets_since
    from pipelines.replay.rebuild import fill

    settings = settings_of(conf)
    with progress_bar("backfill", "records") as meter:
        if files:
            register_with_spark_submit()
            identity = from_kafka.identity_from_kafka(settings)
            result = fill(settings.lake.location(), Archive.of_files(files), identity, meter)
        else:
            kafka = KafkaAdmin(settings, settings.kafka.topics())
            if from_time is not None:
                from_offsets = offsets_since(kafka, from_time)
            if to_time is not None:
                to_offsets = offsets_before(kafka, to_time)
            result = from_kafka.backfill(settings, from_offsets, to_offsets, meter)
    print_rebuilt(result, settings.lake.path, output)


def _require_past(from_time: int | None, to_time: int | None) -> None:
    """Refuses a range of time that can have no record; ms."""
    if from_time is None:
        return

    now = now_ms()

    if from_time > now:
        raise click.UsageError(
            f"--from-time {instant(from_time)} is in the future: it is {instant(now)}, and Kafka "
            "has no record of then"
        )

    if to_time is not None and to_time <= from_time:
        raise click.UsageError(
            f"--to-time {instant(to_time)} is not after --from-time {instant(from_time)}: nothing "
            "is between them"
        )

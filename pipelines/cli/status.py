"""`txlake status`, `txlake top`: the health of a lake on one screen."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli.option_types import Seconds
from pipelines.cli.options import lake_options, open_lake, rows_option, settings_of
from pipelines.output import JSON, TABLE, now_ms, print_json, print_records

if TYPE_CHECKING:
    from pipelines.health.facts import Facts, KafkaFacts, LakeFacts
    from pipelines.settings import Settings
    from storage.lake.lake import Lake

    Query = Callable[[], KafkaFacts]

WRONG = 3  # the exit code of --check
_PROBLEM = ("name", "words", "command")


@click.command()
@lake_options
@rows_option
@click.option("--check", "is_check", is_flag=True, help="Exit with 3 if there are problems.")
def status(lake_path: str | None, conf: str | None, output: str, is_check: bool) -> None:
    """Show whether all is well.

    If not: what is wrong, since when, and which command helps. With --conf Kafka is asked, too: how
    far behind the job is, and which driver runs. `-o jsonl` and `-o csv` print the problems alone;
    JSON has all. Exit code 0 in either case, unless --check asks for another.
    """
    from pipelines.health.problems import problems
    from pipelines.health.report import as_json, lines

    facts = collect_facts(lake_path, conf)
    wrong = problems(facts)

    if output == JSON:
        print_json(as_json(facts))
    elif output == TABLE:
        for line in lines(facts):
            click.echo(line)
    else:
        rows: list[dict[str, Any]] = [vars(problem) for problem in wrong]
        print_records(_PROBLEM, rows, output, facts.lake.now_ms)

    if is_check and wrong:
        raise click.exceptions.Exit(WRONG)


@click.command()
@lake_options
@click.option(
    "--every-s",
    type=Seconds(0.2),
    default=2.0,
    show_default=True,
    help="Between two looks.",
)
@click.option("--times", type=click.IntRange(1), help="End after this many looks.")
def top(lake_path: str | None, conf: str | None, every_s: float, times: int | None) -> None:
    """Show `txlake status` again and again, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from pipelines.health.report import lines

    console = Console()
    looks = 0

    # Without a terminal each look is printed below the one before.
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while times is None or looks < times:
            if looks:
                time.sleep(every_s)

            looks += 1
            text = "\n".join(lines(collect_facts(lake_path, conf)))
            if console.is_terminal:
                live.update(Text(text), refresh=True)
            else:
                click.echo(text + "\n")


def collect_facts(lake_path: str | None, conf: str | None) -> Facts:
    """Returns the facts of the lake in the options, and of its Kafka.

    Errors: as `open_lake`. A Kafka that does not answer is a fact.
    """
    settings = None if conf is None else settings_of(conf, lake_path)
    return facts_of(open_lake(lake_path, conf), settings)


def facts_of(
    lake: Lake,
    settings: Settings | None,
    ask: Callable[[Query], KafkaFacts] = lambda query: query(),
) -> Facts:
    """Returns the facts of a lake, and of the Kafka in its settings.

    Input: `ask` calls the function that queries Kafka, and may raise JobError instead.
    """
    from pipelines.health.facts import Facts, lake_facts

    of_lake = lake_facts(lake, now_ms())
    if settings is None:
        return Facts(of_lake)

    from pipelines.errors import JobError, NotAnsweredYetError

    facts = Facts(
        of_lake,
        publishers=None if settings.publish else (),
        retention_ms=settings.lake.retention_ms,
        limits=settings.health,
    )

    try:
        kafka = ask(functools.partial(_kafka_facts, settings, of_lake))
    except JobError as error:
        is_away = not isinstance(error, NotAnsweredYetError)
        return replace(facts, kafka_error=str(error), is_kafka_away=is_away)

    return replace(facts, **vars(kafka))


def _kafka_facts(settings: Settings, lake: LakeFacts) -> KafkaFacts:
    """Queries Kafka: why a start is refused, how far behind the job is, drivers, check topics.

    Publishers, too, whose destination can be another Kafka: one that is away is a fact.
    Errors: KafkaAwayError; StartError as `DriverGroup.describe`; LakeError.
    """
    from pipelines.errors import LostInputError
    from pipelines.health.facts import Drivers, KafkaFacts
    from pipelines.health.kafka import groups_without_topic, start_error, topic_lags
    from pipelines.job.election import DriverGroup
    from pipelines.publish.status import find_publishers

    error_text = start_error(settings, lake.plan)
    try:
        behind = topic_lags(settings, lake.plan)
    except LostInputError:  # another Kafka, as `error_text` says: its offsets show no lag
        behind = None

    waiting = [group["producer_group"] for group in lake.groups if group["pending"]]
    drivers = DriverGroup(settings.kafka, settings.lake.location().path).describe()

    return KafkaFacts(
        start_error=error_text,
        lags=behind,
        drivers=Drivers(drivers.active, drivers.others),
        groups_without_topic=groups_without_topic(settings, waiting),
        publishers=find_publishers(settings),
    )

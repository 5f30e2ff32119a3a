"""The shared parts of the operator's commands: options, the lake that they name, printed lists."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from pipelines.cli.option_types import NamedPath
from pipelines.output import FORMATS, TABLE, Row, now_ms, print_records

if TYPE_CHECKING:
    from pipelines.settings import Settings
    from storage.files.location import LakeLocation
    from storage.lake.lake import Lake

Command = Callable[..., Any]

CONF_VARIABLE: Final = "TXLAKE_CONF"
LAKE_VARIABLE: Final = "TXLAKE_LAKE"


def stack_options(*options: Command) -> Command:
    """Returns several options as one decorator; help shows them in this order."""

    def decorate(command: Command) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def options_as(name: str, kind: type[Any], *options: Command) -> Command:
    """Returns several options as one decorator: a command gets their values as one argument.

    Input: the argument's name, and its dataclass, which has a field for each option.
    """

    def decorate(command: Command) -> Any:
        @wraps(command)
        def run(**values: Any) -> None:
            option_values = {field.name: values.pop(field.name) for field in fields(kind)}

            command(**{name: kind(**option_values)}, **values)

        return stack_options(*options)(run)

    return decorate


class _LakeOption(click.Option):
    """An option that names a lake, or the settings of its job.

    Without it its environment variable counts, unless the lake is named otherwise: by another
    option on the command line, or by TXLAKE_CONF, which goes before TXLAKE_LAKE.
    `others`: the other parameters of the command that name a lake.
    """

    def __init__(self, *args: Any, others: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._others = others

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        """Returns the value and its source."""
        value, source = super().consume_value(ctx, opts)
        if source is not ParameterSource.ENVIRONMENT:
            return value, source

        has_other_option = any(
            isinstance(opts.get(name), str | tuple | list) for name in self._others
        )
        has_conf_variable = self.envvar == LAKE_VARIABLE and bool(os.environ.get(CONF_VARIABLE))

        if has_other_option or has_conf_variable:
            return None, ParameterSource.DEFAULT
        return value, source


def conf_of(text: str, *, others: tuple[str, ...] = ("lake_path",), **more: Any) -> Command:
    """Returns the option `--conf` with this help.

    Input: `others`: the other parameters of the command that name a lake; `more`: arguments of
    `click.option`.
    """
    more.setdefault("type", NamedPath(dir_okay=False))
    return click.option(
        "--conf",
        cls=_LakeOption,
        others=others,
        envvar=CONF_VARIABLE,
        show_envvar=True,
        help=text,
        **more,
    )


def refuse_if(conditions: Mapping[str, bool]) -> None:
    """Raises click's usage error with the first sentence whose condition holds."""
    for sentence, holds in conditions.items():
        if holds:
            raise click.UsageError(sentence)


# For a command that prints one thing, as text or as JSON.
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or for programs.",
)
# For a command that prints rows, as a table or in a format for programs.
rows_option = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    default=TABLE,
    show_default=True,
    help="For people, or for programs.",
)
# For a command that prints the first rows of a list.
limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000_000),
    default=100,
    show_default=True,
    help="Rows to show.",
)
# For a command that needs the lake and Kafka.
conf_option = conf_of("The job's settings, as conf/local.toml.", required=True)
# For a command that reads a lake: it is named directly, or by the job's settings.
lake_option = click.option(
    "--lake",
    "lake_path",
    cls=_LakeOption,
    others=("conf",),
    envvar=LAKE_VARIABLE,
    show_envvar=True,
    help="Where the lake is: a folder, or s3://...",
)
lake_options = stack_options(lake_option, conf_of("The job's settings: they name the lake."))
# For a command that lists messages.
list_options = stack_options(
    click.option("--topic", help="Only messages for this topic."),
    click.option("--group", help="Only messages of this producer group."),
    limit_option,
    lake_options,
    rows_option,
)


def settings_of(conf: str, lake_path: str | None = None) -> Settings:
    """Returns the job's settings: imported late, as help needs none.

    Input: with `lake_path` they are those of this lake, in the same store.
    Errors: SettingsError.
    """
    from pipelines.settings import load

    settings = load(conf)
    if lake_path is None:
        return settings
    return replace(settings, lake=replace(settings.lake, path=lake_path))


def location_from_options(lake_path: str | None, conf: str | None) -> LakeLocation:
    """Returns the location of the lake that the options name.

    If both options are given, `--lake` has the path, and `--conf` the access to its object store.
    Errors: LakeError, SettingsError; click's usage error without an option.
    """
    from storage.files.location import lake_location

    if lake_path is None and conf is None:
        raise click.UsageError(
            f"name the lake: --lake PATH, or --conf FILE; the variables {LAKE_VARIABLE} and "
            f"{CONF_VARIABLE} do so, too"
        )

    if conf is None:
        return lake_location(str(lake_path))

    return settings_of(conf, lake_path).lake.location()


def open_lake(lake_path: str | None, conf: str | None) -> Lake:
    """Returns the lake of the options, intact. Errors: as `location_from_options`."""
    return open_intact_lake(location_from_options(lake_path, conf))


def open_intact_lake(location: LakeLocation) -> Lake:
    """Returns a lake after checking that its tables hold all committed rows.

    The tables of topics are not checked.
    Errors: LakeError.
    """
    from storage.lake.integrity import require_usable
    from storage.lake.lake import Lake

    lake = Lake(location)
    require_usable(lake)
    return lake


def empty_text(sentence: str, **filters: object) -> str:
    """Returns the text of an empty list, with its filters: one may be a typing error."""
    texts = [f"{name} {value!r}" for name, value in filters.items() if value is not None]
    return f"{sentence}; asked for {', '.join(texts)} only" if texts else sentence


def print_list(
    columns: Sequence[str],
    rows: Sequence[Row],
    count: int,
    output: str,
    nothing: str,
    hidden_columns: Sequence[str] = (),
) -> None:
    """Prints the rows of a list, and how many more there are.

    Input: `count`: the rows of the whole list; `nothing`: the sentence instead of a table without
    rows; `hidden_columns`: the columns that a table leaves out, and formats for programs have.
    """
    if output == TABLE and not rows:
        click.echo(nothing)
        return

    if output == TABLE:
        columns = [name for name in columns if name not in hidden_columns]

    print_records(columns, rows, output, now_ms())
    if count > len(rows):
        text = f"{count - len(rows)} more: --limit shows more, and filters choose"
        click.echo(text, err=output != TABLE)

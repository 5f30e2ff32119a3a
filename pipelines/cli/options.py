"""The shared parts of the operator's commands: options, the lake that they name, printed lists."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

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
            options_value = kind(**{field.name: values.pop(field.name) for field in fields(kind)})

            command(**{name: options_value}, **values)

        return stack_options(*options)(run)

    return decorate


class _Named(click.Option):
    """An option that names a lake or its job; a variable stands for it if no option names one.

    `others`: other parameters of the command that name a lake. The command line goes before all
    variables, and TXLAKE_CONF before TXLAKE_LAKE: the lake of a command is named once.
    """

    def __init__(self, *args: Any, others: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._others = others

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        """Returns the value and its source."""
        value, source = super().consume_value(ctx, opts)
        is_named = any(isinstance(opts.get(name), str | tuple | list) for name in self._others)
        gives_way = self.envvar == LAKE_VARIABLE and bool(os.environ.get(CONF_VARIABLE))

        if source is ParameterSource.ENVIRONMENT and (is_named or gives_way):
            return None, ParameterSource.DEFAULT
        return value, source


def conf_of(text: str, *, others: tuple[str, ...] = ("lake_path",), **more: Any) -> Command:
    """Returns the option `--conf`. Input: its help; the other parameters that name a lake."""
    more.setdefault("type", click.Path(dir_okay=False))
    return click.option(
        "--conf",
        cls=_Named,
        others=others,
        envvar=CONF_VARIABLE,
        show_envvar=True,
        help=text,
        **more,
    )


def refuse_if(wrong: Mapping[str, bool]) -> None:
    """Raises click's usage error with the first sentence whose condition holds."""
    for sentence, holds in wrong.items():
        if holds:
            raise click.UsageError(sentence)


# A command prints JSON.
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or for programs.",
)
# A command prints its rows for people or for programs.
rows_option = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    default=TABLE,
    show_default=True,
    help="For people, or for programs.",
)
# A command limits its list.
limit_option = click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows to show."
)
# A command that writes gets the job's settings: lake and Kafka.
conf_option = conf_of("The job's settings, as conf/local.toml.", required=True)
# A command gets its lake, directly or by the job's settings.
lake_option = click.option(
    "--lake",
    "lake_path",
    cls=_Named,
    others=("conf",),
    envvar=LAKE_VARIABLE,
    show_envvar=True,
    help="Where the lake is: a folder, or s3://...",
)
lake_options = stack_options(lake_option, conf_of("The job's settings: they name the lake."))
# A command filters the messages that it lists.
list_options = stack_options(
    click.option("--topic", help="Only messages for this topic."),
    click.option("--group", help="Only messages of this producer group."),
    limit_option,
    lake_options,
    rows_option,
)


def settings_of(conf: str) -> Settings:
    """Returns the job's settings: imported late, as help needs none. Errors: SettingsError."""
    from pipelines.settings import load

    return load(conf)


def location_from_options(lake_path: str | None, conf: str | None) -> LakeLocation:
    """Returns the location in the options; if both are given, `--conf` has the store's access.

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

    lake = settings_of(conf).lake
    return lake_location(lake.path if lake_path is None else lake_path, lake.store)


def open_lake(lake_path: str | None, conf: str | None) -> Lake:
    """Returns the lake of the options, intact. Errors: as `location_from_options`."""
    return open_intact_lake(location_from_options(lake_path, conf))


def open_intact_lake(location: LakeLocation) -> Lake:
    """Returns a lake whose own tables hold all committed rows.

    Errors: LakeError.
    """
    from storage.lake.integrity import require_readable
    from storage.lake.lake import Lake

    lake = Lake(location)
    lake.lake_id()
    require_readable(lake)
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
    """Prints the first of `count` rows; a table without rows is the sentence `nothing`.

    Input: `hidden_columns`: columns that a table leaves out.
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

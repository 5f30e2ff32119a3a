"""`txlake console`: the web page of a lake."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Final

import click

from pipelines.cli.option_types import NamedPath
from pipelines.cli.options import lake_options, location_from_options, open_intact_lake, settings_of

TOKEN_VARIABLE: Final = "TXLAKE_CONSOLE_TOKEN"  # noqa: S105 - its name
_TOKEN_CHARACTERS: Final = 20


@click.command()
@lake_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8470, show_default=True, help="0: any."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Another host name under which browsers reach it: a proxy's, or this machine's.",
)
@click.option(
    "--allow-writes",
    is_flag=True,
    help="Let holders of the token end, resume and set things; needs --conf.",
)
@click.option(
    "--token-file",
    type=NamedPath(dir_okay=False),
    help=f"A file with the token.  [default: the variable {TOKEN_VARIABLE}]",
)
@click.option(
    "--bodies/--no-bodies",
    "shows_bodies",
    default=None,
    help="Whether pages show what is in messages.  [default: only on loopback]",
)
def console(
    lake_path: str | None,
    conf: str | None,
    host: str,
    port: int,
    names: tuple[str, ...],
    allow_writes: bool,
    token_file: str | None,
    shows_bodies: bool | None,
) -> None:
    """Serve a web page of the lake, until Ctrl-C or SIGTERM.

    On loopback everybody may read. Anywhere else, and to write, one has to log in with the token.
    """
    location = location_from_options(lake_path, conf)
    token = _token(token_file)
    if allow_writes and (conf is None or token is None):
        raise click.UsageError(
            f"--allow-writes needs --conf and a token: --token-file FILE, or {TOKEN_VARIABLE}"
        )

    from pipelines.cli.status import facts_of
    from pipelines.console.context import ConsoleContext
    from pipelines.console.kafka_cache import QueryCache
    from pipelines.console.page_lakes import PageLakes
    from pipelines.console.serve import LOOPBACK, is_loopback, listen, serve
    from pipelines.settings import warn_of_open_secrets

    is_local = is_loopback(host)
    if not is_local and token is None:
        raise click.UsageError(
            f"--host {host} is not loopback, so it needs a token: --token-file FILE, or "
            f"{TOKEN_VARIABLE}"
        )
    settings = None if conf is None else settings_of(conf, lake_path)

    if conf is not None:
        warn_of_open_secrets(conf)
    open_intact_lake(location)
    queries = QueryCache()
    load_facts = partial(facts_of, settings=settings, ask=partial(queries.ask, "status"))
    hosts = frozenset({host.lower(), *(LOOPBACK if is_local else ()), *map(str.lower, names)})

    with listen(host, port) as listener:
        site = ConsoleContext(
            path=location.path,
            open_lake=PageLakes(location).open,
            load_facts=load_facts,
            settings=settings,
            token=token,
            allow_writes=allow_writes,
            reads_need_token=not is_local,
            hosts=hosts,
            port=listener.getsockname()[1],
            kafka=queries,
            shows_bodies=is_local if shows_bodies is None else shows_bodies,
        )
        shown = f"[{host}]" if ":" in host else host
        serve(site, listener, lambda: click.echo(f"http://{shown}:{site.port}/"))
    click.echo("stopped")


def _token(path: str | None) -> str | None:
    """Returns the token, if there is one; one that is easy to guess is wrong usage."""
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE)
        place = TOKEN_VARIABLE
    else:
        from pipelines.settings.secrets import warn_if_others_can_read

        try:
            token = Path(path).read_text("utf-8").strip()
            place = f"--token-file {path}"
            warn_if_others_can_read(path, "--token-file")
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"--token-file {path} cannot be read: {error}") from error

    if token is not None and len(token) < _TOKEN_CHARACTERS:
        raise click.UsageError(
            f"the token of {place} has {len(token)} characters, {_TOKEN_CHARACTERS} are needed: "
            "`openssl rand -hex 16` makes one"
        )

    return token

"""Commands as documents and files have them: are they the product's, with options that it has."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from pipelines.cli.main import main


def require_command(words: str | Sequence[str], *, is_whole: bool = True) -> None:
    """Parses what follows `txlake`, and runs nothing.

    Input: `is_whole`: nothing that the command requires can be left out.
    Errors: AssertionError with click's sentence.
    """
    arguments = shlex.split(words, comments=True) if isinstance(words, str) else list(words)
    context = click.Context(main, info_name="txlake")
    command: click.Command = main

    try:
        while isinstance(command, click.Group) and arguments and arguments[0][0] != "-":
            name, found, arguments = command.resolve_command(context, arguments)
            assert found is not None
            command = found
            context = click.Context(command, parent=context, info_name=name)

        if isinstance(command, click.Group) and not arguments:
            return  # a group that is named
        command.make_context(context.info_name, arguments, parent=context.parent)
    except click.exceptions.Exit:
        return  # --help, --version
    except click.MissingParameter:
        assert not is_whole, f"{words!r} leaves out what the command requires"
    except click.ClickException as error:
        raise AssertionError(f"{words!r}: {error.format_message()}") from error

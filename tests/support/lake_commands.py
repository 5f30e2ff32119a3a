"""Every command that opens a lake, with what it needs to get that far."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

import click
from click.testing import CliRunner

from pipelines.cli.main import main
from pipelines.settings import load
from pipelines.settings.values import LakeSettings
from txlake import Consumer, TxlakeError

_WHY = ("--reason", "ticket", "--actor", "ada", "--dry-run")
# The command | what follows it.
OPENING: dict[str, tuple[str, ...]] = {
    "backup": ("/proc/new",),
    "check resend": ("half:0-0", *_WHY),
    "conflicts list": (),
    "console": ("--port", "0"),
    "consumer dead drop": ("points", "--reason", "why"),
    "consumer dead list": (),
    "consumer dead resume": ("points",),
    "consumer list": (),
    "consumer reset": ("points", "--topic", "orders", "--to", "earliest", "--yes"),
    "consumer retries": (),
    "dead list": (),
    "dead resume": ("half:0-0", *_WHY),
    "groups": (),
    "lag": (),
    "losses accept": _WHY,
    "losses list": (),
    "maintain": ("--dry-run",),
    "publish adopt": ("--position", "earliest", *_WHY),
    "publish skip": ("--topic", "orders", "--queue", "0", "--offset", "0", *_WHY),
    "publish status": (),
    "replay": ("--verify",),
    "schedule cancel": ("half:0-0", *_WHY),
    "schedule list": (),
    "sql": ("SELECT count(*) FROM half",),
    "status": (),
    "top": ("--times", "1"),
    "topic alter": ("orders", "--retention", "30d", *_WHY),
    "topic create": ("bills", "--queues", "4", *_WHY),
    "topic describe": ("orders",),
    "topic list": (),
    "topic read": ("orders",),
    "tx commit": ("0-0", *_WHY),
    "tx explain": ("0-0",),
    "tx list": (),
    "tx rollback": ("0-0", *_WHY),
    "verify": (),
}
# These take a job's settings and open no lake, or reach for Kafka first.
NOT_OPENING = {
    "acl print",
    "backfill",
    "check topic",
    "config show",
    "config validate",
    "doctor",
    "run",
    "spark-submit",
}
SDK = "Consumer"
# What else a command can do with a lake.
OTHERS = (
    ("maintain", "--offline"),
    ("replay", "--what-if", "check_max=1"),
    ("replay", "--into", "/proc/new"),
    ("tx", "list", "--pending"),
    ("tx", "explain", "--keys", "order-1"),
)


def opening_commands() -> list[tuple[str, ...]]:
    """Returns the words of every command that opens a lake, but the settings that name it."""
    return [(*name.split(), *words) for name, words in OPENING.items()] + list(OTHERS)


def commands_with_settings() -> set[str]:
    """Returns the name of every command that is given a lake or a job's settings."""
    return {
        name
        for name, command in _commands(main, click.Context(main), "")
        if any("--conf" in option.opts for option in command.params)
    }


def _commands(
    group: click.Group, context: click.Context, before: str
) -> Iterator[tuple[str, click.Command]]:
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, context, f"{before}{word} ")
        else:
            yield before + word, command


def answers(conf: str, commands: Sequence[Sequence[str]]) -> dict[str, tuple[int, str]]:
    """Returns the exit code and the text of each command; 70 and the error for a traceback.

    The SDK's consumer is one more of them.
    """
    found = {}
    for words in commands:
        done = CliRunner().invoke(main, [*words, "--conf", conf])
        text, code = done.output, done.exit_code
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            text = f"{type(done.exception).__name__}: {done.exception}"
            code = 70
        found[" ".join(words)] = code, text
    found[SDK] = _answer_of_the_sdk(load(conf).lake)
    return found


def _answer_of_the_sdk(lake: LakeSettings) -> tuple[int, str]:
    try:
        with Consumer(lake.path, "points", ["orders"], storage_options=lake.store) as consumer:
            consumer.poll(0.0)
    except TxlakeError as error:
        return 1, f"{error}\n"
    except Exception as error:
        return 70, f"{type(error).__name__}: {error}"
    return 0, ""


if __name__ == "__main__":  # of a user who may not do what the caller may
    print(json.dumps(answers(sys.argv[1], json.loads(sys.argv[2]))))

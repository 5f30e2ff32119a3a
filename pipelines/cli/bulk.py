"""Commands about many things at once: filters, at most so many, a dry run unless --yes is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli.lists import now_ms
from pipelines.cli.options import Command
from pipelines.cli.spans import Span
from pipelines.cli.writing import Writing
from pipelines.errors import OperatorError
from pipelines.screen import print_json, print_rows

if TYPE_CHECKING:
    from pipelines.health.transactions import Filters
    from pipelines.operate.trial import Trial
    from storage.lake.lake import Lake
    from txlake.protocol import Target

Look = Callable[["Lake", "Filters"], Sequence["Target"]]
_FILTERS = ("group", "topic", "keys", "older_than")


class Bulk:
    """The options of a command about many things; `is_asked`: it has a filter. Units: ms."""

    def __init__(
        self, *, group: str | None, topic: str | None, keys: str | None, older_than: int | None,
        max: int | None, yes: bool,
    ) -> None:  # fmt: skip
        self._group, self._topic, self._keys, self._older_than = group, topic, keys, older_than
        self._max, self._yes = max, yes
        self.is_asked = any(value is not None for value in (group, topic, keys, older_than))

    def check(self, target: str | None) -> None:
        """Refuses anything but one target, or filters with --max."""
        if self.is_asked == (target is not None):
            raise click.UsageError(
                "name one target, or choose several by --group, --topic, --keys, --older-than"
            )
        if self.is_asked and self._max is None:
            raise click.UsageError("--max is needed: at most so many are written")
        if not self.is_asked and (self._max is not None or self._yes):
            raise click.UsageError("--max and --yes go with filters")

    def command(self, writing: Writing, name: str, text: str | None, look: Look) -> None:
        """Try a command about one target, or about all that `look` finds; write it.

        Errors: as `write`.
        """
        self.check(text)
        target = None if text is None else writing.target(name, text)
        self.write(writing, target, look, writing.trial_of(name))

    def write(
        self, writing: Writing, target: Target | None, look: Look, attempt: Callable[[Any], Trial]
    ) -> None:
        """Try a record about one target, or about all that fit, the oldest first; write it.

        Several are written if --yes is said.
        Input: `look` returns the targets that fit; `attempt` tries one.
        Errors: OperatorError when a result was waited for and is a refusal, or did not come.
        """
        from pipelines.health.transactions import Filters

        if target is not None:
            writing.write(attempt(target))
            return
        until = None if self._older_than is None else now_ms() - self._older_than
        filters = Filters(self._group, self._topic, self._keys, None, until)
        targets = look(writing.lake, filters)
        chosen = targets[: self._max]
        is_written = self._yes and not writing.dry_run
        trials = [attempt(one) for one in chosen]
        rows: list[dict[str, Any]] = []
        for one, trial in zip(chosen, trials, strict=True):
            offset = writing.send(trial) if is_written else None
            rows.append({"target": str(one), "expected": trial.expected, "offset": offset})
        for row, trial in zip(rows, trials, strict=True) if is_written else ():
            row["result"] = writing.result(trial, row["offset"])
        _print(rows, writing.output)
        click.echo(_summary(len(chosen), len(targets) - len(chosen), is_written), err=True)
        if is_written and writing.wait_s > 0:
            self._require(rows)

    @staticmethod
    def _require(rows: Sequence[dict[str, Any]]) -> None:
        from pipelines.explain.words import CONFLICTS, REFUSALS

        missed = [row for row in rows if row["result"] is None]
        refused = [row for row in rows if row["result"] in REFUSALS or row["result"] in CONFLICTS]
        if missed or refused:
            raise OperatorError(
                f"{len(refused)} changed nothing, of {len(missed)} there is no result yet"
            )


def bulk_options(command: Command) -> Command:
    """Let a command be about many things: its options come as one Bulk."""

    @wraps(command)
    def run(**options: Any) -> None:
        names = (*_FILTERS, "max", "yes")
        command(bulk=Bulk(**{name: options.pop(name) for name in names}), **options)

    decorated: Command = run
    for option in (
        click.option("--yes", is_flag=True, help="With filters: write. Else it only says what."),
        click.option("--max", type=click.IntRange(1), help="With filters: at most so many."),
        click.option("--older-than", type=Span(), help="Several: those that are older: 10m, 2h."),
        click.option("--keys", help="Several: those with these KEYS."),
        click.option("--topic", help="Several: those for this topic."),
        click.option("--group", help="Several: those of this producer group."),
    ):
        decorated = option(decorated)
    return decorated


def _print(rows: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        print_json(rows)
    elif rows:
        print_rows(list(rows[0]), [list(row.values()) for row in rows])


def _summary(count: int, more: int, is_written: bool) -> str:
    text = f"{count} written" if is_written else f"{count} would be written; --yes writes them"
    return f"{text}; {more} more fit, beyond --max" if more else text

"""Commands that write a record: their options, and their output.

`operate.preview` finds a record's target and the rules' result for it; `operate.records` writes it
and waits for the job's result.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli.option_types import Seconds
from pipelines.cli.options import (
    conf_option,
    open_intact_lake,
    options_as,
    output_option,
    refuse_if,
    settings_of,
)
from pipelines.errors import OperatorError
from pipelines.output import print_json, print_line

if TYPE_CHECKING:
    from pipelines.operate.preview import Preview
    from pipelines.settings import Settings
    from storage.lake.lake import Lake
    from txlake.protocol import Target


@dataclass(frozen=True)
class WriteOptions:
    """The options of a command that writes: settings, actor, reason, dry run, wait. Units: s."""

    conf: str
    actor: str | None
    reason: str
    dry_run: bool
    wait_s: float
    output: str

    @cached_property
    def settings(self) -> Settings:
        """Returns the job's settings."""
        return settings_of(self.conf)

    @cached_property
    def lake(self) -> Lake:
        """Returns the lake of the settings."""
        return open_intact_lake(self.settings.lake.location())

    @cached_property
    def actor_and_reason(self) -> tuple[str, str]:
        """Returns actor and reason as stored; an empty one is wrong usage."""
        return actor_and_reason(self.actor, self.reason)

    def target(self, name: str, text: str) -> Target:
        """Returns the target of a command; a text that is no target of it is wrong usage.

        Errors: OperatorError if a transaction id names nothing, or several transactions.
        """
        from pipelines.operate.named import named_target

        try:
            return named_target(self.lake, name, text)
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    def previews_of(
        self, name: str
    ) -> Callable[[Sequence[Target | None]], list[Preview | OperatorError]]:
        """Returns a function that previews a command on some targets."""
        from pipelines.operate.preview import preview_commands

        lake = self.lake
        actor, reason = self.actor_and_reason
        return lambda targets: preview_commands(lake, name, targets, actor, reason)

    def command(self, name: str, text: str | None) -> None:
        """Previews a command on its target, if it has one, and writes it."""
        self.commands([(name, text)])

    def commands(self, commands: Iterable[tuple[str, str | None]]) -> None:
        """Previews and writes commands, each a name and a target, one after another.

        As JSON a single record is an object, and several are one list, also if one is refused.
        """
        from pipelines.operate.preview import all_of

        def previews() -> Iterator[Preview]:
            for name, text in commands:
                target = None if text is None else self.target(name, text)
                yield all_of(self.previews_of(name)([target]))[0]

        self.write(previews())

    def write(self, previews: Iterable[Preview]) -> None:
        """Writes records one after another, each with its result, or prints them.

        Errors: OperatorError if a result was waited for and is a refusal, or did not come.
        """
        documents: list[dict[str, Any]] = []
        try:
            for preview in previews:
                self._write(preview, documents)
        finally:
            if documents:
                print_json(documents[0] if len(documents) == 1 else documents)

    def _write(self, preview: Preview, documents: list[dict[str, Any]]) -> None:
        """Writes a record and waits for its result, or prints the record.

        Input: `documents`: gets the record where the output is JSON.
        Errors: OperatorError if a result was waited for and is a refusal, or did not come.
        """
        from pipelines.explain.rule_texts import CONFLICTS, REFUSALS

        offset = result = None
        if not self.dry_run:
            offset = self.send(preview)
            result = self.result(preview, offset, time.monotonic() + self.wait_s)

        self._print(preview, offset, result, documents)

        if self.dry_run or self.wait_s <= 0:
            return

        if result is None:
            raise OperatorError(
                f"no result within {self.wait_s:g} s: the record is written; is the job running?"
            )
        if result in REFUSALS or result in CONFLICTS:
            raise OperatorError(f"it changed nothing: {result}")

    def send(self, preview: Preview) -> int:
        """Writes a previewed record, signed if a key is known. Returns its offset."""
        from pipelines.operate import records

        return records.write(
            self.settings.kafka, preview.record, preview.cluster_id, self.settings.security
        )

    def result(self, preview: Preview, offset: int, deadline: float) -> str | None:
        """Returns the job's result of a written record; None if it did not come in time.

        Input: `deadline`: monotonic s; a result that is there is returned behind it, too.
        """
        from pipelines.operate import records

        if self.wait_s <= 0:
            return None
        return records.wait_for_result(self.lake, preview.record, offset, deadline)

    def _print(
        self,
        preview: Preview,
        offset: int | None,
        result: str | None,
        documents: list[dict[str, Any]],
    ) -> None:
        record = preview.record
        topic = self.settings.kafka.topics()[record.kind]
        headers = record.headers_as_text()
        body = None if record.value is None else record.value.decode()

        if self.output == "json":
            documents.append(
                {
                    "topic": topic,
                    "partition": record.partition,
                    "offset": offset,
                    "body": body,
                    "headers": headers,
                    "expected": preview.expected,
                    "epoch": preview.epoch,
                    "result": result,
                }
            )
            return

        written = f"would write to {topic} partition {record.partition}"
        if offset is not None:
            written = f"written to {topic} partition {record.partition} offset {offset}"

        shown = [] if body is None else [f"body {body}"]
        shown += [f"{name} {value}" for name, value in headers.items()]
        print_line(f"{written}: {'; '.join(shown)}")
        print_line(f"as the lake stands at epoch {preview.epoch}: {preview.expected}")

        if result is not None:
            print_line(f"the job says: {result}")
        elif offset is not None and self.wait_s <= 0:
            print_line("that is expected, and not done yet: --wait-s 30 waits for the job's result")


# A command writes: its options come as one WriteOptions.
write_options = options_as(
    "writing",
    WriteOptions,
    conf_option,
    click.option(
        "--wait-s",
        type=Seconds(),
        default=0.0,
        show_default=True,
        help="How long to wait for what the running job makes of it.",
    ),
    click.option("--dry-run", is_flag=True, help="Write nothing; print what would be written."),
    click.option("--actor", help="Who: the login user when it is not given."),
    click.option("--reason", required=True, help="Why: it is stored with the record."),
    output_option,
)


def actor_and_reason(actor: str | None, reason: str) -> tuple[str, str]:
    """Returns actor and reason as they are stored; an empty one is wrong usage.

    Input: `actor`: the login user if it is not given.
    """
    actor = _login() if actor is None else actor.strip()
    reason = reason.strip()
    refuse_if(
        {
            "--actor is empty: name who writes this": not actor,
            "--reason is empty: give a reason": not reason,
        }
    )
    return actor, reason


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise click.UsageError("the login user is not known: name one with --actor") from error

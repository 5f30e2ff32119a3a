"""Commands on several targets: filters, a limit, a dry run unless --yes is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli.option_types import Duration
from pipelines.cli.options import options_as, refuse_if
from pipelines.cli.write_options import WriteOptions
from pipelines.errors import OperatorError
from pipelines.output import now_ms, print_json, print_rows

if TYPE_CHECKING:
    from pipelines.health.transactions import Filters
    from pipelines.operate.preview import Preview
    from storage.lake.lake import Lake
    from txlake.protocol import Target

FindTargets = Callable[["Lake", "Filters"], Sequence["Target"]]
PreviewTargets = Callable[[Sequence["Target"]], "list[Preview | OperatorError]"]


@dataclass(frozen=True)
class BulkOptions:
    """The options of a command on several targets. Units: ms."""

    group: str | None
    topic: str | None
    keys: str | None
    older_than: int | None
    max: int | None
    yes: bool

    def check(self, target: str | None) -> None:
        """Refuses all but one target, or filters with --max."""
        filters = (self.group, self.topic, self.keys, self.older_than)
        has_filters = any(value is not None for value in filters)
        refuse_if(
            {
                (
                    "name one target, or choose several by --group, --topic, --keys, --older-than"
                ): has_filters == (target is not None),
                "--max is needed: at most so many are written": has_filters and self.max is None,
                "--max and --yes go with filters": not has_filters
                and (self.max is not None or self.yes),
            }
        )

    def command(
        self, writing: WriteOptions, name: str, text: str | None, find_targets: FindTargets
    ) -> None:
        """Previews a command on one target, or on all that `find_targets` returns; writes it.

        Errors: as `write`.
        """
        self.check(text)
        target = None if text is None else writing.target(name, text)
        self.write(writing, target, find_targets, writing.previews_of(name))

    def write(
        self,
        writing: WriteOptions,
        target: Target | None,
        find_targets: FindTargets,
        preview_targets: PreviewTargets,
    ) -> None:
        """Previews a record for one target, or for all that match, the oldest first; writes it.

        Several records are written only with --yes.
        Input: `find_targets` returns the matching targets; `preview_targets` previews some.
        Errors: OperatorError if a result was waited for and is a refusal, or did not come.
        """
        from pipelines.health.transactions import Filters
        from pipelines.operate.preview import all_of

        if target is not None:
            writing.write(all_of(preview_targets([target])))
            return

        until = None if self.older_than is None else max(0, now_ms() - self.older_than)
        filters = Filters(self.group, self.topic, self.keys, None, until)
        targets = find_targets(writing.lake, filters)
        chosen = targets[: self.max]

        is_written = self.yes and not writing.dry_run
        previews = all_of(preview_targets(chosen))

        rows: list[dict[str, Any]] = [
            {
                "target": str(target),
                "expected": preview.expected,
                "offset": writing.send(preview) if is_written else None,
            }
            for target, preview in zip(chosen, previews, strict=True)
        ]

        if is_written:
            deadline = time.monotonic() + writing.wait_s
            for row, preview in zip(rows, previews, strict=True):
                row["result"] = writing.result(preview, row["offset"], deadline)

        if writing.output == "json":
            print_json(rows)
        elif rows:
            print_rows(list(rows[0]), [list(row.values()) for row in rows])

        more = len(targets) - len(chosen)
        click.echo(_summary(len(chosen), more, is_written, writing.wait_s > 0), err=True)

        if is_written and writing.wait_s > 0:
            self._require_results(rows)

    @staticmethod
    def _require_results(rows: Sequence[dict[str, Any]]) -> None:
        from pipelines.explain.rule_texts import CONFLICTS, REFUSALS

        missed = [row for row in rows if row["result"] is None]
        refused = [row for row in rows if row["result"] in REFUSALS or row["result"] in CONFLICTS]
        parts = [f"{len(refused)} changed nothing"] if refused else []
        if missed:
            parts.append(f"{len(missed)} {'has' if len(missed) == 1 else 'have'} no result yet")
        if parts:
            raise OperatorError(", ".join(parts))


# A command works on several targets: its options come as one BulkOptions.
bulk_options = options_as(
    "bulk",
    BulkOptions,
    click.option("--group", help="Several: those of this producer group."),
    click.option("--topic", help="Several: those for this topic."),
    click.option("--keys", help="Several: those with these KEYS."),
    click.option("--older-than", type=Duration(), help="Several: those that are older: 10m, 2h."),
    click.option("--max", type=click.IntRange(1), help="With filters: at most this many."),
    click.option(
        "--yes",
        is_flag=True,
        help="With filters: write. Without it, only print what would be written.",
    ),
)


def _summary(count: int, more: int, is_written: bool, is_waited_for: bool) -> str:
    text = f"{count} written" if is_written else f"{count} would be written; --yes writes them"
    if is_written and not is_waited_for:
        text += ", and not done yet: --wait-s 30 waits for the job's results"
    return f"{text}; beyond --max: {more} more" if more else text

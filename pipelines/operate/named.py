"""The target of an operator's command, in each of the forms that `tx explain` takes."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.errors import OperatorError
from pipelines.explain.fetch import find
from pipelines.explain.report import nothing_found
from pipelines.explain.target import Transaction, parse_target
from pipelines.explain.units import units_of
from pipelines.operate.bulk import dead_of
from storage.lake.lake import Lake
from storage.wire.record_kinds import HALF
from txlake.protocol import (
    CANCEL,
    RESUME,
    TARGET_FORMS,
    RecordTarget,
    Target,
    command_target,
)

# The same for every command about a message; those of TARGET_FORMS come on top.
_FORMS = ("a transaction id", "<queue>-<offset>")
_HALF_FORMS = ("half:<queue>-<offset>",)


def named_target(lake: Lake, name: str, text: str) -> Target:
    """Returns the one target that a COMMIT, a ROLLBACK or a command is about.

    Input: `text`: a transaction id, `0-6` for a half, or a target as records have it.
    Errors: ValueError that says what is allowed; OperatorError if the command can be about no
    target of a transaction id, or about several.
    """
    forms = TARGET_FORMS.get(name, _HALF_FORMS)
    target = command_target(name, text)
    if target is not None:
        return target

    try:
        parsed = parse_target(text)
    except ValueError:
        parsed = None

    if isinstance(parsed, Transaction):
        return _only_target(_targets(lake, name, parsed), name, parsed, lake)
    if isinstance(parsed, RecordTarget) and f"{parsed.kind}:<queue>-<offset>" in forms:
        return parsed

    raise ValueError(f"{text!r} is no target of {name}: {' or '.join((*_FORMS, *forms))}")


def _targets(lake: Lake, name: str, transaction: Transaction) -> Sequence[Target]:
    """Returns the targets of a transaction that the command can be about: one half of a set.

    Errors: OperatorError if the lake has no such transaction.
    """
    rows = find(lake, transaction)
    if not rows.messages:
        raise OperatorError(nothing_found(rows, transaction, lake.path))

    if name == RESUME:
        return dead_of(lake, transaction.transaction_id)

    if name == CANCEL:
        return [
            RecordTarget(row["source"], row["queue_id"], row["queue_offset"])
            for row in rows.still_delayed
        ]

    units = [unit for unit in units_of(rows) if unit.source == HALF]
    return [unit.target(unit.messages[0]["queue_offset"]) for unit in units]


def _only_target(
    targets: Sequence[Target], name: str, transaction: Transaction, lake: Lake
) -> Target:
    """Returns the only target. Errors: OperatorError."""
    transaction_id = transaction.transaction_id
    if len(targets) == 1:
        return targets[0]

    if not targets:
        raise OperatorError(
            f"transaction {transaction_id} in the lake {lake.path} has nothing that {name} can be "
            f"about: `txlake tx explain {transaction_id}` says how it stands"
        )

    names = ", ".join(map(str, targets))
    raise OperatorError(
        f"transaction id {transaction_id} stands for {len(targets)} targets of {name}: name one of "
        f"{names}"
    )

"""What a command of an operator is about: each takes the forms that `tx explain` takes."""

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
    """Returns the one thing that a COMMIT, a ROLLBACK or a command is about.

    Input: `text`: a transaction id, `0-6` for a half, or a target as records have it.
    Errors: ValueError that says what is allowed; OperatorError if a transaction id is on nothing
    that the command can be about, or on several.
    """
    forms = TARGET_FORMS.get(name, _HALF_FORMS)
    target = command_target(name, text)
    if target is not None:
        return target
    try:
        wanted = parse_target(text)
    except ValueError:
        wanted = None
    if isinstance(wanted, Transaction):
        return _one(_targets(lake, name, wanted), name, wanted, lake)
    if isinstance(wanted, RecordTarget) and f"{wanted.kind}:<queue>-<offset>" in forms:
        return wanted
    raise ValueError(f"{text!r} is no target of {name}: {' or '.join((*_FORMS, *forms))}")


def _targets(lake: Lake, name: str, transaction: Transaction) -> Sequence[Target]:
    """Returns what of a transaction the command can be about: of a set one half.

    Errors: OperatorError if the lake has no such transaction.
    """
    found = find(lake, transaction)
    if not found.messages:
        raise OperatorError(nothing_found(found, transaction, lake.path))
    if name == RESUME:
        return dead_of(lake, transaction.transaction_id)
    if name == CANCEL:
        delayed = [(row["source"], row["queue_id"], row["queue_offset"])
                   for row in found.still_delayed]  # fmt: skip
        return [RecordTarget(*place) for place in delayed]
    units = [unit for unit in units_of(found) if unit.source == HALF]
    return [unit.target(unit.messages[0]["queue_offset"]) for unit in units]


def _one(targets: Sequence[Target], name: str, transaction: Transaction, lake: Lake) -> Target:
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

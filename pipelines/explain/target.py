"""The targets of `explain`: one record, one undeliverable message, or a transaction id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from txlake.protocol import (
    TRANSACTION_ID_PATTERN,
    RecordTarget,
    UndeliverableTarget,
    matches,
    read_target,
)


@dataclass(frozen=True)
class Transaction:
    """All messages of a transaction id."""

    transaction_id: str


ExplainTarget: TypeAlias = RecordTarget | UndeliverableTarget | Transaction


def parse_target(text: str) -> ExplainTarget:
    """Returns the target of a text.

    Input: `17-5`, `half:17-5`, `schedule:17-5`, `undeliverable:5`, a transaction id or `id:<id>`.

    Errors: ValueError that says what is allowed.
    """
    target = read_target(text) or read_target(f"half:{text}")
    if isinstance(target, RecordTarget | UndeliverableTarget):
        return target

    transaction_id = text.removeprefix("id:")
    if not matches(TRANSACTION_ID_PATTERN, transaction_id):
        raise ValueError(
            f"{text!r} is no transaction id and no <queue>-<offset>, half:<queue>-<offset>, "
            "schedule:<queue>-<offset> or undeliverable:<offset>"
        )

    return Transaction(transaction_id)

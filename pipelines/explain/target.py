"""The targets of `explain`: one record, or all messages of a transaction id."""

from __future__ import annotations

from dataclasses import dataclass

from txlake.protocol import TRANSACTION_ID_PATTERN, RecordTarget, matches, read_target


@dataclass(frozen=True)
class Transaction:
    """All messages of a transaction id."""

    transaction_id: str


def parse_target(text: str) -> RecordTarget | Transaction:
    """Returns the target of `17-5`, `half:17-5`, `schedule:17-5`, a transaction id or `id:<id>`.

    Errors: ValueError that says what is allowed.
    """
    target = read_target(text) or read_target(f"half:{text}")
    if isinstance(target, RecordTarget):
        return target

    transaction_id = text.removeprefix("id:")
    if not matches(TRANSACTION_ID_PATTERN, transaction_id):
        raise ValueError(
            f"{text!r} is no transaction id and no <queue>-<offset>, half:<queue>-<offset> or "
            "schedule:<queue>-<offset>"
        )

    return Transaction(transaction_id)

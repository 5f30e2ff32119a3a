"""What an operator may ask about: a coordinate or a transaction id."""

from __future__ import annotations

import re
from dataclasses import dataclass

from txlake.protocol import TRANSACTION_ID_PATTERN, matches

HALF, SCHEDULE = "half", "schedule"
_COORDINATE = re.compile(
    r"((?P<source>half|schedule):)?(?P<queue>[0-9]{1,9})-(?P<offset>[0-9]{1,18})", re.ASCII
)


@dataclass(frozen=True)
class Target:
    """A half or schedule record by its coordinate, or all messages of a transaction id."""

    source: str = HALF
    queue_id: int = 0
    queue_offset: int = 0
    transaction_id: str | None = None

    def __str__(self) -> str:
        if self.transaction_id is not None:
            return f"transaction {self.transaction_id}"
        return f"{self.source}:{self.queue_id}-{self.queue_offset}"


def parse_target(text: str) -> Target:
    """Read `17-5`, `half:17-5`, `schedule:17-5` or a transaction id; `id:` before one is allowed.

    Errors: ValueError that says what is allowed.
    """
    found = _COORDINATE.fullmatch(text)
    if found is not None:
        return Target(found["source"] or HALF, int(found["queue"]), int(found["offset"]))
    transaction_id = text.removeprefix("id:")
    if not matches(TRANSACTION_ID_PATTERN, transaction_id):
        raise ValueError(
            f"{text!r} is no transaction id and no <queue>-<offset>, half:<queue>-<offset> or "
            "schedule:<queue>-<offset>"
        )
    return Target(transaction_id=transaction_id)


def plain_target(target: str | None) -> str:
    """Return a target of RESUME or CANCEL without leading zeros; nothing for any other text."""
    found = re.fullmatch(r"([a-z]+:)([0-9]+)(?:-([0-9]+))?", target or "", re.ASCII)
    if found is None:
        return ""
    numbers = [str(int(number)) for number in found.groups()[1:] if number is not None]
    return found[1] + "-".join(numbers)

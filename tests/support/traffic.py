"""The requests that passed a proxy, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Traffic:
    """What has passed: requests by method and kind, as ("PUT", "log"), and bytes of bodies by kind.

    A request counts when it comes, whatever becomes of it; an answer when the client gets it, by
    its status.
    """

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    received_bytes: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)

    def copy(self) -> Traffic:
        """Returns counts that do not change any more."""
        return self.since(Traffic())

    def since(self, before: Traffic) -> Traffic:
        """Returns what has passed after an earlier look."""
        return Traffic(
            self.requests - before.requests,
            self.sent_bytes - before.sent_bytes,
            self.received_bytes - before.received_bytes,
            self.answers - before.answers,
        )

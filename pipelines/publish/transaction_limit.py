"""How many messages a Kafka transaction of a publisher may hold, as its destination's speed allows.

Kafka aborts a transaction that is open for longer than `transaction_timeout_ms`. The same messages
in another transaction would be aborted, too, and nothing would ever be published. So after one that
took too long the next hold half as many messages, and twice as many after one that was quick.
"""

from __future__ import annotations

import logging
from typing import Final

from pipelines.settings import PublisherSettings

log = logging.getLogger("txlake.publish")

_QUICK_SHARE: Final = 0.25  # of the time-out: twice as many messages take half of it


class TransactionLimit:
    """The limit of one publisher. `messages`: at most so many, never more than the settings say."""

    def __init__(self, publisher: PublisherSettings) -> None:
        self._publisher = publisher
        self._timeout_s = publisher.transaction_timeout_ms / 1000
        self.messages = publisher.transaction_messages_max

    def count_committed(self, seconds: float) -> None:
        """Counts a transaction that was committed after so many seconds."""
        if seconds < self._timeout_s * _QUICK_SHARE:
            self.messages = min(2 * self.messages, self._publisher.transaction_messages_max)

    def count_failed(self, seconds: float, messages: int) -> None:
        """Counts a transaction of some messages that failed after so many seconds."""
        if seconds < self._timeout_s:
            return

        self.messages = max(1, min(self.messages, messages) // 2)
        log.warning(
            "publisher %s: a transaction with %d messages failed after %.0f s, and Kafka aborts it "
            "after %.0f s (transaction_timeout_ms); the next have at most %d",
            self._publisher.name,
            messages,
            seconds,
            self._timeout_s,
            self.messages,
        )

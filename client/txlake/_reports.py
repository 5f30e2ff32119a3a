"""Wait for Kafka's delivery reports."""

from __future__ import annotations

import threading

from confluent_kafka import KafkaError, Message

from txlake._kafka import DeliveryReport


class Reports:
    """Collect the reports of several records, in the order in which they were sent."""

    def __init__(self, count: int) -> None:
        self._offsets: list[int | None] = [None] * count
        self._missing = count
        self._changed = threading.Condition()
        self.failure: str | None = None

    def taker(self, position: int) -> DeliveryReport:
        """Give the callback for one record."""

        def take(error: KafkaError | None, record: Message) -> None:
            offset = None if error is not None else record.offset()
            if offset is None or offset < 0:
                self.fail(position, str(error or "no offset in the delivery report"))
            else:
                self._take(position, offset, None)

        return take

    def fail(self, position: int, failure: str) -> None:
        """Note that one record was not stored."""
        self._take(position, None, failure)

    def sent(self, is_sent: bool) -> None:
        """Note, where only one record is waited for, whether Kafka has it."""
        self._take(0, None, None if is_sent else "not sent")

    def wait(self, timeout_s: float) -> None:
        """Wait for all reports; what is missing then has failed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._missing == 0, timeout_s):
                self.failure = f"{self._missing} delivery reports are missing"

    def stored(self) -> list[int]:
        """Give the offsets of the records that were stored."""
        with self._changed:
            return [offset for offset in self._offsets if offset is not None]

    def _take(self, position: int, offset: int | None, failure: str | None) -> None:
        with self._changed:
            self._offsets[position] = offset
            self._missing -= 1
            self.failure = self.failure or failure
            if self._missing == 0:
                self._changed.notify_all()

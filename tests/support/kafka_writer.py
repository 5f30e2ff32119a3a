"""Write Kafka records by hand, as a producer of any language would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from confluent_kafka import Producer

from pipelines.settings import Settings
from tests.support.wait import DEADLINE_S
from txlake import protocol as p

Header = tuple[str, bytes | None]


def half_headers(
    transaction_id: str, topic: str = "orders", group: str = "g", **extra: str
) -> list[Header]:
    """Return a half's headers: the protocol's, then `extra` (protocol names or a user's)."""
    headers: list[Header] = [
        (p.TRAN_MSG, b"true"),
        (p.PGROUP, group.encode()),
        (p.UNIQ_KEY, transaction_id.encode()),
        (p.REAL_TOPIC, topic.encode()),
    ]
    return headers + [(name, value.encode()) for name, value in extra.items()]


class KafkaWriter:
    """A Kafka producer that gives back where each record was stored.

    An end names the transactions of its halves, as far as this process has sent them.
    """

    _ids: ClassVar[dict[tuple[str, str, int, int], str]] = {}

    def __init__(self, settings: Settings) -> None:
        self._kafka = settings.kafka
        self._producer = Producer(
            {
                "bootstrap.servers": settings.kafka.bootstrap_servers,
                "linger.ms": 0,
                "log_level": 0,
                "error_cb": lambda error: None,
            }
        )

    def send(
        self,
        topic: str,
        queue: int,
        value: bytes | None,
        headers: Sequence[Header],
        key: bytes | None = None,
    ) -> int:
        """Send one record and give its offset."""
        offsets: list[int] = []

        def report(error: object, message: object) -> None:
            assert error is None, error
            offsets.append(message.offset())  # type: ignore[attr-defined]

        self._producer.produce(
            topic,
            value=value,
            key=key,
            partition=queue,
            headers=list(headers),
            on_delivery=report,
        )
        assert self._producer.flush(DEADLINE_S) == 0, f"no report for a record to {topic}"
        return offsets[0]

    def half(
        self,
        transaction_id: str,
        queue: int = 0,
        body: bytes | None = b"body",
        topic: str = "orders",
        group: str = "g",
        **extra: str,
    ) -> int:
        """Send a half message and give its offset."""
        headers = half_headers(transaction_id, topic, group, **extra)
        offset = self.send(self._kafka.half_topic, queue, body, headers)
        self._ids[self._place(queue, offset)] = transaction_id
        return offset

    def _place(self, queue: int, offset: int) -> tuple[str, str, int, int]:
        return self._kafka.bootstrap_servers, self._kafka.half_topic, queue, offset

    def end(
        self,
        decision: str,
        *offsets: int,
        queue: int = 0,
        group: str = "g",
        ids: Sequence[str] = (),
        **extra: str,
    ) -> int:
        """Send an operation and give its offset. Input: `ids`: those of its halves, else known."""
        named = [self._ids.get(self._place(queue, offset), "unknown") for offset in offsets]
        headers = list(p.operation_headers(group, decision, ids or named, extra.items()))
        return self.send(self._kafka.op_topic, queue, p.operation_body(offsets), headers)

    def command(self, command: str, target: str, actor: str = "test", reason: str = "why") -> int:
        """Send an operator's command and give its offset."""
        pairs = ((p.COMMAND, command), (p.TARGET, target), (p.ACTOR, actor), (p.REASON, reason))
        return self.send(
            self._kafka.admin_topic, 0, None, [(name, text.encode()) for name, text in pairs]
        )

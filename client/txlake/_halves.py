"""How halves are sent: alone, or several of one transaction together."""

from __future__ import annotations

from txlake import protocol
from txlake._half import HalfQueues, checked_headers, group_headers
from txlake._kafka import DeliveryReport, KafkaSender
from txlake._operations import OperationBatcher
from txlake._reports import HALF_IS_ASKED_ABOUT, Reports, failure_text
from txlake.errors import SendError
from txlake.listener import HalfMessage
from txlake.message import Message
from txlake.options import ProducerOptions
from txlake.protocol import Headers

# librdkafka reports each record by delivery.timeout.ms; the report can arrive this much later.
REPORT_S = 5.0


class HalfSender:
    """The sender of one producer group's halves."""

    def __init__(
        self,
        sender: KafkaSender,
        operations: OperationBatcher,
        producer_group: str,
        options: ProducerOptions,
    ) -> None:
        self._sender = sender
        self._operations = operations
        self._group_headers = group_headers(producer_group)
        self._options = options
        self.choose_queue = HalfQueues(sender, options.half_topic, options.op_topic).choose

    def headers(
        self,
        message: Message,
        transaction_id: str,
        now_ms: int,
        place: tuple[int, int] | None = None,
    ) -> Headers:
        """Returns a half's headers. Errors: MessageError naming the limit and what exceeds it."""
        group, options = self._group_headers, self._options
        return checked_headers(message, group, transaction_id, now_ms, options, place)

    def send(
        self, queue_id: int, message: Message, headers: Headers, report: DeliveryReport
    ) -> None:
        """Sends one half without waiting. Errors: SendError."""
        self._sender.send(self._options.half_topic, queue_id, message.body, headers, report)

    def store(self, half: HalfMessage, now_ms: int) -> list[int]:
        """Sends all halves of a transaction and waits for Kafka. Output: their offsets.

        Errors: SendError when one was not stored; those that were are then rolled back.
        """
        size = len(half.messages)
        all_headers = [
            self.headers(message, half.transaction_id, now_ms, None if size == 1 else (size, seq))
            for seq, message in enumerate(half.messages)
        ]
        half.queue_id = self.choose_queue(half.message)
        reports = Reports(size)
        for seq, (message, headers) in enumerate(zip(half.messages, all_headers, strict=True)):
            try:
                self.send(half.queue_id, message, headers, reports.taker(seq))
            except SendError as error:
                reports.fail(seq, str(error))
        reports.wait(self._options.send_timeout_ms / 1000 + REPORT_S)
        stored = reports.stored()
        if reports.failure is not None:
            if stored:
                rollback = protocol.ROLLBACK
                self._operations.add(half.queue_id, stored, half.transaction_id, rollback)
            then = "it is rolled back with the others" if stored else HALF_IS_ASKED_ABOUT
            text = failure_text("the half was not", reports.failure, reports.is_open, then)
            raise SendError(text, half.transaction_id)
        half.queue_offset = stored[0]
        return stored

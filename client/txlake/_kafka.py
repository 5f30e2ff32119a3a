"""A Kafka producer with a polling thread of its own; both kinds of producers use it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from txlake.errors import ClosedError, SendError, UnknownTopicError
from txlake.protocol import Headers, batch_bytes_max

log = logging.getLogger("txlake.kafka")

DeliveryReport = Callable[[KafkaError | None, Message], None]
# What the guarantees rest on; a user's `client` settings may not change it.
_FIXED = {"acks": "all", "enable.idempotence": True}
_METADATA_AGE_MAX_S = 60.0
_METADATA_TIMEOUT_S = 5.0
_POLL_S = 0.1


def client_settings(bootstrap_servers: str, client: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the user's Kafka settings with the server list.

    Errors: ValueError naming a setting that the SDK must own.
    """
    settings = dict(client or {})
    for name in ("bootstrap.servers", "group.id", "enable.auto.commit", *_FIXED):
        if name in settings:
            raise ValueError(f"client[{name!r}] = {settings[name]!r}: the SDK sets this itself")
    return {"bootstrap.servers": bootstrap_servers, **settings}


class KafkaSender:
    """A sender of records. A thread of its own calls delivery reports, then `after_poll`."""

    def __init__(
        self, settings: Mapping[str, Any], linger_ms: int, timeout_ms: int, message_bytes_max: int
    ) -> None:
        self._timeout_s = timeout_ms / 1000
        self._trouble = ""  # what the client has reported last
        # Any: the client takes a list of (str, bytes), its annotations do not.
        self._producer: Any = Producer(
            {
                "linger.ms": linger_ms,
                "delivery.timeout.ms": timeout_ms,
                # In bytes: by default Kafka takes batches of up to 1 MiB. A larger record goes out
                # alone.
                "batch.size": 1_000_000,
                "message.max.bytes": batch_bytes_max(message_bytes_max),
                "queue.buffering.max.messages": 500_000,
                "error_cb": self._note,
                **settings,
                **_FIXED,
            },
            logger=log,
        )
        self._partitions: dict[str, tuple[int, float]] = {}
        self._is_closed = False
        self.after_poll: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._poll, name="txlake-sender", daemon=True)
        self._thread.start()

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = f" ({error.str()})"

    def _poll(self) -> None:
        while not self._is_closed:
            try:
                if self._producer.poll(_POLL_S):
                    self.after_poll()
            except Exception:
                log.exception("a delivery report failed")

    def send(
        self,
        topic: str,
        partition: int,
        body: bytes | None,
        headers: Headers,
        report: DeliveryReport,
    ) -> None:
        """Hands one record to Kafka's client; waits while its buffer is full.

        Errors: SendError when the client cannot take it, ClosedError after `close()`.
        """
        if self._is_closed:
            raise ClosedError("the producer is closed")
        deadline = 0.0
        while True:
            try:
                self._producer.produce(
                    topic, body, partition=partition, headers=headers, on_delivery=report
                )
                return
            except BufferError as error:
                deadline = deadline or time.monotonic() + self._timeout_s
                # Its own thread would wait for itself.
                if time.monotonic() > deadline or threading.current_thread() is self._thread:
                    raise SendError(f"{topic}: {error}") from error
                time.sleep(0.005)
            except KafkaException as error:
                raise SendError(f"{topic}: {error.args[0]}") from error

    def partition_count(self, topic: str) -> int:
        """Returns how many partitions a topic had, at most a minute ago.

        Errors: UnknownTopicError; SendError when no broker answers, and none did before.
        """
        count, read_at = self._partitions.get(topic, (0, 0.0))
        if count and time.monotonic() - read_at < _METADATA_AGE_MAX_S:
            return count
        try:
            # All topics are asked for: a question about one name can create the topic.
            topics = self._producer.list_topics(timeout=_METADATA_TIMEOUT_S).topics
        except KafkaException as error:
            if not count:
                raise SendError(
                    f"{topic}: no broker answers: {error.args[0].str()}{self._trouble}"
                ) from error
        else:
            if topic not in topics or not topics[topic].partitions:
                raise UnknownTopicError(
                    f"{topic}: Kafka has no such topic; create it first. A topic that this client "
                    "has no right to looks the same: it needs WRITE"
                )
            count = len(topics[topic].partitions)
        self._partitions[topic] = (count, time.monotonic())
        return count

    def close(self, timeout_s: float) -> None:
        """Sends what is buffered, gives up what does not go out in time, and stops the thread."""
        if self._is_closed:
            return
        if self._producer.flush(max(timeout_s, 0.0)):
            self._producer.purge()
            self._producer.flush(_POLL_S)
        self._is_closed = True
        self._thread.join(timeout=1.0)

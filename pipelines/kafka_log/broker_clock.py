"""The broker's clock: a PING in the admin topic gets the time at which the broker stored it."""

from __future__ import annotations

from confluent_kafka import KafkaException, Producer

from pipelines.errors import KafkaAwayError
from pipelines.kafka_log.connection import produce_one, producer_config
from pipelines.settings import Settings
from txlake import protocol as p


class BrokerClock:
    """The clock of the broker, asked for in the name of an owner."""

    def __init__(self, settings: Settings, owner: str) -> None:
        kafka = settings.kafka
        self._topic = kafka.admin_topic
        self._owner = owner
        self._config = producer_config(
            kafka.bootstrap_servers, kafka.client, settings.transaction.message_bytes_max
        )
        self._producer: Producer | None = None

    def ping(self) -> tuple[int, int]:
        """Writes a PING and returns its offset and the broker's clock in ms.

        Errors: KafkaAwayError.
        """
        if self._producer is None:
            self._producer = Producer({**self._config, "linger.ms": 0})
        headers = [(p.COMMAND, p.PING.encode()), (p.ACTOR, self._owner.encode())]
        try:
            message, failed = produce_one(self._producer, self._topic, partition=0, headers=headers)
        except KafkaException as error:
            raise KafkaAwayError(f"the broker's clock could not be asked: {error}") from error
        if failed is not None:
            raise KafkaAwayError(f"the broker's clock could not be asked: {failed}")
        return message.offset(), message.timestamp()[1]

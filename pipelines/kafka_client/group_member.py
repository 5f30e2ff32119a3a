"""One process's part in an election: a member of a consumer group on a topic of one partition.

Kafka gives the one partition to one member, which is the active one. Kafka finds the dead by the
group's session timeout; a member that leaves is replaced at once. A member that joins takes the
partition from nobody: the assignor is sticky. We have no clock and no lease of our own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pipelines.errors import JobError, KafkaRefusedError, StartError
from pipelines.kafka_client.connection import client_config

log = logging.getLogger("txlake.kafka")

# A member that Kafka has not heard from for so long is dead. Brokers allow 6 s or more by default.
SESSION_TIMEOUT_MS: Final = 6_000
# A member learns at its next heartbeat that Kafka elects anew.
_HEARTBEAT_MS = 1_000
_POLL_S = 0.1
_TOPIC_TIMEOUT_S = 2.0
_LEAVE_TIMEOUT_S = 5.0
# A member that has not looked for so long was suspended, and Kafka may have elected another.
_SUSPENDED_S = SESSION_TIMEOUT_MS / 1000 / 2
# After this time it knows of that: some heartbeats were answered.
_DOUBT_S = 3 * _HEARTBEAT_MS / 1000
# Waiting does not help against these.
_REFUSALS = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.INVALID_SESSION_TIMEOUT,
)


@dataclass(frozen=True)
class ElectedProcess:
    """The process that a group elects, as errors name it: `the driver of this lake`.

    `program`: whose rights it needs: `the job`.
    """

    name: str
    program: str


class Member:
    """A membership, kept by a thread of its own from `join` to `leave`.

    `term`: how many times Kafka has elected this member.
    Input: a topic of one partition; the group, and the process that it elects; `owner`: the name of
    this member, which Kafka shows in the group's description.
    Errors: StartError for settings that librdkafka does not take.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        client: Mapping[str, str],
        topic: str,
        group: str,
        elected: ElectedProcess,
        owner: str,
    ) -> None:
        self._topic = topic
        self._group = group
        self._elected_process = elected
        config = {
            **client_config(bootstrap_servers, client),
            "group.id": self._group,
            "client.id": owner,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": _HEARTBEAT_MS,
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
            "socket.timeout.ms": 10_000,
        }
        try:
            self._consumer = Consumer(config)
        except KafkaException as error:
            raise StartError(f"[kafka.client]: {error.args[0].str()}") from None

        self._looked_at = time.monotonic()
        self._unconfirmed_until = 0.0
        self.term = 0
        self._refusal: JobError | None = None

        self._elected = threading.Event()
        self._waiting = threading.Event()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txlake-election", daemon=True)

    def join(self) -> None:
        """Joins the group, as soon as the topic exists. Replay: does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    @property
    def is_active(self) -> bool:
        """Returns whether this member is the elected one, as far as it knows."""
        return self._elected.is_set()

    @property
    def is_waiting(self) -> bool:
        """Returns whether Kafka has counted this member in, and has another as the active one."""
        return self._waiting.is_set()

    @property
    def is_confirmed_leader(self) -> bool:
        """Returns whether this member is active and was not suspended just now.

        Kafka is not asked. A description of the group, by librdkafka's AdminClient, aborts the
        process when the broker goes away meanwhile; and the answer would be old when it comes.
        """
        now = time.monotonic()
        is_awake = now - self._looked_at < _SUSPENDED_S and now > self._unconfirmed_until
        return self._elected.is_set() and is_awake

    def wait(self, timeout_s: float) -> bool:
        """Waits to be elected. Output: whether this member is.

        Errors: KafkaRefusedError if Kafka refuses the group; StartError if the client has failed.
        """
        is_elected = self._elected.wait(timeout_s)
        if self._refusal is not None:
            raise self._refusal
        return is_elected

    def leave(self) -> None:
        """Leaves the group: Kafka elects another member at once."""
        self._leaving.set()
        if self._thread.ident is None:
            self._consumer.close()
        else:
            self._thread.join(_LEAVE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._leaving.is_set() and not self._has_topic():
                self._leaving.wait(_POLL_S)

            self._looked_at = time.monotonic()
            if not self._leaving.is_set():
                self._consumer.subscribe(
                    [self._topic],
                    on_assign=self._on_assign,
                    on_revoke=self._on_revoke,
                    on_lost=self._on_revoke,
                )

            while not self._leaving.is_set():
                self._note_look()
                self._note_refusal(self._consumer.poll(_POLL_S))
        except (KafkaException, RuntimeError) as error:
            self._refusal = StartError(refusal_text(self._group, self._elected_process, error))
        except BaseException as error:  # a caller of `wait` would wait for ever
            log.exception("an election failed")
            self._refusal = StartError(f"{self._group}: {type(error).__name__}: {error}")
        finally:
            self._elected.clear()
            self._consumer.close()

    def _note_look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at > _SUSPENDED_S:
            self._unconfirmed_until = now + _DOUBT_S
        self._looked_at = now

    def _has_topic(self) -> bool:
        try:
            topics = self._consumer.list_topics(self._topic, timeout=_TOPIC_TIMEOUT_S).topics
        except KafkaException as error:
            if error.args[0].code() in _REFUSALS:
                self._refusal = KafkaRefusedError(
                    refusal_text(self._group, self._elected_process, error)
                )
            return False
        return self._topic in topics and topics[self._topic].error is None

    def _note_refusal(self, message: Any) -> None:
        error = None if message is None else message.error()
        if error is not None and error.code() in _REFUSALS:
            self._refusal = KafkaRefusedError(
                refusal_text(self._group, self._elected_process, error)
            )

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        self._refusal = None
        if partitions:
            consumer.pause(partitions)  # nobody reads it here
            self.term += 1
            self._waiting.clear()
            self._elected.set()
        elif not self._elected.is_set():
            self._waiting.set()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._elected.clear()
        consumer.incremental_unassign(partitions)


def refusal_text(group: str, elected: ElectedProcess, error: object) -> str:
    """Returns the sentence for a group that Kafka does not let us use."""
    return (
        f"Kafka refuses the consumer group {group}, in which it elects {elected.name}: {error}; "
        f"allow {elected.program} READ and DESCRIBE on the group"
    )

"""The connection of the job's own clients to Kafka, and the refusal behind a request that fails.

librdkafka reports a wrong password or certificate beside the request that fails for it: the request
itself only runs into its time limit. `ErrorCallback` keeps the report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10's is its own
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from pipelines.errors import KafkaAwayError, KafkaRefusedError, StartError
from pipelines.kafka_client.options import to_java_config
from pipelines.kafka_client.tls import tls_error
from txlake import protocol as p

REQUEST_TIMEOUT_S: Final = 10.0
_TIMEOUTS_S: Final = (1.0, 2.0, REQUEST_TIMEOUT_S - 3.0)
# Within this time after a topic was made each broker knows it.
_APPEAR_S: Final = 30.0
# A partition has a new leader within this time, and librdkafka does not ask that one by itself.
_LEADER_S: Final = 5.0
_PAUSE_S: Final = 0.05
# Waiting does not help against these.
_LOGIN: Final = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)
_RIGHTS: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_LEADERS: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
_REQUESTS: Final = (KafkaError.TOPIC_EXCEPTION, KafkaError.POLICY_VIOLATION)
# How librdkafka says that a listener does not speak TLS.
_NO_TLS: Final = "PLAINTEXT broker listener"
_TLS_BEGINS: Final = "in state SSL_HANDSHAKE"
_EMERGENCY, _INFO = 0, 6  # syslog's levels, which librdkafka has

log = logging.getLogger("txlake.librdkafka")
Answer = TypeVar("Answer")
Partition = tuple[str, int]  # Kafka topic, partition


class _AtDebug:
    """The logger of a client: all of librdkafka's lines are for diagnosis, whatever their level."""

    def log(self, _level: int, text: str, *arguments: Any) -> None:
        log.debug(text, *arguments)


class ErrorCallback:
    """The last error that a client has reported, except that no broker is left.

    Of a connection that is closed while TLS is agreed on librdkafka says now that the listener may
    be a plain one, now only that it was closed: the first is kept.
    """

    def __init__(self) -> None:
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Keeps a report, as a client's `error_cb`."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return

        is_closed = error.code() == KafkaError._TRANSPORT and _TLS_BEGINS in str(error.str())
        if is_closed and self._last is not None and _NO_TLS in str(self._last.str()):
            return
        self._last = error

    def refusal(self, of_tls: Callable[[], str]) -> str:
        """Returns why Kafka does not let the client in; empty if that is not known.

        Input: `of_tls` returns what is wrong with TLS; it is called if that can be the reason.
        """
        code = None if self._last is None else self._last.code()
        text = "" if self._last is None else str(self._last.str())
        if code in _LOGIN:
            return text
        return of_tls() or (text if code == KafkaError._SSL or _NO_TLS in text else "")


def client_config(
    bootstrap_servers: str, client: Mapping[str, str], error_callback: ErrorCallback | None = None
) -> dict[str, Any]:
    """Returns the settings of a confluent-kafka client.

    Its own log lines are hidden, or at debug level in ours, when the client is polled.
    """
    return {
        "receive.message.max.bytes": p.RECEIVED_BYTES_MAX,
        **client,
        "bootstrap.servers": bootstrap_servers,
        "log_level": _INFO if log.isEnabledFor(logging.DEBUG) else _EMERGENCY,
        "error_cb": error_callback or ErrorCallback(),
        "logger": _AtDebug(),  # without one, librdkafka writes to stderr that a producer is fenced
    }


def new_consumer(config: Mapping[str, Any]) -> Consumer:
    """Returns a consumer. Input: the settings of `client_config`, and more.

    Errors: StartError for settings that only a consumer refuses.
    """
    try:
        return Consumer(dict(config))
    except KafkaException as error:
        raise StartError(f"the settings of Kafka's client: {error.args[0].str()}") from None


def producer_config(
    bootstrap_servers: str, client: Mapping[str, str], message_bytes_max: int
) -> dict[str, Any]:
    """Returns the settings of a job's producer that sends a record at the limit whole."""
    return {
        **client_config(bootstrap_servers, client),
        "acks": "all",
        "message.max.bytes": p.batch_bytes_max(message_bytes_max),
    }


def produce_sync(producer: Producer, topic: str, **record: Any) -> tuple[Any, object]:
    """Writes one record and waits for Kafka's answer.

    Output: the record with its offset and time, and None; or None, and why Kafka may lack it.
    Errors: KafkaException if the client does not take it.
    """
    reports: list[Any] = []
    producer.produce(topic, **record, on_delivery=lambda *report: reports.append(report))
    producer.flush(REQUEST_TIMEOUT_S)

    if not reports:
        return None, f"no answer within {REQUEST_TIMEOUT_S:.0f} s"

    error, message = reports[0]
    return message, error


def error_code(error: BaseException | None) -> int | None:
    """Returns Kafka's code of an error; None for one that Kafka did not send."""
    return error.args[0].code() if isinstance(error, KafkaException) else None


class Cluster:
    """A Kafka cluster that is administered.

    Any broker answers, and one can be behind the controller: it does not know yet a topic that was
    made just now. So an answer that lacks a topic which this object has made is no answer: another
    one is asked for. Nor is the answer of a broker that does not lead a partition yet, or no more.

    Errors: StartError for a setting that librdkafka does not take, or a file that is not as it
    should be. Of the methods: KafkaAwayError, KafkaRefusedError.
    """

    def __init__(self, bootstrap_servers: str, client: Mapping[str, str]) -> None:
        self._servers = bootstrap_servers
        self._client = client
        self._error_callback = ErrorCallback()
        self._made_at: dict[str, float] = {}  # topics that this object has made; monotonic s
        to_java_config(client)  # names a file that cannot be used; librdkafka does not

        config = client_config(bootstrap_servers, client, self._error_callback)
        try:
            self.admin = AdminClient(config)
        except KafkaException as error:
            raise StartError(f"[kafka.client]: {error.args[0].str()}") from None

    def create_topic(self, topic: NewTopic) -> None:
        """Makes a topic. Replay: does nothing if it is there."""
        futures = self.admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)
        self.result_of(
            futures[topic.topic], f"making {topic.topic}", KafkaError.TOPIC_ALREADY_EXISTS
        )
        self._made_at[topic.topic] = time.monotonic()

    def metadata(self) -> Any:
        """Returns librdkafka's metadata of all topics.

        The request has no name, since a request with a name may create the topic.
        """
        return self._ask_until_known(
            self._list_topics, self._made_at, lambda metadata: set(metadata.topics)
        )

    def topics(self) -> dict[str, Any]:
        """Returns librdkafka's metadata of each topic, by name."""
        return dict(self.metadata().topics)

    def describe_topics(self, names: Collection[str]) -> dict[str, Any]:
        """Returns Kafka's descriptions of the topics that exist among some names."""
        return self._ask_until_known(lambda: self._describe_topics(names), names, set)

    def topic_configs(self, names: Collection[str]) -> dict[str, dict[str, str | None]]:
        """Returns the settings of topics. Errors: KafkaAwayError if one does not exist."""
        configs = self._ask_until_known(lambda: self._describe_configs(names), names, set)
        unknown = set(names) - configs.keys()
        if unknown:
            raise KafkaAwayError(f"Kafka at {self._servers} has no topic {min(unknown)}")
        return configs

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the end of each partition, behind open Kafka transactions, too."""
        return self.offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the first offset that Kafka still has of each partition."""
        return self.offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def offsets(self, partitions: Iterable[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        """Returns the offset of each partition that a specification names; -1 if there is none."""
        specs = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        deadline = time.monotonic() + _LEADER_S
        offsets: dict[Partition, int] = {}

        while specs:
            futures = self.admin.list_offsets(
                specs,
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=REQUEST_TIMEOUT_S,
            )
            ignored_codes = _LEADERS if time.monotonic() < deadline else ()
            answers = {
                at: self.result_of(future, "offsets", *ignored_codes)
                for at, future in futures.items()
            }

            offsets |= {
                (at.topic, at.partition): int(answer.offset)
                for at, answer in answers.items()
                if answer is not None
            }
            specs = {at: spec for at, answer in answers.items() if answer is None}
            if specs:
                time.sleep(_PAUSE_S)

        return offsets

    def _list_topics(self) -> Any:
        # The first time limits are short: a refusal arrives within a second, and librdkafka would
        # go on trying.
        for timeout_s in _TIMEOUTS_S:
            try:
                return self.admin.list_topics(timeout=timeout_s)
            except KafkaException as error:
                failure = self.to_error("its topics", error)
                if isinstance(failure, KafkaRefusedError) or timeout_s == _TIMEOUTS_S[-1]:
                    raise failure from error
        raise AssertionError("unreachable")

    def _describe_topics(self, names: Collection[str]) -> dict[str, Any]:
        if not names:
            return {}

        futures = self.admin.describe_topics(
            TopicCollection(sorted(names)), request_timeout=REQUEST_TIMEOUT_S
        )
        return self._existing(futures, "topics")

    def _describe_configs(self, names: Collection[str]) -> dict[str, dict[str, str | None]]:
        if not names:
            return {}

        resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(names)]
        described = self.admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
        futures = {resource.name: future for resource, future in described.items()}
        return {
            name: {key: entry.value for key, entry in config.items()}
            for name, config in self._existing(futures, "topic settings").items()
        }

    def _existing(self, futures: Mapping[str, Any], request: str) -> dict[str, Any]:
        """Returns the answers about topics that exist, by name."""
        answers = {
            name: self.result_of(future, request, KafkaError.UNKNOWN_TOPIC_OR_PART)
            for name, future in futures.items()
        }
        return {name: answer for name, answer in answers.items() if answer is not None}

    def _ask_until_known(
        self, ask: Callable[[], Answer], names: Iterable[str], known: Callable[[Answer], set[str]]
    ) -> Answer:
        """Asks until the answer has those of some topics that were made just now.

        After `_APPEAR_S` an answer without them holds: they were deleted.
        Input: `known` returns the topics of an answer.
        """
        while True:
            answer = ask()
            lacking = self._made_at.keys() & set(names) - known(answer)
            since = time.monotonic() - _APPEAR_S
            if all(self._made_at[name] < since for name in lacking):
                return answer
            time.sleep(_PAUSE_S)

    def result_of(self, future: Any, request: str, *ignored_codes: int) -> Any:
        """Returns the answer to a request; None if it is an error of one of `ignored_codes`.

        Input: `request`: in words. Errors: KafkaAwayError, KafkaRefusedError.
        """
        try:
            return future.result(timeout=REQUEST_TIMEOUT_S)
        except (KafkaException, FutureTimeoutError) as error:
            if error_code(error) in ignored_codes:
                return None
            raise self.to_error(request, error) from error

    def to_error(self, request: str, error: BaseException) -> KafkaAwayError:
        """Returns why a request failed: a refusal, if one was reported, or no answer."""
        kafka = error.args[0] if isinstance(error, KafkaException) else None
        if kafka is not None and kafka.code() in _RIGHTS:
            return KafkaRefusedError(
                f"Kafka at {self._servers} refuses {request}: {kafka.str()}; give this client the "
                "right, or name another in [kafka.client]"
            )

        if kafka is not None and kafka.code() in _REQUESTS:
            return KafkaRefusedError(f"Kafka at {self._servers} refuses {request}: {kafka.str()}")

        self.admin.poll(0)  # calls error_cb
        refusal = self._error_callback.refusal(lambda: tls_error(self._servers, self._client))
        if refusal:
            return KafkaRefusedError(
                f"Kafka at {self._servers} does not let this client in: {refusal}; see "
                "[kafka.client]"
            )

        # librdkafka says which of its own steps ran out of time, and Python's future does not.
        if kafka is None or kafka.code() == KafkaError._TIMED_OUT:
            reason = "nothing in time"
        else:
            reason = kafka.str()
        return KafkaAwayError(f"Kafka at {self._servers} did not answer ({request}): {reason}")

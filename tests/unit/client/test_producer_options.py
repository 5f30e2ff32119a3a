"""A producer's options are checked before anything is sent; no broker is needed for that."""

from __future__ import annotations

import math
import socket
import threading
import time
from typing import Any

import pytest

from txlake import (
    ClosedError,
    LocalTransactionState,
    Message,
    MessageError,
    NoListenerError,
    Producer,
    ProducerOptions,
    TransactionListener,
    TransactionProducer,
    protocol,
)
from txlake._checks import require_consumer
from txlake.testing import FakeTransactionProducer

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"half_topic": ""}, "half_topic = ''"),
        ({"half_topic": 5}, "half_topic = 5: str is allowed"),
        ({"op_topic": ProducerOptions().half_topic}, "names two topics"),
        ({"op_topic": "a.b", "half_topic": "a_b"}, "'a_b' and 'a.b' differ by '.' and '_' alone"),
        ({"half_topic": "a b"}, r"half_topic = 'a b': \[A-Za-z0-9._-\]\{1,127\} is allowed"),
        ({"schedule_topic": ".."}, "'..': Kafka allows no topic of that name"),
        ({"half_topic": "__consumer.offsets"}, "Kafka allows no topic of that name"),
        ({"half_topic": "TRANS_CHECK_x"}, "'TRANS_CHECK_x' begins with check_topic_prefix"),
        ({"check_topic_prefix": "c" * 101}, r"\{1,100\} is allowed"),
        ({"check_topic_prefix": "_"}, "could be Kafka's own topic '__consumer_offsets'"),
        ({"send_timeout_ms": 0}, "send_timeout_ms = 0: 1 or more"),
        ({"operation_linger_ms": -1}, "operation_linger_ms = -1: 0 or more"),
        ({"in_flight_max": 1.5}, "in_flight_max = 1.5: int is allowed"),
        ({"check_threads": True}, "check_threads = True"),
        ({"send_timeout_ms": 10**17}, "send_timeout_ms = 10+: 2147483647 or less is allowed"),
        ({"close_timeout_ms": 10**400}, "close_timeout_ms = 10+: 2147483647 or less"),
        ({"check_session_timeout_ms": 3_600_001}, "= 3600001: 3600000 or less is allowed"),
        ({"delay_levels": "1s 5x"}, "'5x'"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ProducerOptions(**options)


@pytest.mark.parametrize(
    "name",
    [
        "acks",
        "enable.idempotence",
        "group.id",
        "bootstrap.servers",
        "on_delivery",
        "delivery.report.only.error",
    ],
)
def test_a_setting_that_a_guarantee_rests_on_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the SDK sets this itself"):
        TransactionProducer(NOWHERE, "shop", client={name: "0"})


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({"no.such": 1}, 'No such configuration property: "no.such"$'),
        ({"security.protocol": "nope"}, 'Invalid value "nope" for .* "security.protocol"$'),
        ({"linger.ms": -1}, r'"queue.buffering.max.ms" value -1 is outside .* 0..900000$'),
        ({"error_cb": 5}, "error_cb"),
        ("abc", "client 'abc': a dict of settings"),
    ],
)
def test_a_setting_that_kafkas_client_does_not_take_is_named(client: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TransactionProducer(NOWHERE, "shop", client=client)
    with pytest.raises(ValueError, match=said):
        Producer(NOWHERE, client=client)


class Commits(TransactionListener):
    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({"session.timeout.ms": 400_000}, "`max.poll.interval.ms` *must be >= `session.timeout"),
        ({"max.poll.interval.ms": 5_000}, "`max.poll.interval.ms` *must be >= `session.timeout"),
        ({"receive.message.max.bytes": 1_000_000}, "`receive.message.max.bytes` must be >= `fet"),
        ({"fetch.max.bytes": 500_000}, "`fetch.max.bytes` must be >= `message.max.bytes`"),
        ({"group.protocol": "consumer"}, "`session.timeout.ms` is not supported for `group.prot"),
    ],
)
def test_settings_without_which_no_check_is_answered_are_named(
    client: dict[str, Any], said: str
) -> None:
    before = _threads()
    with pytest.raises(ValueError, match=f"^the settings of Kafka's client: .*{said}"):
        TransactionProducer(NOWHERE, "shop", Commits(), client=client)
    assert _threads() <= before

    with TransactionProducer(NOWHERE, "shop", client=client):
        pass  # without a listener there is no consumer


def test_settings_that_fit_each_other_and_the_largest_options_are_taken() -> None:
    largest = ProducerOptions(
        message_bytes_max=protocol.MESSAGE_BYTES_LARGEST, check_session_timeout_ms=3_600_000
    )
    require_consumer({}, largest)
    require_consumer(
        {
            "session.timeout.ms": 400_000,
            "max.poll.interval.ms": 400_000,
            "fetch.max.bytes": protocol.RECEIVED_BYTES_MAX - 512,
            "receive.message.max.bytes": protocol.RECEIVED_BYTES_MAX,
        },
        ProducerOptions(),
    )


def test_settings_are_tried_without_a_broker_or_a_token() -> None:
    asked: list[object] = []

    def token(config: str) -> tuple[str, float]:
        asked.append(config)
        return "token", time.time() + 3600

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        oauth = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
        endpoint = {"sasl.oauthbearer.token.endpoint.url": f"http://{address}/token"}
        login = {"sasl.oauthbearer.client.id": "a", "sasl.oauthbearer.client.secret": "b"}
        clients: list[dict[str, Any]] = [
            {**oauth, "oauth_cb": token},
            {**oauth, "sasl.oauthbearer.method": "oidc", **endpoint, **login},
            *[{"metadata.broker.list": address}] * 200,  # one of them would have time to connect
        ]
        for client in clients:
            require_consumer({"bootstrap.servers": address, **client}, ProducerOptions())

        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert asked == []


def _threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("txlake-")}


def test_a_flush_waits_for_a_number_of_seconds() -> None:
    with TransactionProducer(NOWHERE, "shop") as producer:
        for timeout_s in (math.nan, 10**400, "5", True):
            with pytest.raises(ValueError, match=r"timeout_s .*: a number of seconds"):
                producer.flush(timeout_s)  # type: ignore[arg-type]

        producer._pipeline.acquire(1.0)
        threading.Timer(0.2, producer._pipeline.release).start()
        assert producer.flush(math.inf) == 0


@pytest.mark.parametrize("servers", ["", None, 5])
def test_servers_that_are_no_text_are_refused(servers: Any) -> None:
    with pytest.raises(ValueError, match=f"bootstrap_servers {servers!r}: host:port"):
        Producer(servers)


@pytest.mark.parametrize("group", ["", "a b", "g" * 128, "grüppe"])
def test_a_wrong_group_is_named(group: str) -> None:
    with pytest.raises(ValueError, match="producer_group"):
        TransactionProducer(NOWHERE, group)
    with pytest.raises(ValueError, match="producer_group"):
        Producer(NOWHERE, group)


@pytest.fixture
def quiet_client() -> dict[str, Any]:
    return {"log_level": 0}


def test_a_transaction_needs_something_to_run(quiet_client: dict[str, Any]) -> None:
    with TransactionProducer(NOWHERE, "shop", client=quiet_client) as producer:
        with pytest.raises(NoListenerError):
            producer.send_message_in_transaction(Message("orders", b""))
        with pytest.raises(NoListenerError):
            producer.send_pipelined(Message("orders", b""))
        with pytest.raises(MessageError, match="0 messages in a transaction: 1 to 1000"):
            producer.send_messages_in_transaction([])
        with pytest.raises(MessageError, match="1001 messages"):
            producer.send_messages_in_transaction([Message("orders", b"")] * 1001)


def test_a_closed_producer_refuses(quiet_client: dict[str, Any]) -> None:
    producer = TransactionProducer(NOWHERE, "shop", client=quiet_client)
    producer.close()
    producer.close()
    with pytest.raises(ClosedError):
        producer.send_message_in_transaction(Message("orders", b""))
    with pytest.raises(ClosedError):
        producer.send_pipelined(Message("orders", b""))


class Nothing:
    """It is no listener."""


@pytest.mark.parametrize("listener", ["x", Nothing(), TransactionListener])
def test_what_is_no_listener_is_refused(listener: Any) -> None:
    with pytest.raises(ValueError, match="an instance of a TransactionListener"):
        TransactionProducer("127.0.0.1:1", "shop", listener)


def test_a_group_that_is_no_text_is_refused() -> None:
    group: Any = None
    with pytest.raises(ValueError, match="producer_group None: "):
        TransactionProducer(NOWHERE, group)


def test_a_dict_of_options_is_refused() -> None:
    options: Any = {"send_timeout_ms": 1}
    for make in (
        lambda: TransactionProducer(NOWHERE, "shop", options=options),
        lambda: Producer(NOWHERE, options=options),
        lambda: FakeTransactionProducer(options=options),
    ):
        with pytest.raises(ValueError, match=r"options {'send_timeout_ms': 1}: ProducerOptions"):
            make()


@pytest.mark.parametrize("keys", [None, "a secret", [b"a secret"]])
def test_what_is_no_list_of_keys_is_refused_and_not_printed(keys: Any) -> None:
    with pytest.raises(ValueError, match=r"^keys: a list of SigningKey is allowed$"):
        TransactionProducer(NOWHERE, "shop", keys=keys)

"""Why Kafka does not let a client in, by what librdkafka reports."""

from __future__ import annotations

from confluent_kafka import KafkaError

from pipelines.kafka_client.connection import ErrorCallback

# As librdkafka 2.x says of one listener without TLS, in any order.
CLOSED = "ssl://host:1/bootstrap: Disconnected: SSL connection closed by peer (after 0ms in state "
CLOSED += "SSL_HANDSHAKE)"
PLAIN = (
    "ssl://host:1/bootstrap: SSL handshake failed: Disconnected: SSL connection closed by peer: "
)
PLAIN += "connecting to a PLAINTEXT broker listener? (after 0ms in state SSL_HANDSHAKE)"
AWAY = "ssl://host:1/bootstrap: Connect to host failed: Connection refused (after 0ms in state "
AWAY += "CONNECT)"


def refusal_of(*texts: str, code: int = KafkaError._TRANSPORT) -> str:
    """Return what is known after reports with these texts."""
    callback = ErrorCallback()
    for text in texts:
        callback(KafkaError(code, text))
    return callback.refusal(lambda: "")


def test_a_listener_without_tls_is_named_in_whatever_order_librdkafka_says_so() -> None:
    assert refusal_of(PLAIN) == PLAIN
    assert refusal_of(CLOSED, PLAIN) == PLAIN
    assert refusal_of(PLAIN, CLOSED, CLOSED) == PLAIN


def test_a_broker_that_goes_away_later_is_away() -> None:
    assert refusal_of(CLOSED) == ""
    assert refusal_of(PLAIN, AWAY) == ""

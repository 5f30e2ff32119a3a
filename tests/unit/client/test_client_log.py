"""What a producer logs while Kafka is away: each thing once, and once a minute after that."""

from __future__ import annotations

import logging
import time

import pytest

from pipelines.local_server.ports import Reservation
from txlake import (
    LocalTransactionState,
    Message,
    ProducerOptions,
    SendError,
    TransactionListener,
    TransactionProducer,
)
from txlake._client_log import CLIENT_LOGGER, ClientLogger, RepeatedLines

LOGGER = logging.getLogger("txlake.test")


class Clock:
    """A clock that a test sets, s."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def _shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_equal_lines_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    lines = RepeatedLines(LOGGER, clock)

    for clock.now_s in (0.0, 1.0, 59.0):
        lines.log(logging.ERROR, "no broker at port %d", clock.now_s)
    lines.log(logging.ERROR, "something else")
    clock.now_s = 61.0
    lines.log(logging.ERROR, "no broker at port %d", 7)
    clock.now_s = 500.0
    lines.log(logging.ERROR, "no broker at port %d", 8)

    assert caplog.messages == [
        "no broker at port 0",
        "something else",
        "no broker at port 7 (2 more since this was logged last)",
        "no broker at port 8",
    ]


def test_what_each_client_says_is_logged_once_and_a_retry_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = ClientLogger(RepeatedLines(LOGGER))

    for client in ("rdkafka#producer-1", "rdkafka#consumer-2"):
        logger.log(logging.ERROR, "%s [%s] %s", "FAIL", client, "no broker")
    logger.log(logging.ERROR, "%s [%s] %s", "GETPID", "rdkafka#producer-1", "load in progress")

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("ERROR", "Kafka's client: FAIL no broker"),
        ("INFO", "Kafka's client: GETPID load in progress"),
    ]


class Commits(TransactionListener):
    """A listener whose transactions commit."""

    def execute_local_transaction(self, half: object, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, half: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def test_a_producer_without_a_kafka_logs_a_few_lines(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another test of this process can have logged the same lines within the last minute.
    new_lines = RepeatedLines(logging.getLogger("txlake.kafka"))
    monkeypatch.setattr(CLIENT_LOGGER, "_lines", new_lines)
    held = Reservation("127.0.0.1", 0)  # no server of another test listens at its port
    request.addfinalizer(held.release)
    servers = f"127.0.0.1:{held.ports[0]}"
    options = ProducerOptions(send_timeout_ms=2_000)

    with TransactionProducer(servers, "shop", Commits(), options=options) as producer:
        deadline = time.monotonic() + 6
        while time.monotonic() < deadline:
            with pytest.raises(SendError, match="no broker answers"):
                producer.send_message_in_transaction(Message("orders", b""))

    # Of librdkafka: the try to connect, as an error and as what each later one repeats.
    said = [record for record in caplog.records if record.name.startswith("txlake")]
    assert 1 <= len(said) < 10, caplog.messages
    assert "Connection refused" in caplog.text
    assert capfd.readouterr().err == "", "librdkafka writes past Python's logging"

"""What a producer logs while Kafka is away: each thing once, and once a minute after that."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import pytest

from pipelines.local_server.ports import Reservation
from txlake._client_log import ClientLogger, RepeatedLines

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


_WITHOUT_KAFKA = """
    import logging, sys, time
    from txlake import LocalTransactionState, Message, ProducerOptions, SendError
    from txlake import TransactionListener, TransactionProducer

    class Commits(TransactionListener):
        def execute_local_transaction(self, half, arg):
            return LocalTransactionState.COMMIT_MESSAGE

        def check_local_transaction(self, half):
            return LocalTransactionState.UNKNOWN

    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(message)s")
    options = ProducerOptions(send_timeout_ms=2_000)

    with TransactionProducer(sys.argv[1], "shop", Commits(), options=options) as producer:
        deadline = time.monotonic() + 6
        while time.monotonic() < deadline:
            try:
                producer.send_message_in_transaction(Message("orders", b""))
            except SendError as error:
                assert "no broker answers" in str(error), error
            else:
                raise AssertionError("it was sent")
"""


def test_a_producer_without_a_kafka_logs_a_few_lines(request: pytest.FixtureRequest) -> None:
    held = Reservation("127.0.0.1", 0)  # no server of another test listens at its port
    request.addfinalizer(held.release)

    # In a process of its own: clients that other tests have left write to this one's stderr.
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_WITHOUT_KAFKA), f"127.0.0.1:{held.ports[0]}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), "librdkafka writes past Python's logging"

    # Of librdkafka: the try to connect, as an error and as what each later one repeats.
    said = [line for line in done.stdout.splitlines() if line.startswith("txlake")]
    assert 1 <= len(said) < 10, said
    assert "Connection refused" in done.stdout

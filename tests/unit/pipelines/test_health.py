"""/metrics, /healthz and /readyz of a job, over HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.errors import StartError
from pipelines.local_server.ports import is_listening
from pipelines.metrics.reporter import Reporter, Standing
from tests.support.history import History
from tests.support.http_client import Answer, free_port, get
from tests.support.metrics_client import ReportedHistory, reporter_of, samples_of
from tests.support.wait import wait_until

STREAMS = Standing(is_active=True, is_streaming=True)


def ready(reporter: Reporter, is_up: bool | None = True) -> str:
    """Return why a reporter is not ready, as its probe has found Kafka."""
    reporter._probe.is_up = is_up
    return reporter.not_ready_reason()


@pytest.mark.parametrize(
    ("standing", "is_up", "expected"),
    [
        (Standing(), None, "it does not have the lake yet: it is starting, or waiting for Kafka"),
        (Standing(is_waiting=True), True, "it stands by: another driver has the lake"),
        (Standing(is_active=True), True,
         "its stream is not running: it is starting, or waiting for Kafka or its store"),
        (STREAMS, False, "Kafka at 127.0.0.1:9 does not answer"),
        (STREAMS, None, ""),
        (STREAMS, True, ""),
    ],
)  # fmt: skip
def test_a_job_says_why_it_is_not_ready(
    standing: Standing, is_up: bool | None, expected: str
) -> None:
    assert ready(reporter_of(standing), is_up) == expected


@pytest.mark.parametrize(
    ("behind_ms", "expected"),
    [(300_000, ""), (301_000, "it is 301 s behind Kafka; 300 s are allowed")],
)
def test_a_job_that_lags_is_not_ready(
    behind_ms: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History()
    history.epoch(0)
    history.half()
    history.end("COMMIT", 0)
    told = ReportedHistory(reporter_of(STREAMS)).tell(history, waiting=1)
    oldest_at = history.at_ms - 500
    monkeypatch.setattr(told.reporter._collector, "now_ms", lambda: oldest_at + behind_ms)
    assert ready(told.reporter) == expected


def test_a_job_serves_metrics_and_health_and_gives_its_port_back() -> None:
    port = free_port()
    threads = set(threading.enumerate())
    with reporter_of(STREAMS, metrics={"port": port}).serving():
        assert get(port, "/healthz") == Answer(200, "text/plain; charset=utf-8", "ok\n")
        scrape = get(port, "/metrics?name=x")
        assert scrape.kind.startswith("text/plain; version=")
        assert samples_of(scrape.text)["txlake_streaming"] == 1
        assert samples_of(scrape.text)["process_open_fds"] > 0
        assert get(port, "/metrics", method="HEAD").text == ""
        assert get(port, "/").status == 404
        assert get(port, "/metrics", method="POST").status == 501
        wait_until(lambda: get(port, "/readyz").status == 503, "Kafka is found to be away")
        assert get(port, "/readyz").text == "Kafka at 127.0.0.1:9 does not answer\n"
        assert samples_of(get(port, "/metrics").text)["txlake_kafka_up"] == 0
    assert not is_listening("127.0.0.1", port)
    wait_until(lambda: set(threading.enumerate()) <= threads, "no thread is left")


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    port = free_port()
    silent = socket.socket()
    with silent, reporter_of(metrics={"port": port}).serving():
        silent.connect(("127.0.0.1", port))
        assert get(port, "/healthz").status == 200


def test_without_a_port_nothing_is_served() -> None:
    before = set(threading.enumerate())
    with reporter_of().serving():
        assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (lambda port: {"port": port}, "Address already in use"),
        (lambda port: {"port": port, "host": "nowhere.invalid"}, "not"),
        (lambda port: {"port": port, "host": "192.0.2.1"}, "Cannot assign requested address"),
    ],
    ids=["taken", "no such host", "another machine's"],
)
def test_a_port_that_cannot_be_had_stops_the_start_with_one_sentence(
    settings: Callable[[int], dict[str, Any]], reason: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        reporter = reporter_of(metrics=settings(other.getsockname()[1]))
        matches = pytest.raises(StartError, match=r"\[metrics\] host = .*port = ")
        with matches as told, reporter.serving():
            raise AssertionError("it was served")
    assert "\n" not in str(told.value)
    assert reason in str(told.value)


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_a_job_can_listen_at_an_address_of_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as found:
            port = found.getsockname()[1]
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    with reporter_of(metrics={"host": "::1", "port": port}).serving():
        assert get(port, "/healthz", "[::1]").status == 200

"""The job's log: a line an epoch, warnings of their own, not too many; text or JSON."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from pipelines.logs import JsonLines
from pipelines.metrics.log_lines import RateLimited
from tests.support.history import History
from tests.support.metrics_client import ReportedHistory, reporter_of
from txlake.protocol import COMMIT

SHORT = {"transaction_timeout_ms": 1_000, "check_interval_ms": 1_000, "check_max": 1}


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "txlake.epoch")


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Return the lines of one level."""
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_an_epoch_is_one_line_with_its_lag(caplog: pytest.LogCaptureFixture) -> None:
    history = History()
    history.epoch(0)
    history.half()
    history.half()
    history.end(COMMIT, 0)
    told = ReportedHistory()
    told.reporter._collector.now_ms = lambda: history.at_ms + 2_000
    told.tell(history, waiting=7)
    assert lines(caplog, logging.INFO) == [
        "epoch 1: 3 records landed, 1 halves committed, 0 rolled back, 0 given up, 0 checks, "
        "1 delivered, 7 records behind (2.5 s), 20.50 s"
    ]
    assert lines(caplog, logging.WARNING) == []  # an epoch waited for another one, no step was slow


def test_what_is_given_up_or_undeliverable_or_slow_is_a_line_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history = History(**SHORT)
    history.epoch(0)
    history.half("tx-lost", real_topic="bills")
    history.half(real_queue_id=9, real_topic="a\nb")  # no topic is called so; nothing can forge
    history.end(COMMIT, 1)
    history.epoch(2)
    history.epoch(2)
    ReportedHistory(reporter_of(log={"slow_step_ms": 149})).tell(history)
    assert lines(caplog, logging.WARNING) == [
        "undeliverable: half 0-1 for topic a\\u000ab: queue_out_of_range",
        "slow step: decide of epoch 1 took 0.1 s",
        "slow step: decide of epoch 2 took 0.1 s",
        "given up: half 0-0 of topic bills, group g, transaction tx-lost: check_max",
        "slow step: decide of epoch 3 took 0.1 s",
    ]


def test_a_minute_has_so_many_lines_of_a_kind_and_then_one_that_counts_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    limited = RateLimited("given up", 3, lambda: now[0])
    limited.log(((str(n), {}) for n in range(2)), 2)
    limited.log(((str(n), {}) for n in range(2, 5)), 1_000)
    now[0] = 59.9
    limited.flush()
    assert lines(caplog, logging.WARNING) == ["given up: 0", "given up: 1", "given up: 2"]
    now[0] = 60.0
    limited.flush()
    limited.log([("later", {})], 1)
    assert lines(caplog, logging.WARNING)[3:] == [
        "given up: 999 more are not shown; a minute has at most 3 such lines",
        "given up: later",
    ]
    limited.flush(is_over=True)
    assert len(lines(caplog, logging.WARNING)) == 5


def test_an_epoch_that_gives_thousands_up_says_so_in_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history = History(**SHORT)
    history.epoch(0)
    for _ in range(2_000):
        history.half()
    history.epoch(2)
    history.epoch(2)
    told = ReportedHistory(reporter_of(log={"lines_max": 5})).tell(history)
    told.reporter.close()
    warnings = lines(caplog, logging.WARNING)
    given_up = [line for line in warnings if line.startswith("given up: half")]
    assert len(given_up) == 5
    assert "given up: 1995 more are not shown; a minute has at most 5 such lines" in warnings


def test_json_has_an_object_a_line_with_the_fields_of_the_epoch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history = History()
    history.epoch(0)
    history.half(real_queue_id=9, real_topic="bills")
    history.end(COMMIT, 0)
    ReportedHistory().tell(history)
    texts = [JsonLines().format(record) for record in caplog.records]
    assert all("\n" not in text for text in texts)
    epoch, stuck = (json.loads(text) for text in texts)
    assert epoch["level"] == "INFO"
    assert epoch["logger"] == "txlake.epoch"
    assert (epoch["epoch"], epoch["records"], epoch["committed"]) == (1, 2, 1)
    assert epoch["step_ms"]["decide"] == 150
    assert stuck["kind"] == "undeliverable"
    assert stuck["real_topic"] == "bills"
    assert stuck["reason"] == "queue_out_of_range"


def test_a_traceback_is_a_field_of_its_json_line() -> None:
    try:
        raise ValueError("no\nsuch")
    except ValueError:
        record = logging.makeLogRecord({"msg": "it failed", "exc_info": sys.exc_info()})
    line = json.loads(JsonLines().format(record))
    assert line["message"] == "it failed"
    assert "ValueError" in line["error"]


@pytest.mark.parametrize(("form", "begins"), [("json", "{"), ("text", "20")])
def test_the_setting_decides_the_form(form: str, begins: str) -> None:
    program = (
        "import logging; from pipelines import logs;"
        f"logs.begin('info', {form!r}); logging.getLogger('x').info('hello')"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stderr.startswith(begins)
    assert "hello" in said.stderr

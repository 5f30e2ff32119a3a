"""What the JVM prints becomes lines of our log, each with its level."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from pipelines.jvm.java_log import JavaLog, levels
from tests.support.wait import wait_until

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
PRINTED = [
    ("WARNING: Using incubator modules: jdk.incubator.vector", INFO),
    ("23:45:04 WARN Utils: Set SPARK_LOCAL_IP", WARNING),
    ("not of it", INFO),
    ("23:45:33 ERROR Thing: Query terminated with error", ERROR),
    ("org.apache.spark.SparkException: no", DEBUG),
    ("\tat org.apache.spark.Thing.do(Thing.scala:60) ~[spark.jar:4.2.0]", DEBUG),
    ("Caused by: java.lang.Error: it", DEBUG),
    ("\t... 12 more", DEBUG),
    ("23:45:34 ERROR TaskSetManager: Task 0 in stage 1.0 failed 1 times; aborting job", DEBUG),
    ("Traceback (most recent call last):", DEBUG),
    ('  File "daemon.py", line 262, in manager', DEBUG),
    ("    worker()", DEBUG),
    ("BrokenPipeError: [Errno 32] Broken pipe", DEBUG),
    ("java.lang.OutOfMemoryError: Java heap space", INFO),
]


def test_traces_are_at_debug_level_and_lines_of_log4j_keep_theirs() -> None:
    assert [level for level, _ in levels(line for line, _ in PRINTED)] == [
        level for _, level in PRINTED
    ]
    assert list(levels(["23:45:04 WARN Utils: Set it"])) == [(WARNING, "Utils: Set it")]


def test_what_a_process_prints_to_the_pipe_is_logged_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(DEBUG, "txlake.spark")
    program = "import sys; print('10:00:00 WARN Utils: é \\x1b', file=sys.stderr)"
    with JavaLog() as java_log:
        subprocess.run([sys.executable, "-c", program], stderr=java_log.fd, check=True)
    wait_until(lambda: caplog.records, "the line")
    assert caplog.records[0].getMessage() == "Utils: é \\u001b"
    assert caplog.records[0].levelno == WARNING

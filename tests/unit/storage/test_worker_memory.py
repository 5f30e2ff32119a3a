"""A worker keeps free memory from one task to the next, and not while it waits for long."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from pipelines.jvm import arrow_memory
from storage.tasks import in_spark
from storage.tasks.kafka_reader import KafkaSource
from tests.support.wait import DEADLINE_S

_MB = 96
# Prints how much memory (MB) is resident: while a task has its buffers, and after two tasks
# when it has gone, or after the wait that an argument names (s).
_TASKS = f"""
import ctypes, sys, time
from pathlib import Path
import pyarrow as pa
from storage.tasks import in_spark
from storage.tasks.kafka_reader import KafkaSource

in_spark._IDLE_S = float(sys.argv[1])

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))

def run():
    with in_spark._task_running():
        buffers = [pa.allocate_buffer(4 << 20) for _ in range({_MB // 4})]
        for buffer in buffers:
            ctypes.memset(buffer.address, 1, buffer.size)
        return resident()

before = resident()
had = run() - before
run()
end = time.monotonic() + float(sys.argv[2])
left = had
while left >= {_MB // 4} and time.monotonic() < end:
    time.sleep(0.1)
    pa.allocate_buffer(1 << 20)  # the allocator looks at the time when it is called
    left = resident() - before
print(had, left)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc is Linux's")
@pytest.mark.parametrize(
    ("idle_s", "wait_s", "is_kept"), [(3_600.0, 2.0, True), (0.2, DEADLINE_S, False)]
)
def test_free_memory_stays_for_the_next_task_and_goes_when_none_comes(
    idle_s: float, wait_s: float, is_kept: bool
) -> None:
    command = [sys.executable, "-c", _TASKS, str(idle_s), str(wait_s)]
    environment = {**os.environ, **arrow_memory.ENVIRONMENT}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    had, left = map(int, said.stdout.split())
    assert had >= _MB
    assert (left > _MB * 3 // 4) == is_kept, (had, left)
    assert is_kept or left < _MB // 4


_ARRAYS = """
import resource
import numpy as np
from storage.tasks import in_spark
from storage.tasks.kafka_reader import KafkaSource

def run():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with in_spark._task_running():
        arrays = [np.ones(250_000 // 8) for _ in range(160)]
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(run(), run(), in_spark._release_memory() or run())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_arrays_of_a_task_get_the_pages_of_the_one_before_until_they_are_given_back() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _ARRAYS], check=True, capture_output=True, text=True
    )
    first, second, after_all_was_given_back = map(int, said.stdout.split())
    assert second < first / 10, (first, second)
    assert after_all_was_given_back > first / 2, (first, after_all_was_given_back)


_GARBAGE = """
import gc
from storage.tasks import in_spark

try:
    with in_spark._task_running():
        print(gc.isenabled())
        raise ValueError
except ValueError:
    print(gc.isenabled())
"""


def test_garbage_is_collected_between_tasks_and_not_within_one() -> None:
    command = [sys.executable, "-c", _GARBAGE]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(("rows", "is_large"), [(10, False), (11, True)])
def test_task_that_lands_a_large_part_gives_back_at_once(
    rows: int, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = Mock()
    monkeypatch.setattr(in_spark, "_release_memory", given_back)
    monkeypatch.setattr(in_spark, "_task_running", contextlib.nullcontext)
    monkeypatch.setattr(in_spark, "_LARGE_ROWS", 10)
    batches = [pa.RecordBatch.from_pydict({"n": range(part)}) for part in (7, rows - 7)]
    monkeypatch.setattr(in_spark, "read_records", lambda *_: iter(batches))
    landing: Any = list  # hands over what it gets
    task = in_spark.LandTask(landing, KafkaSource("nowhere"), [()])
    assert list(task([pa.RecordBatch.from_pydict({"id": [0]})])) == batches
    assert given_back.called == is_large


def test_driver_is_told_before_it_loads_arrow() -> None:
    modules = "import sys, pipelines.cli.main, pipelines.jvm.arrow_memory; "
    command = [sys.executable, "-c", modules + "sys.exit('pyarrow' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0


def test_what_the_environment_says_already_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = arrow_memory.ENVIRONMENT
    monkeypatch.setenv(name, "10")
    arrow_memory.keep_freed_pages()
    assert os.environ[name] == "10"
    monkeypatch.delenv(name)
    arrow_memory.keep_freed_pages()
    assert os.environ[name] == arrow_memory.ENVIRONMENT[name]

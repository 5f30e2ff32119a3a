"""A worker keeps Arrow's free memory from one task to the next, and not while it waits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.jvm import kept_memory

_MB = 96
# Prints how much memory (MB) is resident: while a task has its buffers, and after two tasks
# and the wait that an argument names (s).
_TASKS = f"""
import ctypes, sys, time
from pathlib import Path
import pyarrow as pa
from storage.tasks import in_spark

in_spark._IDLE_S = float(sys.argv[1])

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))

def run():
    with in_spark._at_work():
        buffers = [pa.allocate_buffer(4 << 20) for _ in range({_MB // 4})]
        for buffer in buffers:
            ctypes.memset(buffer.address, 1, buffer.size)
        return resident()

before = resident()
had = run() - before
run()
time.sleep(float(sys.argv[2]))
pa.allocate_buffer(1 << 20)  # the allocator looks at the time when it is called
print(had, resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc is Linux's")
@pytest.mark.parametrize(("idle_s", "wait_s", "is_kept"), [(30.0, 2.0, True), (0.2, 2.0, False)])
def test_free_memory_stays_for_the_next_task_and_goes_when_none_comes(
    idle_s: float, wait_s: float, is_kept: bool
) -> None:
    command = [sys.executable, "-c", _TASKS, str(idle_s), str(wait_s)]
    environment = {**os.environ, **kept_memory.KEPT}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    had, left = map(int, said.stdout.split())
    assert had >= _MB
    assert (left > _MB * 3 // 4) == is_kept, (had, left)
    assert is_kept or left < _MB // 4


def test_driver_is_told_before_it_loads_arrow() -> None:
    modules = "import sys, pipelines.cli.main, pipelines.jvm.kept_memory; "
    command = [sys.executable, "-c", modules + "sys.exit('pyarrow' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0


def test_what_the_environment_says_already_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = kept_memory.KEPT
    monkeypatch.setenv(name, "10")
    kept_memory.keep_memory()
    assert os.environ[name] == "10"
    monkeypatch.delenv(name)
    kept_memory.keep_memory()
    assert os.environ[name] == kept_memory.KEPT[name]

"""The sampler names what keeps a process busy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
_SPIN = """
import sys, time
from pathlib import Path
from bench.sampler import Sampler

def spin(sampler):
    end = time.monotonic() + 240
    while time.monotonic() < end and not any(":spin:" in stack for stack in list(sampler._stacks)):
        sum(range(1_000))

with Sampler(Path(sys.argv[1])) as sampler:
    spin(sampler)
"""


def test_the_sampler_sees_what_is_busy(tmp_path: Path) -> None:
    # A process of its own: threads that other tests left behind would fill the list.
    script = tmp_path / "busy.py"
    script.write_text(_SPIN, "utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script, tmp_path], env=environment, check=True)
    assert "busy.py:spin:" in (tmp_path / "top.txt").read_text("utf-8")
    stacks = (tmp_path / "stacks.txt").read_text("utf-8").splitlines()
    assert all(line.rpartition(" ")[2].isdigit() for line in stacks)

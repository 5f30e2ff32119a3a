"""A publisher's process takes the memory of Arrow from malloc, unless its environment says else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import sys
import pipelines.cli.main, pipelines.cli.publish
from pipelines.publish.process_memory import share_one_heap
assert "pyarrow" not in sys.modules, "Arrow has chosen already"
share_one_heap()
import pipelines.publish.process
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""


@pytest.mark.parametrize(
    ("environment", "pool"),
    [({}, "system"), ({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}, "mimalloc")],
)
def test_arrow_takes_its_memory_from_malloc(environment: dict[str, str], pool: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert ended.stdout.strip() == pool

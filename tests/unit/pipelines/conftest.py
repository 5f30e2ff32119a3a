"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.operator import write_conf


@pytest.fixture
def conf(tmp_path: Path) -> str:
    """Settings of a job whose lake is `tmp_path / "lake"`."""
    return write_conf(tmp_path)

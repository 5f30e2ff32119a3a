"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.health import kafka
from pipelines.kafka_client import admin, connection
from tests.support.operator import write_conf


@pytest.fixture(autouse=True)
def _quick_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka is away in these tests: a command notices that in half a second, not in ten."""
    monkeypatch.setattr(connection, "_TIMEOUTS_S", (0.1, 0.1, 0.3))
    for module in (admin, kafka):
        monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.5)


@pytest.fixture
def conf(tmp_path: Path) -> str:
    """Settings of a job whose lake is `tmp_path / "lake"`."""
    return write_conf(tmp_path)

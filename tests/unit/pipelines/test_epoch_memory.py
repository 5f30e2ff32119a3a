"""Memory that Arrow has free stays for the next epoch, unless this one is large."""

from __future__ import annotations

from unittest.mock import Mock

import pyarrow as pa
import pytest

from pipelines.epoch.memory import LARGE_RECORDS, release_memory


@pytest.mark.parametrize(
    ("records", "times"), [(0, 0), (200_000, 0), (LARGE_RECORDS, 0), (LARGE_RECORDS + 1, 1)]
)
def test_only_a_large_epoch_gives_memory_back(
    records: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Mock()
    monkeypatch.setattr(pa, "default_memory_pool", lambda: pool)
    release_memory(records)
    assert pool.release_unused.call_count == times

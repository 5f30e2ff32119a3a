"""A short run of the kill loop of consumer groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.consumer_kills import GROUPS, run


@pytest.mark.soak
def test_groups_whose_consumers_are_killed_lose_nothing_and_keep_the_delays(tmp_path: Path) -> None:
    result = run(tmp_path, seconds=12.0, seed=1)
    assert result["ends"]["SIGKILL"] >= 1
    assert all(result[group]["calls"] >= result["messages"] > 0 for group in GROUPS)

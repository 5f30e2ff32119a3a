"""The stream's checkpoint: a fresh one for each start, in a folder of one lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.errors import StartError
from pipelines.job.checkpoint import fresh_checkpoint


def test_each_start_deletes_the_checkpoints_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    runs = []
    for _ in range(3):
        runs.append(fresh_checkpoint(folder, "a lake"))
        assert not any(run.exists() for run in runs)
        (runs[-1] / "offsets").mkdir(parents=True)
    assert [entry for entry in folder.iterdir() if entry.is_dir()] == runs[-1:]
    with pytest.raises(StartError, match="belongs to lake a lake, not to another"):
        fresh_checkpoint(folder, "another")
    assert runs[-1].exists()

"""Rebuilds of a lake that die, as by kill -9."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.replay import rebuild
from storage.errors import UnfinishedLakeError
from storage.lake.buffered import BufferedLake
from storage.lake.lake import Lake


class Killed(BaseException):
    """What a test raises in place of a crash."""


def kill_before_the_row_of_the_lake(
    old: Path, new: Path, monkeypatch: pytest.MonkeyPatch, one_batch: bool = False
) -> None:
    """Let a rebuild die when all epochs are committed, before the row that makes them a lake."""
    append_now = BufferedLake.append_now

    def killed(lake: BufferedLake, table: str, rows: pa.Table) -> int:
        if table == "lake":
            raise Killed
        return append_now(lake, table, rows)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(BufferedLake, "append_now", killed)
        rebuild(str(old), str(new), one_batch)
    with pytest.raises(UnfinishedLakeError, match="run that `txlake replay --into` again"):
        Lake(str(new)).lake_id()

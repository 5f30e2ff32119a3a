"""What the tests of replays share: one lake with all that can happen, and ways to damage it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lake_rows import LakeRows
from tests.sound_lake import sound_rows


@pytest.fixture(scope="session")
def sound() -> LakeRows:
    return sound_rows()


@pytest.fixture(scope="session")
def sound_lake(sound: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "lake"
    sound.write(path)
    return path


@pytest.fixture
def changed(sound: LakeRows, sound_lake: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the sound lake with changes."""

    def write(change: Callable[[LakeRows], None]) -> Path:
        other = sound.copy()
        change(other)
        other.write_changed(tmp_path / "changed", sound_lake, sound)
        return tmp_path / "changed"

    return write

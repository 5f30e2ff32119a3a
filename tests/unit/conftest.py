"""What tests share: lakes with all that can happen, and ways to change and to damage them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.damage import KINDS, make_lake
from tests.support.lake_rows import LakeRows
from tests.support.sound_lake import sound_rows


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


@pytest.fixture(scope="session")
def whole_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake as a job leaves it, commit by commit: not to be changed."""
    return Path(make_lake(tmp_path_factory.mktemp("whole") / "lake").path)


@pytest.fixture(scope="session")
def other_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another lake with the same history."""
    return Path(make_lake(tmp_path_factory.mktemp("other") / "lake").path)


@pytest.fixture
def lake_copy(whole_lake: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole_lake, tmp_path / "lake")
    return tmp_path / "lake"


@pytest.fixture
def damaged(lake_copy: Path, other_lake: Path) -> Callable[[str, str], Path]:
    """Damage one table of a copy."""

    def make(table: str, kind: str) -> Path:
        KINDS[kind](lake_copy / table, other_lake / table)
        return lake_copy

    return make


@pytest.fixture
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers refuse at once: nobody writes this lake meanwhile."""
    monkeypatch.setattr("storage.lake.integrity.CHECK_TRIES", 1)
    monkeypatch.setattr("txlake._integrity.CHECK_TRIES", 1)

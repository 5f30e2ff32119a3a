"""A thread of the console keeps its lake, and its pages show what is at the lake's place now."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipelines.console.page_counts import PageCounts
from pipelines.console.page_lakes import PageLakes
from storage.errors import LakeError
from storage.files.location import lake_location
from storage.lake.lake import Lake
from tests.support.consumer_positions import commit_position
from tests.support.sound_lake import sound_rows


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "lake"
    sound_rows().write(path)
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "lake"))


def test_a_thread_keeps_its_lake_and_sees_what_is_written_since(path: Path) -> None:
    lakes = PageLakes(lake_location(str(path)))
    lake = lakes.open()
    before = lake.read("consumer_offsets").num_rows

    commit_position(Lake(str(path)), "readers", "orders", 0, 1)
    assert lakes.open() is lake
    assert lake.read("consumer_offsets").num_rows == before + 1


def test_two_threads_do_not_share_a_lake(path: Path) -> None:
    lakes = PageLakes(lake_location(str(path)))
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lakes.open).result() is not lakes.open()


def test_a_lake_that_is_damaged_is_refused_until_it_is_whole(path: Path) -> None:
    lakes = PageLakes(lake_location(str(path)))
    lakes.open()
    moved = shutil.move(path / "outcomes", path.with_name("outcomes"))
    with pytest.raises(LakeError, match="outcomes"):
        lakes.open()

    shutil.move(moved, path / "outcomes")
    assert lakes.open().read("outcomes").num_rows


def test_another_lake_at_the_same_place_is_shown(path: Path) -> None:
    lakes = PageLakes(lake_location(str(path)))
    counts = PageCounts()
    before = lakes.open().lake_id()
    groups = counts.of(lakes.open())["/consumers"]

    shutil.rmtree(path)
    sound_rows().write(path)  # its tables are at the same versions
    commit_position(Lake(str(path)), "another", "orders", 0, 1)
    assert lakes.open().lake_id() == Lake(str(path)).lake_id() != before
    assert counts.of(lakes.open())["/consumers"] == groups + 1

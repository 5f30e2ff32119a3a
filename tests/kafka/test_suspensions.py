"""A driver is suspended at every write of an epoch while another commits ten: it writes no more."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.local_broker.broker import Broker
from storage.lake.lake import Lake
from storage.verify.run import verify
from tests.support.crash_story import WRITES
from tests.support.job import settings_for
from tests.support.rig import decided_rows_of
from tests.support.suspended import AFTER, BEFORE, LAST, LightStory, Suspension, driver, run_all, story_of

CASES = [(write, mode) for write in WRITES for mode in (BEFORE, AFTER)]


@pytest.fixture(scope="module")
def story(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightStory]:
    folder = tmp_path_factory.mktemp("suspensions") / "lakes"
    folder.mkdir()
    settings = settings_for(
        broker,
        folder / "before",
        f"suspensions-{time.time_ns()}",
        transaction={"check_max": 1},
        lake={"pending_snapshot_epochs": 3},
    )
    yield story_of(settings, folder, "", {})
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def reference(story: LightStory) -> dict[str, list[str]]:
    """The rows of a lake whose driver was never suspended."""
    folder = copied(story, "reference")
    with driver(folder.with_suffix(".log"), run_all, story, folder) as alone:
        alone.require_end(0)
    return decided_rows_of(folder)


def copied(story: LightStory, name: str) -> Path:
    shutil.copytree(story.folder / "before", story.folder / name)
    return story.folder / name


def logs_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("_delta_log/*") if path.is_file()}


@pytest.mark.parametrize(("write", "mode"), CASES)
def test_one(story: LightStory, reference: dict[str, list[str]], write: str, mode: str) -> None:
    folder = copied(story, f"{write} {mode}".replace("/", "-").replace(" ", "-"))
    with driver(folder.with_suffix(".1.log"), run_all, story, folder, Suspension(write, mode)) as first:
        first.wait_until_stopped()
        with driver(folder.with_suffix(".2.log"), run_all, story, folder) as second:
            second.require_end(0)
        logs = logs_of(folder)
        first.go_on()
        first.require_end(1)
        print(first.said())
        assert logs_of(folder) == logs
    assert decided_rows_of(folder) == reference

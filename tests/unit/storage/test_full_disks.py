"""A disk without room: one sentence, and nothing that delta-rs writes over the screen."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from storage.lake.lake import Lake
from tests.support.damage import consume
from tests.support.operator import txlake
from txlake import LakeError


class FullDisk(NamedTuple):
    """As `os.statvfs` tells of one block that is free."""

    f_bavail: int = 1
    f_frsize: int = 4096


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says of a full disk; a real one: tests/kafka/test_full_disk.py."""
    monkeypatch.setattr("os.statvfs", lambda _: FullDisk())


@pytest.mark.usefixtures("no_room")
def test_rows_are_not_given_to_delta_where_they_have_no_room(lake_copy: Path) -> None:
    lake = Lake(str(lake_copy))
    rows = lake.read("outcomes")
    with pytest.raises(OSError, match="No space left on device"):
        lake.append("outcomes", rows, 99)
    assert Lake(str(lake_copy)).read("outcomes") == rows


@pytest.mark.usefixtures("no_room")
def test_a_consumer_says_that_its_lakes_disk_is_full(lake_copy: Path) -> None:
    with pytest.raises(LakeError, match=r"its disk refuses \(No space left on device\)"):
        consume(lake_copy)


def test_what_a_disk_refuses_to_a_command_is_one_sentence(
    lake_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/data/lake")

    monkeypatch.setattr("storage.lake.integrity.require_readable", refused)
    done = txlake("status", "--lake", str(lake_copy))
    assert (done.exit_code, done.output) == (
        1,
        "Error: the disk of /data/lake refuses (No space left on device): nothing is lost; make "
        "room\n",
    )

"""A lake in an object store is copied into the store, and onto a disk and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.backup import back_up
from storage.errors import LakeError
from storage.files.location import LakeLocation, lake_location
from storage.lake.integrity import require_intact
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from tests.support.damage import make_lake
from tests.support.maintenance_rounds import rows_in
from tests.support.store import Bucket


def rows(location: LakeLocation) -> dict[str, list[str]]:
    """Returns the rows of a lake, which is as whole as a start of the job wants it."""
    lake = Lake(location)
    lake.lake_id()
    require_intact(lake, read_progress(lake), is_exclusive=True)
    names = (*(name for name in read_progress(lake).tables), "epochs")
    return {name: sorted(map(repr, lake.read(name).to_pylist())) for name in names}


def test_a_lake_goes_from_disk_to_store_to_store_to_disk_and_is_the_same(
    bucket: Bucket, tmp_path: Path
) -> None:
    lake = make_lake(tmp_path / "lake")
    first = lake_location(f"{bucket.uri}/first", bucket.options)
    second = lake_location(f"{bucket.uri}/backups/2026", bucket.options)
    disk = lake_location(str(tmp_path / "back"))

    expected = rows(lake.location)
    for source, target in ((lake.location, first), (first, second), (second, disk)):
        result = back_up(Lake(source), target)
        assert result.copied_files == result.files > 10
        assert rows(target) == expected
    assert rows_in(tmp_path / "back") == rows_in(tmp_path / "lake")


def test_a_lake_is_not_copied_into_itself_by_the_other_name_of_its_store(
    bucket: Bucket, tmp_path: Path
) -> None:
    inside = f"{bucket.uri}/lake/inside".replace("s3://", "s3a://")
    back_up(make_lake(tmp_path / "lake"), lake_location(f"{bucket.uri}/lake", bucket.options))

    with pytest.raises(LakeError, match="lie in each other"):
        back_up(
            Lake(lake_location(f"{bucket.uri}/lake", bucket.options)),
            lake_location(inside, bucket.options),
        )

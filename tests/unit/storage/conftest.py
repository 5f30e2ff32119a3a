"""A lake with a file for each table and epoch, as the job leaves it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage.schemas import TABLES
from tests.support.maintenance_rounds import (
    Rows,
    rows_in,
)
from tests.support.sound_lake import sound_rows


@pytest.fixture(scope="session")
def appended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the sound lake as the job would, a file for each table and epoch; not to be changed."""
    rows = sound_rows()
    del rows.tables["consumer_offsets"]
    topics = [f"topics/{row['table_id']}" for row in rows.tables["catalog"]]
    return Path(rows.write(tmp_path_factory.mktemp("appended") / "lake", [*TABLES, *topics]).path)


@pytest.fixture
def many_files(appended: Path, tmp_path: Path) -> Path:
    """Return a copy of that lake."""
    shutil.copytree(appended, tmp_path / "lake")
    return tmp_path / "lake"


@pytest.fixture(scope="session")
def appended_rows(appended: Path) -> Rows:
    """Return all rows of that lake by table."""
    return rows_in(appended)

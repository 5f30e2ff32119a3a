"""`messages` of a lake with as many topics as settings allow, and more."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from pipelines.lake_sql import select, union_all
from pipelines.notebooks.open_lake import OpenLake
from storage.lake.lake import Lake
from tests.support.sound_lake import sound_rows


def test_thousands_of_topics_are_one_view() -> None:
    topics = 3_000
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute("SET preserve_insertion_order = false")  # as LakeSql has it
        connection.execute("CREATE TABLE rows AS SELECT 1 AS number")
        queries = [f"SELECT {topic} AS topic, * FROM rows" for topic in range(topics)]
        connection.execute(f"CREATE VIEW messages AS {union_all(queries)}")
        found = connection.execute("SELECT topic FROM messages").fetchall()
    assert sorted(topic for (topic,) in found) == list(range(topics))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(sound_rows().write(tmp_path_factory.mktemp("sound") / "lake").path)


def test_messages_are_whole_on_the_right_side_of_a_union(lake: Path) -> None:
    """With the order of rows kept, DuckDB 1.4.5 leaves out all topics but the first."""
    catalog = Lake(str(lake)).read("catalog", ["table_id"])
    tables = catalog["table_id"].unique().to_pylist()
    count = sum(Lake(str(lake)).read(f"topics/{table}").num_rows for table in tables)
    assert len(tables) > 1

    text = "SELECT topic FROM catalog UNION ALL SELECT topic FROM messages"
    rows, _ = select(Lake(str(lake)), text, 1_000_000)
    assert rows.num_rows == catalog.num_rows + count
    assert OpenLake(Lake(str(lake))).sql(text).height == catalog.num_rows + count

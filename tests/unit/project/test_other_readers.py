"""The other readers of docs/readers.md read a topic: each that can be installed here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.jvm.jars import class_path
from storage.lake.lake import Lake
from tests.support.optional import java_with_compiler, require

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "readers.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
READERS = Path(sys.prefix) / "readers" / "bin" / "python"

page: dict[str, Any] = {}
for block in BLOCKS:
    exec(block, page)  # noqa: S102


@pytest.fixture
def places(sound_lake: Path) -> list[tuple[int, int]]:
    """Return queue and offset of each message of topic `orders`, in order."""
    rows = Lake(str(sound_lake)).read(f"topics/{number_of(sound_lake)}").to_pylist()
    assert len(rows) > 5
    return sorted((row["queue_id"], row["queue_offset"]) for row in rows)


def number_of(lake: Path) -> int:
    rows = Lake(str(lake)).read("catalog").to_pylist()
    (number,) = {row["table_id"] for row in rows if row["topic"] == "orders"}
    return int(number)


def test_polars_and_pandas_read_a_topic(sound_lake: Path, places: list[tuple[int, int]]) -> None:
    by_polars = page["polars_topic"](str(sound_lake), "orders").collect()
    assert by_polars.select("queue_id", "queue_offset").rows() == places

    by_pandas = page["pandas_topic"](str(sound_lake), "orders")
    assert list(zip(by_pandas["queue_id"], by_pandas["queue_offset"], strict=True)) == places


def test_duckdb_reads_a_topic_by_arrow(sound_lake: Path, places: list[tuple[int, int]]) -> None:
    rows = page["duckdb_arrow_topic"](str(sound_lake), number_of(sound_lake))
    assert rows.project("queue_id, queue_offset").fetchall() == places


def test_duckdbs_own_reader_reads_a_topic(sound_lake: Path, places: list[tuple[int, int]]) -> None:
    require(READERS.exists(), "no duckdb-ext-delta (make .venv/.readers): its reader is not tried")
    (function,) = [block for block in BLOCKS if "import duckdb_ext" in block]
    program = (
        "import duckdb, json, sys\nduckdb.execute('SET enable_progress_bar = false')\n"
        f"{function}\nrows = duckdb_topic(sys.argv[1], 'orders')\n"
        "print(json.dumps(rows.project('queue_id, queue_offset').fetchall()))\n"
        "assert rows.fetchall()"
    )
    done = subprocess.run(
        [READERS, "-c", program, sound_lake], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [tuple(row) for row in json.loads(done.stdout)] == places


def test_delta_kernel_in_java_reads_a_topic(
    sound_lake: Path, places: list[tuple[int, int]], tmp_path: Path
) -> None:
    java = java_with_compiler()
    jars = class_path(["spark"])

    (program,) = re.findall(r"^```java\n(.*?)^```", PAGE, re.M | re.S)
    source = tmp_path / "ReadTopic.java"
    source.write_text(program, "utf-8")
    import pyspark  # its jars have Hadoop's client

    hadoop = Path(pyspark.__file__).parent / "jars" / "*"
    table = f"{sound_lake}/topics/{number_of(sound_lake)}"
    done = subprocess.run(
        [java, "-cp", f"{jars}:{hadoop}", source, table], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert sorted(found) == places

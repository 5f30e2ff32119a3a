"""`txlake jars path`: the class path for a Spark session that is not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from pipelines.cli.main import main
from pipelines.jvm.java import java_home
from tests.support.class_archive import quick_java
from tests.support.sound_lake import sound_rows

# Knows nothing of txlake: delta-spark alone.
PROGRAM = """
import sys
from pyspark.sql import SparkSession

class_path, table = sys.argv[1:]
delta = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.extraClassPath", class_path)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", delta)
    .getOrCreate()
)
print("rows:", spark.sql(f"SELECT * FROM delta.`{table}`").count())
spark.stop()
"""


def test_a_session_of_ones_own_reads_a_lake_with_the_printed_class_path(tmp_path: Path) -> None:
    printed = CliRunner().invoke(main, ["jars", "path", "spark"])
    assert printed.exit_code == 0, printed.output
    class_path = printed.output.strip()
    assert all(Path(jar).is_file() for jar in class_path.split(os.pathsep))
    lake = sound_rows().write(tmp_path / "lake")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, class_path, str(tmp_path / "lake" / "outcomes")],
        cwd=tmp_path,
        env={**environment, **quick_java(tmp_path / "temp"), "JAVA_HOME": str(java_home())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"rows: {lake.read('outcomes').num_rows}" in ran.stdout

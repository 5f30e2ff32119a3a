"""Secrets of [spark]: Spark has them, and nobody reads them beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SECRET = "hunter2-hunter2-hunter2"
NAME = "spark.hadoop.fs.s3a.encryption.key"

# A process of its own: the JVM of this one has been started already.
PROGRAM = f"""
import contextlib
import sys
from pathlib import Path

import psutil

from pipelines.jvm.session import start_session
from pipelines.settings import parse

settings = parse(
    {{
        "lake": {{"path": "lake"}},
        "kafka": {{"bootstrap_servers": "h:1"}},
        "spark": {{"{NAME}_file": sys.argv[1], "spark.executor.memory": "601m"}},
    }},
    "test",
)
spark = start_session("secrets", settings.spark, is_quiet=True)
hadoop = spark.sparkContext._jsc.hadoopConfiguration()
print("Spark has", hadoop.get("{NAME.removeprefix("spark.hadoop.")}"))

for process in psutil.Process().children(recursive=True):
    with contextlib.suppress(OSError):  # it has ended
        print("command line", Path(f"/proc/{{process.pid}}/cmdline").read_bytes())

spark.stop()
"""


def test_a_secret_of_spark_is_in_no_command_line(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "key")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr

    lines = ran.stdout.splitlines()
    assert f"Spark has {SECRET}" in lines

    command_lines = [line for line in lines if line.startswith("command line")]
    assert any("spark.executor.memory=601m" in line for line in command_lines)
    assert [line for line in command_lines if SECRET in line] == []

"""The command line itself: every command is found, and help waits for no heavy import."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click import Context

from pipelines.cli.main import main

HEAVY = ("pyarrow", "pandas", "duckdb", "deltalake", "confluent_kafka", "pyspark", "txlake",
         "starlette", "uvicorn", "jinja2")  # fmt: skip
LIGHT = "status", "top", "groups", "config", "console"


@pytest.mark.parametrize("name", main.list_commands(Context(main)))
def test_every_command_is_where_the_table_says(name: str) -> None:
    found = main.get_command(Context(main), name)
    assert found is not None and found.name == name


@pytest.mark.parametrize("name", LIGHT)
def test_help_imports_nothing_heavy(name: str) -> None:
    program = (
        "import sys\n"
        "from pipelines.cli.main import main\n"
        f"main([{name!r}, '--help'], standalone_mode=False)\n"
        f"print(sorted(set({HEAVY!r}) & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"

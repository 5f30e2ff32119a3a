"""The demo, whole: it agrees with itself, what it says to try works, nothing is left behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from examples.demo_agreement import disagreements
from examples.demo_folders import Folders
from examples.demo_sources import Sources
from examples.order_service import FEW_LAMPS
from tests.support.class_archive import quick_java
from tests.support.notebook_runs import PATHS, run, together

ROOT = Path(__file__).parent.parent.parent
ORDERS = 60
# Far more than it takes: the machine may do other things at the same time.
DEADLINE_S = 600.0


@contextmanager
def demo(lake: Path, temp: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the demo; end it as Ctrl-C does, if it still runs."""
    command = [
        sys.executable,
        "-m",
        "examples.demo",
        "--lake",
        str(lake),
        "--orders",
        str(ORDERS),
    ]
    environment = {**os.environ, **quick_java(temp), "COLUMNS": "80"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=DEADLINE_S)


def processes_that_name(folder: Path) -> list[str]:
    """Return the command lines of live processes that speak of a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def ends_of(lake: Path, topic: str) -> Counter[tuple[str, str]]:
    """Count the outcomes of the messages for a topic, with their causes."""
    columns = ["real_topic", "outcome", "cause"]
    rows = DeltaTable(str(lake / "outcomes")).to_pyarrow_table(columns=columns).to_pylist()
    return Counter((row["outcome"], row["cause"]) for row in rows if row["real_topic"] == topic)


def by_outcome(ends: Counter[tuple[str, str]]) -> Counter[str]:
    """Count ends by their outcome alone."""
    found: Counter[str] = Counter()
    for (outcome, _), count in ends.items():
        found[outcome] += count
    return found


def disagreements_now(lake: Path, killed: str) -> list[str]:
    """Look again at what a demo left, its Kafka aside, and give what does not agree."""
    folders = Folders(lake)
    seen = Sources(folders.lake, folders.orders, folders.points).look()
    return disagreements(replace(seen, killed=killed, published=seen.committed))


AGREED = (
    r"Agreed: (\d+) orders in SQLite = (\d+) messages in the topic table = (\d+) records in Kafka "
    r"= (\d+) points rows, each transaction once; (\d+) refused = (\d+) rolled back; "
    r"killed: 1 delivered; "
    r"(\d+) reminders, none before 5 s; always UNKNOWN: 1 given up after 15 checks\."
)


def agreed_numbers(output: str) -> tuple[int, int, int]:
    """Return how many orders were committed, how many refused, and how many reminders came."""
    agreed = re.search(AGREED, output)
    assert agreed is not None, output
    numbers = map(int, agreed.groups())
    committed, delivered, published, pointed, refused, rolled_back, reminders = numbers
    assert committed == delivered == published == pointed
    assert refused == rolled_back > 0
    assert reminders == FEW_LAMPS
    assert committed + refused == ORDERS
    return committed, refused, reminders


def check_notebooks(paths: list[Path], lake: Path, answered: int, delivered: int) -> None:
    """Run notebooks on the demo's lake: they show the same numbers."""
    shown = run(together(paths), TXLAKE_LAKE=str(lake))
    assert [one.text for one in shown if one.kind == "error"] == []
    (ends,) = [one.rows for one in shown if one.rows and one.rows[0][-1] == "the first one"]
    assert ("COMMITTED", "check_answer", str(answered)) in [row[:3] for row in ends]
    (numbers,) = [dict(one.rows) for one in shown if one.rows and one.rows[0] == ("what", "number")]
    assert int(numbers["messages delivered"]) == delivered


def try_what_it_says(output: str) -> str:
    """Run the commands that the demo says to try, but those that start all of it again."""
    commands = [line.strip() for line in output.splitlines() if line.startswith("  .venv/bin/")]
    assert len(commands) == 12
    told = ""
    for command in commands[:-5]:
        program, *arguments = shlex.split(command)
        here = Path(sys.executable).with_name(Path(program).name)
        done = subprocess.run(
            [str(here), *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        told += done.stdout
    return told


@pytest.mark.parametrize(
    "notebooks",
    [
        pytest.param(PATHS[:2], id="the notebooks that show its numbers"),
        # tests/unit/pipelines/test_notebooks.py runs each of them on another lake.
        pytest.param(PATHS, id="all notebooks", marks=pytest.mark.soak),
    ],
)
def test_demo_agrees_with_itself_and_what_it_says_to_try_next_works(
    tmp_path: Path, notebooks: list[Path]
) -> None:
    lake, temp = tmp_path / "lake", tmp_path / "temp"
    with demo(lake, temp) as process:
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    committed, refused, reminders = agreed_numbers(output)
    assert "order service killed with kill -9 after" in output
    assert "points service killed between its database and its offsets" in output
    assert "check-back: the restarted order service was asked" in output
    assert f"{reminders} after " in output
    # The killed one was asked about; on a busy machine others are, too, that took longer than 5 s.
    orders, with_reminder = ends_of(lake, "orders"), ends_of(lake, "reminders")
    assert orders["COMMITTED", "check_answer"] >= 1
    assert orders["COMMITTED", "operation"] > 0 and orders["ROLLED_BACK", "operation"] > 0
    assert orders["DISCARDED", "check_max"] == 1
    assert with_reminder["COMMITTED", "operation"] > 0
    assert by_outcome(orders) == {
        "COMMITTED": committed,
        "DISCARDED": 1,
        "ROLLED_BACK": refused,
    }
    assert by_outcome(with_reminder) == {
        "COMMITTED": reminders,
        "ROLLED_BACK": refused,  # only lamps run out, and each has a reminder
    }
    answered = (orders + with_reminder)["COMMITTED", "check_answer"]
    check_notebooks(notebooks, lake, answered, committed + reminders)
    assert list(temp.iterdir()) == []
    assert processes_that_name(tmp_path) == []
    told = try_what_it_says(output)
    assert f"{committed} messages, {committed} of them new" in told
    assert "COMMITTED, cause check_answer" in told
    assert "DISCARDED, cause check_max" in told

    # What it compares is read from where it says: one row less somewhere is one sentence more.
    (killed,) = re.findall(r" after \d+ orders: (\S+) is in its", " ".join(output.split()))
    assert disagreements_now(lake, killed) == []
    with closing(sqlite3.connect(Folders(lake).points)) as database, database:
        (lost,) = database.execute("SELECT transaction_id FROM points LIMIT 1").fetchone()
        database.execute("DELETE FROM points WHERE transaction_id = ?", (lost,))
    assert disagreements_now(lake, killed) == [f"{lost}: order in SQLite, but not points row"]


def test_demo_interrupted_leaves_no_process_and_no_temporary_file(tmp_path: Path) -> None:
    lake, temp = tmp_path / "lake", tmp_path / "temp"
    with demo(lake, temp) as process:
        deadline = time.monotonic() + DEADLINE_S
        while not any("pipelines" in found for found in processes_that_name(lake.parent)):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "the job was not started"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, output
    assert "Interrupted by SIGINT: all that was started has been stopped." in output
    assert list(temp.iterdir()) == []
    assert processes_that_name(tmp_path) == []


def test_demo_refuses_a_folder_that_it_did_not_make(tmp_path: Path) -> None:
    precious = tmp_path / "lake" / "precious"
    precious.parent.mkdir()
    precious.write_text("kept")
    with demo(tmp_path / "lake", tmp_path / "temp") as process:
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "is not empty and was not made by the demo" in output
    assert precious.read_text() == "kept"

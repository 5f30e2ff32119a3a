"""Where the demo's files are: the lake, and beside it what its programs need and write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from examples.demo_programs import ROOT, DemoError
from storage.errors import LakeLockedError, NotALakeError
from storage.files.location import lake_location
from storage.lake.lock import LakeLock

_MARK = ".made-by-txlake-demo"
# Short times, so that 15 checks take seconds and not minutes.
_SETTINGS = """# Written by the demo. Short times: see conf/local.toml for the usual ones.
[lake]
path = {lake}

[kafka]
bootstrap_servers = "{bootstrap_servers}"

[transaction]
transaction_timeout_ms = 5000   # a killed service's successor is asked some 6 s after its death
check_interval_ms = 500
check_max = {check_max}

[stream]
trigger_interval_ms = 500

[publish.main]                  # all topics, to topics of the same names
"""


@dataclass(frozen=True)
class Folders:
    """Name the demo's files."""

    lake: Path

    @property
    def beside(self) -> Path:
        """Name the folder of everything but the lake."""
        return self.lake.with_name(self.lake.name + "-files")

    @property
    def kafka(self) -> Path:
        """Name the broker's data folder."""
        return self.beside / "kafka"

    @property
    def conf(self) -> Path:
        """Name the job's settings."""
        return self.beside / "demo.toml"

    @property
    def orders(self) -> Path:
        """Name the order service's database."""
        return self.beside / "orders.sqlite"

    @property
    def points(self) -> Path:
        """Name the points service's database."""
        return self.beside / "points.sqlite"

    def make_anew(self) -> bool:
        """Delete what an earlier demo left, make both folders; say whether there was something.

        Errors: DemoError for a folder that is not empty and that no demo has made, for one that
        cannot be a lake's, and for a lake on which a job runs.
        """
        self._check_nobody_writes()

        folders = (self.lake, self.beside)
        for folder in folders:
            if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
                raise DemoError(
                    f"{folder} is not empty and was not made by the demo, which would delete it: "
                    "move it away, or name another place with --lake"
                )

        was_there = False
        for folder in folders:
            if folder.exists():
                was_there = True
                _delete(folder)
            folder.mkdir(parents=True)
            (folder / _MARK).touch()

        return was_there

    def _check_nobody_writes(self) -> None:
        try:
            location = lake_location(str(self.lake))
            if (self.lake / _MARK).exists():
                LakeLock(location, "demo").release()
        except (NotALakeError, LakeLockedError) as error:
            raise DemoError(str(error)) from None

    def write_conf(self, bootstrap_servers: str, check_max: int) -> None:
        """Write the job's settings."""
        text = _SETTINGS.format(
            lake=json.dumps(str(self.lake), ensure_ascii=False),  # a JSON text is a TOML text
            bootstrap_servers=bootstrap_servers,
            check_max=check_max,
        )
        self.conf.write_text(text, "utf-8")

    def next_steps(self, port: int, told_of: Sequence[str]) -> list[tuple[str, list[str]]]:
        """Return what to try next: what for, and commands for the folder of the clone.

        Input: `told_of`, the ids of transactions that are worth a closer look.
        """
        lake, beside = quote(short(self.lake)), quote(short(self.beside))
        python, txlake = ".venv/bin/python", ".venv/bin/txlake"
        return [
            (
                "What happened to the killed one, to one with a reminder, to the one given up:",
                [
                    f"{txlake} tx explain --lake {lake} {transaction_id}"
                    for transaction_id in told_of
                ],
            ),
            ("Does the lake keep its promises?", [f"{txlake} verify --lake {lake}"]),
            (
                "How many transactions ended how, and why (polars):",
                [
                    f"""{python} -c "import polars as pl; """
                    f"""print(pl.scan_delta('{short(self.lake)}/outcomes', use_pyarrow=True)"""
                    """.group_by('real_topic', 'outcome', 'cause').len().collect())\"""",
                ],
            ),
            (
                "Who was asked how often (duckdb over deltalake):",
                [
                    f"""{python} -c "import duckdb, deltalake; """
                    f"""checks = deltalake.DeltaTable('{short(self.lake)}/checks')"""
                    """.to_pyarrow_dataset(); """
                    """print(duckdb.sql('SELECT producer_group, count(*) AS checks, """
                    """count(DISTINCT (queue_id, queue_offset)) AS transactions """
                    """FROM checks WHERE acknowledged GROUP BY ALL'))\"""",
                ],
            ),
            (
                "Another consumer group reads the whole topic, without Kafka:",
                [
                    f"{python} -m examples.points_service --lake {lake} --group another "
                    f"--database {beside}/another.sqlite --until-idle",
                ],
            ),
            (
                "Go on where it stopped, each in a terminal of its own:",
                [
                    f"{txlake} broker --port {port} --data-dir {beside}/kafka",
                    f"{txlake} run --conf {beside}/demo.toml",
                    f"{txlake} publish --conf {beside}/demo.toml",
                    f"{python} -m examples.order_service --bootstrap-servers 127.0.0.1:{port} "
                    f"--database {beside}/orders.sqlite --orders 20",
                    f"{python} -m examples.points_service --lake {lake} "
                    f"--database {beside}/points.sqlite",
                ],
            ),
        ]


def _delete(folder: Path) -> None:
    """Delete a folder, its mark last, so that a deletion cut short can be finished."""
    for child in folder.iterdir():
        if child.name == _MARK:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()
    shutil.rmtree(folder)


def short(path: Path) -> str:
    """Name a path as one says it in the folder of the clone."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)

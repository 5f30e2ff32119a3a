"""Kill and stop the active driver again and again: how soon does the standby commit?

    python -m bench.standby --rounds 10 --store s3

A real broker, two drivers and steady traffic, each a process or thread of its own. In turns the
active driver is killed (SIGKILL of Python and its JVM) and stopped (SIGTERM); then a new standby is
started. The time is that from the signal to the commit of the first epoch after it, by the
`written_at` of its row. `--report` writes docs/benchmarks/standby.md.

Exit code: 0 when each message is there once and `verify` finds nothing; else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine
from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import REGION, Store
from pipelines.settings import Settings, parse
from storage.lake.lake import Lake
from storage.rows import milliseconds
from tests.support.processes import Process
from tests.support.standby_processes import Drivers, drivers_of
from tests.support.wait import wait_until

_REPORT = Path(__file__).parent.parent / "docs" / "benchmarks" / "standby.md"
_BUCKET = "lakes"
_SECRET = "TXLAKE_BENCH_SECRET_ACCESS_KEY"  # noqa: S105 (the name of a variable)
_PAUSE_S = 0.2
_WAYS = {"kill -9": Process.kill, "SIGTERM": Process.terminate}


@dataclass(frozen=True)
class Round:
    """One take-over. Units: s after the signal."""

    how: str
    committed_s: float


class Traffic(threading.Thread):
    """Committed transactions, one after the other, in a block."""

    def __init__(self, drivers: Drivers) -> None:
        super().__init__(name="traffic", daemon=True)
        self._drivers = drivers
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            self._drivers.send(f"message {len(self._drivers.sent)}")

    def __enter__(self) -> Traffic:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def take_over(drivers: Drivers, active: Process, how: str) -> Round:
    """Ends the active driver, and waits for the first epoch that is committed after it."""
    before = set(drivers.owners())
    signalled_ms = time.time() * 1000
    _WAYS[how](active)

    def committed() -> float | None:
        lake = Lake(drivers.settings.lake.location())
        rows = lake.read("epochs", ["state", "owner", "written_at"])
        times = [
            milliseconds(row["written_at"])
            for row in rows.to_pylist()
            if row["state"] == "committed" and (row["owner"] not in before or how == "kill -9")
        ]
        return min((at for at in times if at > signalled_ms), default=None)

    found = wait_until(committed, "an epoch of the standby")
    active.end()
    return Round(how, (found - signalled_ms) / 1000)


def measure(drivers: Drivers, rounds: int) -> list[Round]:
    """Runs so many rounds, in turns of both kinds."""
    active = drivers.start_active()
    found = []
    with Traffic(drivers):
        for number in range(rounds):
            standby = drivers.start_standby()
            found.append(take_over(drivers, active, list(_WAYS)[number % len(_WAYS)]))
            print(f"round {number + 1}: {found[-1].how}, {found[-1].committed_s:.1f} s", flush=True)
            active = standby
    drivers.wait_for_sent()
    drivers.check()
    return found


@contextlib.contextmanager
def location(folder: Path, kind: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields where the lake is, and the section [lake.store] of the job's settings."""
    if kind == "local":
        yield str(folder / "lake"), {}
        return

    with Store(folder / "store") as store:
        store.create_bucket(_BUCKET)
        os.environ[_SECRET] = store.keys.secret_access_key

        yield (
            f"s3://{_BUCKET}/lake",
            {
                "endpoint": store.endpoint,
                "allow_http": "true",
                "region": REGION,
                "access_key_id": store.keys.access_key_id,
                "secret_access_key_env": _SECRET,
            },
        )


def run(rounds: int, kind: str, folder: Path) -> list[Round]:
    """Measures on a lake and a broker of its own."""
    with Broker(folder / "broker") as broker, location(folder, kind) as (path, store):
        values = {
            "lake": {"path": path, "store": dict(store)},
            "kafka": {"bootstrap_servers": broker.bootstrap_servers, "queues": 2},
        }
        settings: Settings = parse(values, "standby")
        with drivers_of(settings, folder, store) as drivers:
            return measure(drivers, rounds)


def table(found: list[Round]) -> str:
    """Returns the rounds of each kind in a line, as Markdown."""
    lines = ["| ended by | rounds | median | least | most |", "|---|---|---|---|---|"]
    for how in _WAYS:
        seconds = [one.committed_s for one in found if one.how == how]
        if seconds:
            middle = statistics.median(seconds)
            lines.append(
                f"| {how} | {len(seconds)} | {middle:.1f} s | {min(seconds):.1f} s | "
                f"{max(seconds):.1f} s |"
            )
    return "\n".join(lines)


def report(text: str, kind: str, found: Mapping[str, Any]) -> str:
    """Returns the page. Input: the machine, as it was before the rounds."""
    return (
        "# How soon a standby commits\n\n"
        "From the signal to the active driver to the commit of the first epoch after it, under "
        "steady traffic.\n"
        f"`python -m bench.standby --report`, lake: {kind}, commit {machine.commit()}, "
        f"{found['cores']} cores of {found['processor']}, load before {found['load_before']}.\n\n"
        f"{text}\n"
    )


def main() -> int:
    """Run and print. Output: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--store", choices=["local", "s3"], default="local", help="Where it is.")
    parser.add_argument("--report", action="store_true", help="Write the page.")
    options = parser.parse_args()

    before = machine.machine()
    with tempfile.TemporaryDirectory(prefix="txlake-standby-") as folder:
        try:
            found = run(options.rounds, options.store, Path(folder))
        except AssertionError as error:
            print(error)
            return 1

    print(table(found))

    if options.report:
        _REPORT.parent.mkdir(parents=True, exist_ok=True)
        _REPORT.write_text(report(table(found), options.store, before))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure how fast the whole is, on this machine, and write a report.

    python -m bench --size small --figures drain,latency

A real broker, the real job, the SDK's producers and consumers, each a process of its own. Sizes:
full (an hour), small (twenty minutes), tiny (shows that the programs work; its
numbers say nothing). Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench import machine, report
from bench.figure import Figure
from bench.job_process import BenchError
from bench.sizes import SIZES, Size
from bench.workbench import Workbench
from pipelines.jvm.jars import JarError
from pipelines.local_broker.broker import Broker

_ROOT = Path(__file__).parent.parent
# In this order: later ones take what earlier ones measured.
FIGURES = ("drain", "size_on_disk", "sustained", "latency", "memory", "start_idle", "on_a_store")


def measure(bench: Workbench, names: Sequence[str]) -> report.Report:
    """Measure figures; one that fails is named, the others go on.

    Stopped by Ctrl-C or SIGTERM, it reports those that were measured until then.
    """
    found: list[Figure] = []
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    load: dict[str, float] = {}
    date = dt.datetime.now(dt.timezone.utc)
    place = machine.machine()

    for name in names:
        began = time.monotonic()
        try:
            measured = importlib.import_module(f"bench.figures.{name}").measure(bench)
        except (BenchError, JarError) as error:
            failed[name] = str(error)
            bench.say(f"{name}: not measured: {error}")
            measured = []
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            bench.say(f"{name}: not measured")
            traceback.print_exc()
            measured = []
        except (KeyboardInterrupt, SystemExit):
            failed[name] = "the benchmark was stopped"
            break

        seconds[name] = round(time.monotonic() - began, 1)
        load[name] = round(os.getloadavg()[0], 1)
        found += measured

        for figure in measured:
            bench.say(
                f"{figure.name}: {report.number_text(figure.value)} {figure.unit}, {figure.verdict}"
            )

    return report.Report(
        bench.size.name,
        date.isoformat(timespec="seconds"),
        machine.commit(),
        place,
        machine.versions(),
        dataclasses.asdict(bench.size),
        seconds,
        load,
        found,
        failed,
    )


def _chosen(text: str | None, parser: argparse.ArgumentParser) -> list[str]:
    if text is None:
        return list(FIGURES)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FIGURES:
            parser.error(f"no figure {name!r}; there are: {', '.join(FIGURES)}")
    return [name for name in FIGURES if name in names]


def _sized(options: argparse.Namespace) -> Size:
    size = SIZES[options.size]
    if options.transactions:
        size = dataclasses.replace(size, drain_transactions=options.transactions)
    if options.seconds:
        size = dataclasses.replace(
            size, sustained_s=options.seconds, latency_s=options.seconds, idle_s=options.seconds
        )
    return size


def main() -> None:
    """Read the command line, measure, write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--figures", help="names, comma separated; all without it")
    parser.add_argument("--list", action="store_true", help="print the figures' names")
    parser.add_argument("--transactions", type=int, help="of the drains, instead of the size's")
    parser.add_argument("--seconds", type=float, help="of the figures that last, instead of its")
    parser.add_argument("--report", type=Path, help="a folder for the report")
    parser.add_argument("--profile", type=Path, help="profile the jobs, into this folder")
    parser.add_argument("--folder", type=Path, help="for all data; kept. Default: a temporary one")
    options = parser.parse_args()
    if options.list:
        print("\n".join(FIGURES))
        return
    names = _chosen(options.figures, parser)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # everything is ended on the way out
    folder = options.folder or Path(tempfile.mkdtemp(prefix="txlake-bench-"))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    try:
        with Broker(folder / "kafka") as broker:
            bench = Workbench(_sized(options), folder, broker, say, options.profile)
            written = measure(bench, names)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    # Only a report of everything stands beside the documents, and its JSON is too long for that.
    reports = "build" if options.figures else "docs"
    into = options.report or _ROOT / reports / "benchmarks" / options.size
    json_into = options.report or _ROOT / "build" / "benchmarks" / options.size
    report.write(written, into, json_into)
    say(f"the report is in {into}")
    sys.exit(1 if written.failed else 0)


if __name__ == "__main__":
    main()

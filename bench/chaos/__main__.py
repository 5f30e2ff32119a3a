"""Kills the job, its producers and its consumer again and again: nothing is lost or comes twice.

    python -m bench.chaos --kills 100 --seed 1 --report build/chaos.json

A real broker, the job, two producers of the SDK, one that writes Kafka records of every kind by
hand, and a consumer, each a process of its own. A seed fixes who is killed how, and after how
long, and with which settings the job starts; what the killed one was just doing it cannot fix. At
the end the job is restarted in good order once, nothing new is sent, and everything is decided.
The producers' journals, the lake's tables and what the consumer saw are compared
(`bench/chaos/compare.py`, `bench/chaos/raw_compare.py`), `txlake verify` looks at the lake, and
its epochs are run again and have to give the same rows.

Exit code: 0 when all agree; 1 with every difference named. Without --lake all files are in a
temporary folder, which stays only when something differs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench.chaos.kills import Kill, schedule, with_lost_answers
from bench.chaos.report import differences, facts_of, report
from bench.chaos.run import Chaos
from bench.lake_store import LakeStore, lake_store
from pipelines.jvm.jars import JarError, jar_paths
from tests.support.cluster import Cluster


def run(
    lake: Path,
    folder: Path,
    kills: Sequence[Kill],
    seed: int,
    say: Callable[[str], None] = lambda text: None,
    seconds_max: float = float("inf"),
    cluster: Cluster | None = None,
    store: LakeStore | None = None,
    drivers: int = 1,
    *,
    is_published: bool = False,
) -> tuple[Chaos, Mapping[str, Any]]:
    """Carries out kills and compares. Output: the ended run and its report.

    After `seconds_max` no more are killed; the report counts those that were.
    """
    started = time.monotonic()
    chaos = Chaos(lake, folder, seed, cluster, store, drivers, is_published=is_published)

    with chaos:
        for number, kill in enumerate(kills, 1):
            if time.monotonic() - started > seconds_max:
                break
            chaos.carry_out(kill)

            say(
                f"{time.monotonic() - started:6.1f} s, kill {number} of {len(kills)}:"
                f" {kill.name} + {kill.pause_s:.1f} s{_answers(chaos, kill)}"
            )

        chaos.restart_in_good_order()
        say(f"{time.monotonic() - started:6.1f} s: restarted in good order")
        chaos.wait_for_common()  # an end after a discard comes under the last settings alone

        chaos.settle(600.0 + 0.5 * len(kills))
        say(f"{time.monotonic() - started:6.1f} s: all ended; comparing")

    facts = facts_of(chaos)
    found = differences(chaos, facts)
    return chaos, report(chaos, facts, time.monotonic() - started, found)


def _answers(chaos: Chaos, kill: Kill) -> str:
    return f", {chaos.counts.lost_answers[-1]} answers lost" if kill.loses_answers else ""


def _parser() -> argparse.ArgumentParser:
    """Returns what reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)

    parser.add_argument("--pause-max", type=float, default=8.0, help="seconds before a kill")
    parser.add_argument("--minutes-max", type=float, default=60.0, help="kill no longer than this")
    parser.add_argument("--kill-broker", action="store_true", help="the broker is killed too")

    parser.add_argument(
        "--cluster",
        action="store_true",
        help="on a standalone Spark cluster, whose executors are killed, too",
    )
    parser.add_argument(
        "--store", choices=["s3"], help="the lake is on an S3 server of this machine"
    )
    parser.add_argument(
        "--lost-answers",
        type=int,
        default=0,
        metavar="KILLS",
        help="so many kills happen while the store does what it is asked and loses answers",
    )

    parser.add_argument(
        "--drivers",
        type=int,
        choices=[1, 2],
        default=1,
        help="with two, one stands by; both are killed, stopped and suspended",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="two publishers of one name and a Kafka consumer run, and are killed, too",
    )

    parser.add_argument("--lake", type=Path, help="a new folder; other files go beside it")
    parser.add_argument("--report", type=Path, help="write the report there as JSON")

    return parser


def _require_jars(parser: argparse.ArgumentParser) -> None:
    try:
        jar_paths("store")
    except JarError as error:
        parser.error(str(error))


def main() -> None:
    """Reads the command line, runs, prints the report."""
    parser = _parser()
    options = parser.parse_args()

    kills = schedule(
        options.kills,
        options.seed,
        options.pause_max,
        options.kill_broker,
        options.cluster,
        options.drivers == 2,
        options.published,
    )

    if options.lost_answers and not options.store:
        parser.error("--lost-answers needs a store: --store s3")

    try:
        kills = with_lost_answers(kills, options.seed, options.lost_answers)
    except ValueError as error:
        parser.error(f"--lost-answers: {error}")

    if options.store:
        _require_jars(parser)

    has_proxy = options.lost_answers > 0
    temp = None if options.lake else Path(tempfile.mkdtemp(prefix="txlake-chaos-"))
    lake = options.lake or (temp or Path()) / "lake"
    folder = lake.with_name(f"{lake.name}-files")

    for place in (lake, folder / "store"):
        if place.exists() and any(place.iterdir()):
            parser.error(f"{place} is not empty: name a new folder for the lake")

    is_agreed = False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # everything is ended on the way out

    try:
        with (
            Cluster(folder / "cluster") if options.cluster else nullcontext() as cluster,
            lake_store(folder / "store", has_proxy=has_proxy)
            if options.store
            else nullcontext() as store,
        ):
            _, figures = run(
                lake,
                folder,
                kills,
                options.seed,
                lambda text: print(text, flush=True),
                60 * options.minutes_max,
                cluster,
                store,
                options.drivers,
                is_published=options.published,
            )

        text = json.dumps(figures, indent=1, default=str)
        print(text)
        if options.report:
            options.report.parent.mkdir(parents=True, exist_ok=True)
            options.report.write_text(text + "\n", "utf-8")
        is_agreed = not figures["differences"]
    finally:
        if temp is not None:
            if is_agreed:
                shutil.rmtree(temp, ignore_errors=True)
            else:
                print(f"what is left of the run is in {temp}", file=sys.stderr)

    sys.exit(0 if is_agreed else 1)


if __name__ == "__main__":
    main()

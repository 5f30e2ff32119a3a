"""Measure what ours and RocketMQ sustain on the same two cores, in turns, and write a report.

    python -m bench.peer --rounds 3 --seconds 60 --sizes 256,2048

RocketMQ's jars are fetched at the first run. Nothing else should run on the machine meanwhile: a
turn begins when the load is below --load-max.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import machine, report
from bench.bodies import RANDOM
from bench.figure import Figure
from bench.peer import java_program, sides, turns
from bench.peer.rocketmq import BROKER_JAVA, CLIENT_JAVA
from bench.sample_data import Mix
from bench.sizes import SMALL, Size
from pipelines.jvm.jars import JarError

_ROOT = Path(__file__).parents[2]
_CORES = 2
_LOOK_S = 5.0
_SAID_S = 60.0  # between two lines about a load that is waited for


def wait_until_quiet(
    load_max: float,
    say: Callable[[str], None],
    load: Callable[[], float] = lambda: os.getloadavg()[0],
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Waits until the machine's load of a minute is below a limit; returns how long, in s.

    Input: 0: nothing is waited for. It says what it waits for, once a minute.
    """
    waited_s = 0.0
    while load_max and load() >= load_max:
        if waited_s % _SAID_S == 0:
            say(f"  waiting: the load is {load():.2f}, a turn begins below {load_max}")
        sleep(_LOOK_S)
        waited_s += _LOOK_S
    return waited_s


def run(bench: sides.Bench, sizes: Sequence[int], rounds: int, load_max: float) -> report.Report:
    """Take turns on a quiet machine; a turn that fails is named, the others go on.

    Stopped by Ctrl-C or SIGTERM, it reports the rounds until then.
    """
    date = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    place = machine.machine()
    done = list[turns.Turn]()
    parameters = {**_parameters(bench.size, rounds), "load_max": load_max}
    failed = dict[str, str]()
    seconds = dict[str, float]()
    load = dict[str, float]()
    for body_bytes, number, side in _order(sizes, rounds):
        name = f"{body_bytes} B, round {number}, {side}"
        bench.say(name)
        began = time.monotonic()
        try:
            waited_s = wait_until_quiet(load_max, bench.say)
            load[name] = round(os.getloadavg()[0], 2)
            bench.say(f"  load {load[name]} after {waited_s:.0f} s of waiting")
            began = time.monotonic()
            done.append(sides.measure(bench, side, body_bytes, number))
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        except (KeyboardInterrupt, SystemExit):
            failed[name] = "the benchmark was stopped"
            break
        else:
            turn = done[-1]
            bench.say(f"  {turn.rate:,.0f} tx/s, {turn.processor_us:.0f} us of processor each")
        seconds[name] = round(time.monotonic() - began, 1)

    found: list[Figure] = []
    for body_bytes in sizes:
        found += turns.figures(done, body_bytes, parameters)
    versions = {"rocketmq": java_program.rocketmq_version(), **machine.versions()}

    return report.Report(
        "peer: ours beside RocketMQ",
        date,
        machine.commit(),
        place,
        versions,
        parameters,
        seconds,
        load,
        found,
        failed,
    )


def _order(sizes: Sequence[int], rounds: int) -> list[tuple[int, int, str]]:
    """Returns size, round and side of each turn; a size ends with one turn on RocksDB."""
    order = []
    for body_bytes in sizes:
        for number in range(1, rounds + 1):
            order += [(body_bytes, number, turns.OURS), (body_bytes, number, turns.PEER)]
        order.append((body_bytes, 1, turns.PEER_ON_ROCKSDB))
    return order


def _parameters(size: Size, rounds: int) -> dict[str, Any]:
    mix = Mix()

    return {
        "rounds": rounds,
        "seconds": size.sustained_s,
        "warm_up_s": size.warm_up_s,
        "in_flight": size.in_flight,
        "body": RANDOM,
        "rolled_back": mix.rolled_back,
        "unanswered": mix.unanswered,
        "rocketmq_threads": sides.THREADS,
        "rocketmq_broker_java": " ".join(BROKER_JAVA),
        "rocketmq_client_java": " ".join(CLIENT_JAVA),
        "rocketmq_flush": "ASYNC_FLUSH",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="that a turn is measured")
    parser.add_argument("--warm-up", type=float, default=float(SMALL.warm_up_s), help="s, before")
    parser.add_argument(
        "--load-max",
        type=float,
        default=0.5,
        help="the load of a minute below which a turn begins; 0: at once",
    )
    parser.add_argument("--sizes", default="256,2048", help="of bodies, bytes, comma separated")
    parser.add_argument("--report", type=Path, help="a folder for the report")
    parser.add_argument("--folder", type=Path, help="for all data. Default: a temporary one")
    parser.add_argument("--fetch", action="store_true", help="fetch RocketMQ's jars, no more")
    parser.add_argument("--lock", action="store_true", help="resolve the jars anew, and end")
    return parser


def main() -> None:
    """Read the command line, take turns, write the report."""
    parser = _parser()
    options = parser.parse_args()
    try:
        sizes = [int(text) for text in options.sizes.split(",")]
    except ValueError:
        parser.error(f"--sizes {options.sizes!r}: whole numbers, comma separated")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # everything is ended on the way out
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    try:
        if options.lock:
            say("Ivy reads about 190 poms one after another, and fetches the jars: some minutes")
            say(f"{java_program.make_lock()} jars are in {java_program.LOCK}")
            return
        say(f"{java_program.fetch()} jars fetched")
        if options.fetch:
            return
    except JarError as error:
        sys.exit(str(error))
    # Java and Spark see as many processors as they may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])
    size = dataclasses.replace(
        SMALL, name="peer", sustained_s=options.seconds, warm_up_s=options.warm_up
    )
    folder = Path(tempfile.mkdtemp(prefix="txlake-peer-", dir=options.folder))
    try:
        class_path = java_program.compile_program(folder / "classes")
        written = run(
            sides.Bench(size, folder, class_path, say), sizes, options.rounds, options.load_max
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    into = options.report or _ROOT / "docs" / "benchmarks" / "peer"
    report.write(written, into, options.report or _ROOT / "build" / "benchmarks" / "peer")
    say(f"the report is in {into}")
    sys.exit(1 if written.failed else 0)


if __name__ == "__main__":
    main()

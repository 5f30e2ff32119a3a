"""Run tens of thousands of epochs on one lake: does anything grow for ever?

    python -m bench.soak --epochs 20000 --retention 2000

One process, on a simulated clock: an epoch is a minute, the retention so many epochs. Traffic of
all kinds (`bench/soak/stories.py`) at a steady rate.

Real: the epochs of the job (plan, decide, apply, ask, commit), landing and decoding, Delta tables
on the local disk, the job's maintenance after each epoch, a consumer of the SDK, `verify`.
Not real: Kafka, whose records are handed over in memory and whose checks are acknowledged at once;
Spark, whose tasks are called in this process (`tests/support/local_landing.py`). Files and logs are
kept for 2 s of the machine's clock instead of minutes and hours, about as many epochs as with the
defaults. Undeliverable messages are kept for ever by design: some are made at the beginning alone.

Looks at the lake 100 times. The report has the mean of each quarter of disk, files, entries of
logs, memory and times, and the last over the second: what is 1.05 or less met its aim. Curves stand
beside it. Times are compared with those of a reference, the same few epochs of a new lake in
another process at each look, as a machine does not stay equally fast.

Ctrl-C or SIGTERM ends it after the epoch that runs, and it reports what was looked at until then.

Exit code: 0 when `verify` finds nothing, whatever grew.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import machine, report
from bench.figure import Figure
from bench.soak.growth import QUARTERS, by_table, figures
from bench.soak.job import SoakJob
from bench.soak.look import Look, look
from bench.soak.memory_job import Spent
from bench.soak.reference import Reference
from storage.lake.lake import Lake
from storage.verify.run import verify

_LOOKS, _BETWEEN = 100, 10  # as many looks, or one every so many epochs
_REPORT = Path(__file__).parents[2] / "build" / "soak"


def run(
    job: SoakJob,
    reference: Reference,
    epochs: int,
    say: Callable[[str], None],
    is_stopped: Callable[[], bool],
) -> list[Look]:
    """Runs all epochs, or those before a stop. Output: what was looked at on the way."""
    between = max(1, epochs // _LOOKS, min(_BETWEEN, epochs // 8))
    looks: list[Look] = []
    spent: list[Spent] = []

    for number in range(1, epochs + 1):
        spent.append(job.run())
        if number % between == 0:
            looks.append(look(job, spent, reference))
            spent.clear()
            if len(looks) % 10 == 0:
                say(_told(looks[-1]))

        if is_stopped():
            say(f"stopped after epoch {number}")
            break
    return looks


def _told(found: Look) -> str:
    spent = found.spent
    return (
        f"epoch {found.epoch}: {spent.epoch_s * 1e3:.0f} ms, "
        f"{spent.epoch_processor_s * 1e3:.0f} ms of processor "
        f"({found.reference.epoch_processor_s * 1e3:.0f} ms the reference), maintenance "
        f"{spent.upkeep_s * 1e3:.0f} ms; {found.data_bytes.total() / 1e6:.1f} MB in "
        f"{found.data_files.total()} files, {found.log_files.total()} entries of logs; "
        f"resident {found.resident_bytes / 1e6:.0f} MB; state {found.state_rows} rows"
    )


def happened(lake: Lake) -> dict[str, dict[str, int]]:
    """Returns how many of each kind the lake still holds."""
    columns = {
        "outcomes": "cause",
        "conflicts": "reason",
        "deliveries": "action",
        "admin": "result",
        "half": "error",
    }
    return {
        table: dict(Counter(str(v) for v in lake.read(table, [column])[column].to_pylist()))
        for table, column in columns.items()
    }


def verified(job: SoakJob) -> Figure:
    """Returns the figure of `verify`: how many violations it finds."""
    began = time.monotonic()
    found = verify(Lake(job.lake.path))
    violated = {f.invariant.name: f.rows[:3] for f in found.findings if f.violations}

    return Figure(
        "violations",
        sum(f.violations for f in found.findings),
        "rows",
        "`verify` at the end",
        better="less",
        must=0.0,
        details={
            "violated": violated,
            "seconds": round(time.monotonic() - began, 1),
            "numbers": found.numbers,
            "floor": job.last.floor.as_parameter(),
            "messages consumed": job.consumed,
            **happened(job.lake),
        },
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=20_000)
    parser.add_argument("--retention", type=int, help="in epochs; a tenth of them without it")
    parser.add_argument("--seed", type=int, default=1, help="what the traffic is drawn from")
    parser.add_argument("--folder", type=Path, help="for the lake; kept. Default: a temporary one")
    parser.add_argument("--report", type=Path, default=_REPORT, help="a folder for the report")

    options = parser.parse_args()
    options.retention = options.retention or max(8, options.epochs // 10)
    if options.folder is not None and (options.folder / "lake").exists():
        parser.error(f"{options.folder} has a lake: a soak begins with a new one")

    return options


def main() -> int:
    """Runs, writes the report and prints the ratios. Output: the exit code."""
    options = _options()
    stopped = threading.Event()
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, lambda *_: stopped.set())
    parameters: dict[str, Any] = {
        "epochs": options.epochs,
        "retention": options.retention,
        "seed": options.seed,
    }
    place = machine.machine()
    began = time.monotonic()
    date = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="txlake-soak-") as temporary:
        folder = (options.folder or Path(temporary)) / "lake"
        with (
            closing(Reference()) as reference,
            closing(SoakJob(folder, options.retention, options.seed)) as job,
        ):
            looks = run(job, reference, options.epochs, say, stopped.is_set)
            sound = verified(job)
    if len(looks) < len(QUARTERS):
        say("stopped too early: there is nothing to compare")
        return 1
    parameters["epochs"] = looks[-1].epoch
    found = [*figures(looks, parameters), sound]
    seconds, load = round(time.monotonic() - began, 1), round(os.getloadavg()[0], 1)
    report.write(
        report.Report(
            "soak",
            date,
            machine.commit(),
            place,
            machine.versions(),
            {**parameters, **by_table(looks)},
            {"soak": seconds},
            {"soak": load},
            found,
            {},
        ),
        options.report,
    )
    for figure in found:
        print(
            f"{figure.name:26} {report.number_text(figure.value):>6}  {figure.verdict:10}  "
            f"{', '.join(map(str, figure.samples))}"
        )
    say(f"the report is in {options.report}")
    return 0 if sound.value == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

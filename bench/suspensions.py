"""Suspend a driver at every write of an epoch, while another commits ten: it writes nothing more.

    python -m bench.suspensions --store s3

A real broker, a lake on a disk or on an S3 server of this machine, and for each write, right before
it and right after it (on a disk also between an entry's draft and its name), two driver processes.
The first stops itself by SIGSTOP. The second finishes its epoch and commits ten. Then the first
gets SIGCONT: it must end with one sentence and exit code 1, and leave each byte of the tables' logs
as it was; the rows must be those of a run without a suspension. At last a driver is suspended in a
merge, and before it deletes files (VACUUM): it must replace and delete none.

The drivers land without Spark (`tests/support/local_landing.py`); tests suspend the whole job.
Exit code: 0 when all hold; else 1, with what differs.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import machine
from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import Store
from tests.support.job import settings_for
from tests.support.store import make_bucket
from tests.support.suspensions import (
    CASES,
    DISK_CASES,
    MAINTENANCE,
    LightStory,
    reference_of,
    require_no_maintenance,
    require_no_more_writes,
    story_of,
)

_NAME = "suspensions"


@contextlib.contextmanager
def new_story(folder: Path, kind: str) -> Iterator[LightStory]:
    """Yields the story, with a broker of its own. Input: where its lakes are, local or s3."""
    lakes = folder / "lakes"
    lakes.mkdir()
    with Broker(folder / "broker") as broker, contextlib.ExitStack() as stack:
        sections = {"transaction": {"check_max": 1}, "lake": {"pending_snapshot_epochs": 3}}
        settings = settings_for(broker, lakes, _NAME, **sections)
        if kind == "local":
            yield story_of(settings, lakes)
            return
        bucket = make_bucket(stack.enter_context(Store(folder / "store")), _NAME)
        yield story_of(settings, bucket.folder, bucket.uri, bucket.options)


def run(story: LightStory, say: Callable[[str], None]) -> tuple[Counter[str], list[str]]:
    """Runs all cases. Output: what held, counted by the first driver's last words; what did not."""
    reference = reference_of(story)
    held: Counter[str] = Counter()
    failed: list[str] = []

    cases: list[tuple[str, Callable[[], str]]] = [
        (
            f"{write}, {mode}",
            lambda write=write, mode=mode: require_no_more_writes(  # type: ignore[misc]
                story, reference, write, mode
            ),
        )
        for write, mode in (*CASES, *(() if story.uri else DISK_CASES))
    ]
    cases += [
        (step, lambda step=step: require_no_maintenance(story, reference, step))  # type: ignore[misc]
        for step in MAINTENANCE
    ]

    for name, require in cases:
        began = time.monotonic()
        try:
            said = require()
        except AssertionError as error:
            failed.append(f"{name}: {error}")
            say(f"FAILED {failed[-1]}")
            continue

        held[_kind(said)] += 1
        say(f"{time.monotonic() - began:5.1f} s  {name}: {said}")
    return held, failed


def _kind(said: str) -> str:
    known = ("was planned by", "was committed by", "is the active driver of the lake")
    return next((words for words in known if words in said), said)


def main() -> int:
    """Runs and prints. Output: the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--store", choices=["local", "s3"], default="local", help="Where it is.")
    options = parser.parse_args()

    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="txlake-suspensions-") as folder,
        new_story(Path(folder), options.store) as story,
    ):
        held, failed = run(story, lambda text: print(text, flush=True))

    print(
        f"lake: {options.store}, commit {machine.commit()}: {held.total()} of "
        f"{held.total() + len(failed)} held in {time.monotonic() - began:.0f} s"
    )

    for words, count in held.most_common():
        print(f"{count:4d}  {words}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

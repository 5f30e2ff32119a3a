"""Measure the console's pages on a large lake: the time until a page is there, in this process.

Run: python -m bench.console_speed FOLDER [TRANSACTIONS]

Makes the lake in FOLDER where it is missing. Prints the shortest and the median of some looks, and
the processor time of one, which tells more on a busy machine. Kafka is not asked.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from starlette.testclient import TestClient

from bench.synthetic_lake import EPOCH_MS, EPOCH_ROWS, START_MS, half_place, make
from pipelines.cli.options import open_intact_lake
from pipelines.cli.status import facts_of
from pipelines.console.app import console_app
from pipelines.console.context import ConsoleContext
from storage.files.location import lake_location

RUNS = 5
FILES = 100


def pages(transactions: int) -> dict[str, str]:
    """Return the pages to measure, by what they show."""
    middle = transactions // 2 + 11
    queue_id, queue_offset = half_place(middle)
    return {
        "overview, 1 h": "/",
        "overview, 7 d": "/?since=7d",
        "what is pending": "/transactions",
        "the newest transactions": "/transactions?state=all&since=any",
        "a group's transactions": "/transactions?state=all&since=any&group=shop",
        "find by keys": f"/find?q=order-{middle}",
        "find nothing": "/find?q=unknown",
        "a story": f"/story?of={queue_id}-{queue_offset}",
        "dead": "/dead",
        "groups": "/groups",
        "conflicts": "/conflicts",
        "topics": "/topics",
        "a topic": "/topic?name=orders",
        "consumers": "/consumers",
        "delayed": "/delayed",
    }


def client_of(lake: Path) -> TestClient:
    """Return a client of the lake's console."""
    place = lake_location(str(lake))
    site = ConsoleContext(
        place.path, lambda: open_intact_lake(place), lambda opened: facts_of(opened, None),
        hosts=frozenset({"localhost"}),
    )  # fmt: skip
    return TestClient(console_app(site), base_url="http://localhost", follow_redirects=False)


def main(folder: Path, transactions: int) -> None:
    """Measure, and print a line a page."""
    lake = folder / f"lake-{transactions}-{FILES}"
    if not lake.exists():
        make(str(lake), transactions, FILES)
    # The last epoch is a second old, so that the curves have all of them.
    now_ns = (START_MS + transactions // EPOCH_ROWS * EPOCH_MS + 1_000) * 1_000_000
    time.time_ns = lambda: now_ns
    console = client_of(lake)
    console.get("/")  # imports
    for what, path in pages(transactions).items():
        spans, before = [], time.process_time()
        for _ in range(RUNS):
            began = time.perf_counter()
            answer = console.get(path)
            spans.append(time.perf_counter() - began)
            assert answer.status_code in (200, 303), (path, answer.status_code, answer.text)
        used = (time.process_time() - before) / RUNS
        print(
            f"{what:26s} best {min(spans):.2f} s, median {statistics.median(spans):.2f} s, "
            f"processor {used:.2f} s"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)

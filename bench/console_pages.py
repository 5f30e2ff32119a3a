"""How long each page of the console takes on a large lake.

Run: python -m bench.console_pages [TRANSACTIONS] [LOOKS]

Makes a lake of a million transactions (`bench/synthetic_lake.py`) that ends now, with two consumer
groups, one of which has read nothing. Starts `txlake console` on it, looks at each page once so
that everything is imported, then at each page several times, one after the other, as a browser
does. Prints a row for each: the first look, the median and the longest of the others, the
console's processor time for one of them (on a machine that others use it tells more), and the size
of the page. Kafka is not asked: what waits for it is not this figure's. Everything is in a
temporary folder.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from bench import synthetic_lake
from bench.synthetic_lake import EPOCH_MS, EPOCH_ROWS, QUEUES
from storage.lake.lake import Lake
from tests.support.consumer_positions import commit_position

FILES = 100
# Addresses that need the settings, and with them Kafka; and one that needs a dead message.
NOT_MEASURED = ("/publishers", "/skip", "/alter_topic", "/consumer_resume", "/consumer_drop")
_SHOWN = (200, 303)


def half(number: int) -> str:
    """Return the place of a transaction's half, as pages write it."""
    return f"{number % QUEUES}-{number // QUEUES}"


def addresses(transactions: int) -> list[str]:
    """Return the addresses to look at: every kind of page, and searches that read much."""
    middle = transactions // 2 + 11  # asked once, and ended by the answer
    pending = transactions - EPOCH_ROWS + 7
    delayed = transactions - EPOCH_ROWS + 17
    everything = "/transactions?state=all&since=any"
    messages = "/messages?topic=orders"

    return [
        "/",
        "/?since=7d",
        "/transactions",
        everything,
        f"{everything}&limit=100",
        f"{everything}&group=shop",
        f"{everything}&keys=order-{middle}",
        f"/find?q=order-{middle}",
        f"/find?q={synthetic_lake.transaction_id(middle)}",
        "/find?q=shop",
        "/find?q=unknown",
        f"/story?of={half(middle)}",
        f"/record?of=half:{half(middle)}",
        f"/download?of=half:{half(middle)}",
        "/dead",
        "/groups",
        "/conflicts?since=90d",
        "/topics",
        "/topic?name=orders",
        messages,
        f"{messages}&queue=1&from={transactions // 10}",
        f"{messages}&since=10m",
        f"{messages}&keys=unknown",
        f"/message?topic=orders&queue=1&offset={transactions // 10}",
        "/consumers",
        "/consumer?group=behind",
        "/consumer_dead",
        "/consumer_retries",
        "/delayed",
        f"/commit?target=half:{half(pending)}",
        "/commit?max=10",
        f"/rollback?target=half:{half(pending)}",
        f"/ask?target=half:{half(pending)}",
        f"/cancel?target=half:{half(delayed)}",
        "/resume?max=10",
        "/create_topic?topic=bills&queues=4",
        "/position?group=behind&topic=orders&to=latest",
        f"/written?do=commit&at=0.half:{half(middle)}",
        "/login",
    ]


def make_lake(path: str, transactions: int) -> None:
    """Write the lake, and two consumer groups of it."""
    epochs = transactions // EPOCH_ROWS
    synthetic_lake.START_MS = time.time_ns() // 1_000_000 - epochs * EPOCH_MS
    synthetic_lake.make(path, transactions, min(FILES, epochs))

    for queue in range(QUEUES):
        commit_position(Lake(path), "reading", "orders", queue, transactions // QUEUES // 2)
        commit_position(Lake(path), "behind", "orders", queue, 0)


@contextmanager
def console(lake: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run the console of a lake. Gives the host and port at which it listens, and its process."""
    command = [sys.executable, "-m", "pipelines", "console", "--lake", lake, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            host = urlsplit(process.stdout.readline().strip()).netloc
            yield host, psutil.Process(process.pid)
        finally:
            process.terminate()


def processor_s(process: psutil.Process) -> float:
    """Return the processor time that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def look(host: str, address: str) -> tuple[float, int]:
    """Return how long a page takes, in seconds, and its size, in bytes."""
    connection = HTTPConnection(host)
    began = time.perf_counter()
    connection.request("GET", address)
    answer = connection.getresponse()
    body = answer.read()
    seconds = time.perf_counter() - began

    connection.close()
    assert answer.status in _SHOWN, (address, answer.status, body.decode(errors="replace"))
    return seconds, len(body)


def main(transactions: int = 1_000_000, looks: int = 5) -> None:
    """Measure, and print a row a page."""
    with tempfile.TemporaryDirectory() as folder:
        lake = str(Path(folder) / "lake")
        make_lake(lake, transactions)

        with console(lake) as (host, process):
            pages = addresses(transactions)
            first = {address: look(host, address)[0] for address in pages}

            print("| page | first | median | longest | processor | bytes |")
            print("|---|---|---|---|---|---|", flush=True)
            for address in pages:
                before = processor_s(process)
                seen = [look(host, address) for _ in range(looks)]
                processor = (processor_s(process) - before) / looks

                seconds = [each for each, _ in seen]
                spans = (first[address], statistics.median(seconds), max(seconds), processor)
                columns = " | ".join(f"{span:.2f} s" for span in spans)
                print(f"| `{address}` | {columns} | {seen[0][1]:,} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

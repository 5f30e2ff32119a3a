"""Compare the epochs of this checkout with those of another one, in turns: A, B, A, B.

    git worktree add ../before COMMIT
    python -m bench.epoch_turns ../before --rounds 20

Both run in processes of their own, on lakes and topics of their own, over one broker; only one of
them works at a time, so that the noise of the machine hits both alike. It prints the medians of
each and, for the ratios, the median over the rounds. Bodies are random bytes: an earlier commit's
sample data has no others.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from pipelines.local_broker.broker import Broker

_WORKER = Path(__file__).parent / "epoch_turns_worker.py"
HERE = Path(__file__).resolve().parents[1]
_WARM_UP = 3
_END_TIMEOUT_S = 60


class Worker:
    """One checkout's epochs, in a process of its own. Input: its lake's name."""

    def __init__(self, checkout: Path, servers: str, name: str) -> None:
        paths = os.pathsep.join([str(checkout), str(checkout / "client")])
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}

        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER), servers, name],
            env=environment,
            cwd=checkout,
            text=True,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

        self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a worker ended; its error is above")
        return line

    def run(self, transactions: int, body_bytes: int, unanswered: float) -> dict[str, Any]:
        """Run one epoch. Output: seconds, processor_s, bytes, step_ms."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{transactions} {body_bytes} {unanswered}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    def close(self) -> None:
        """End the process, and what it has started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()


@click.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False))
@click.option("--rounds", default=20, show_default=True)
@click.option("--transactions", default=[1_000, 20_000], multiple=True, show_default=True)
@click.option("--body-bytes", default=[256], multiple=True, show_default=True)
@click.option("--unanswered", default=0.05, show_default=True)
def main(
    before: str,
    rounds: int,
    transactions: tuple[int, ...],
    body_bytes: tuple[int, ...],
    unanswered: float,
) -> None:
    """Take turns between the checkout BEFORE and this one."""
    with tempfile.TemporaryDirectory(prefix="txlake-turns-") as folder:
        broker = Broker(Path(folder) / "broker")
        broker.start()
        try:
            servers = broker.bootstrap_servers
            workers = {
                "before": Worker(Path(before).resolve(), servers, "before"),
                "after": Worker(HERE, servers, "after"),
            }

            for count in transactions:
                for size in body_bytes:
                    _compare(workers, rounds, count, size, unanswered)

            for worker in workers.values():
                worker.close()
        finally:
            broker.stop()


def _compare(
    workers: dict[str, Worker], rounds: int, transactions: int, body_bytes: int, unanswered: float
) -> None:
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    for number in range(_WARM_UP + rounds):
        for name, worker in workers.items():
            sample = worker.run(transactions, body_bytes, unanswered)
            if number >= _WARM_UP:
                samples[name].append(sample)

    click.echo(f"{transactions} transactions an epoch, bodies of {body_bytes} B, {rounds} rounds")

    for figure in ("seconds", "processor_s", "bytes"):
        values = {name: [s[figure] for s in found] for name, found in samples.items()}
        medians = {name: statistics.median(found) for name, found in values.items()}
        pairs = zip(values["before"], values["after"], strict=True)
        ratio = statistics.median(after / max(earlier, 1e-9) for earlier, after in pairs)

        click.echo(
            f"  {figure}: before {medians['before']:.4g}, after {medians['after']:.4g}, "
            f"after / before {ratio:.3f}"
        )

    for name, found in samples.items():
        steps = {step: [s["step_ms"].get(step, 0) for s in found] for step in found[0]["step_ms"]}
        text = ", ".join(f"{step} {statistics.median(ms):.0f}" for step, ms in steps.items())
        click.echo(f"  steps {name} (ms, medians): {text}")


if __name__ == "__main__":
    main()

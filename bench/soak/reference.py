"""The same few epochs of a new lake again and again: how fast the machine is at the moment."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

from bench.soak.job import SoakJob
from bench.soak.memory_job import Spent, mean

_BEFORE, _EPOCHS, _RETENTION, _SEED = 5, 20, 8, 1


class Reference:
    """A process beside the soak's that runs the same epochs at each call.

    A machine can be three times as fast as it was minutes ago: what an epoch of an old lake takes
    is compared with what these take at the same time. The process grows older too, by 25 epochs at
    each call: an eighth as fast as the soak, if it looks every 200 epochs.
    """

    def __init__(self) -> None:
        self._process = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
        )

    def close(self) -> None:
        """Ends the process."""
        self._process.shutdown()

    def run(self) -> Spent:
        """Returns what an epoch took, a mean. Errors: those of the epochs."""
        return self._process.submit(_spent).result()


def _spent() -> Spent:
    with (
        tempfile.TemporaryDirectory(prefix="txlake-soak-reference-") as folder,
        closing(SoakJob(Path(folder, "lake"), _RETENTION, _SEED)) as job,
    ):
        for _ in range(_BEFORE):
            job.run()
        return mean([job.run() for _ in range(_EPOCHS)])

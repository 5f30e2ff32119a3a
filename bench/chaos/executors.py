"""The processes that carry the bytes of a job on a cluster: one is killed, Spark starts another."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil

from tests.support.cluster import Cluster

_TIMEOUT_S = 120.0
_POLL_S = 0.05


def kill_one(cluster: Cluster, part: str, look: Callable[[], None]) -> None:
    """Kills by SIGKILL one process of a kind, as soon as there is one.

    Input: `part`: one of `EXECUTOR_PARTS`; `look`: called while there is none.
    """
    found = {
        "an executor": cluster.executors,
        "a daemon": cluster.daemons,
        "a worker": cluster.python_workers,
    }[part]

    deadline = time.monotonic() + _TIMEOUT_S
    while not (there := found()) and time.monotonic() < deadline:
        look()
        time.sleep(_POLL_S)

    for chosen in there[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            chosen.kill()

"""How long after it is sent a message could be read with an earlier commit's job."""

from __future__ import annotations

from bench.figure import Figure
from bench.job_process import BenchError
from bench.latency_ratio import ratios
from bench.workbench import Workbench


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between the job before and this one, with the same load."""
    if bench.before is None:
        raise BenchError("name the commit to compare with: --before")
    return ratios(
        bench, "latency, p{per_cent}, after / before",
        "p{per_cent} of the latency at {rate} tx/s with the SDK's defaults, now / before",
        (("before", {"checkout": bench.before.folder}), ("after", {})), must=1.0, aim=0.6,
        before=bench.before.commit,
    )  # fmt: skip

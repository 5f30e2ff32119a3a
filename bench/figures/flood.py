"""How long others wait while one producer group floods, over the same without it."""

from __future__ import annotations

from bench.figure import Figure
from bench.latency_ratio import ratios
from bench.load_flood import FLOOD_GROUP, TOPICS
from bench.workbench import Workbench


def measure(bench: Workbench) -> list[Figure]:
    """Take turns between the load alone and the same load beside a group that floods."""
    return ratios(
        bench, "flood, p{per_cent}",
        "p{per_cent} of the latency at {rate} tx/s while another group writes as many records a "
        "second: halves that nobody ends, sets that never become complete, commits to "
        f"{TOPICS} topics, and operations that name nothing / the same without it",
        (("alone", {}), ("beside", {"flood_rate": bench.size.rate})), must=2.0,
        flood_group=FLOOD_GROUP,
    )  # fmt: skip

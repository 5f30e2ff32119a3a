"""Notebook 4: whether history is what the rules make of it, and what other parameters make."""

from __future__ import annotations

import polars as pl
import pyarrow.compute as pc

from pipelines.notebooks.open_lake import OpenLake
from pipelines.replay import Verified, WhatIf
from txlake._counted import counted

# Parameters for `what_if`: how often, how long, how many.
_ASKED_ABOUT = ("transaction_timeout_ms", "check_interval_ms", "check_max", "half_retention_ms",
                "check_rate_max", "late_end_policy")  # fmt: skip


def verdict(verified: Verified) -> str:
    """Returns one sentence that says what a verification found."""
    if verified.is_equal:
        result = "every row is there, bit for bit, and no other"
    else:
        result = counted(pc.sum(verified.compared["differences"]).as_py(), "difference")
    return (
        f"{counted(verified.transactions, 'transaction')} of epochs {verified.first_epoch} to "
        f"{verified.last_epoch}, run again in {verified.seconds:.1f} s: {result}"
    )


def parameters(lake: OpenLake) -> pl.DataFrame:
    """Returns the parameters in force at the newest epoch that a question can change."""
    rows = [(name, str(lake.last.parameters[name])) for name in _ASKED_ABOUT]
    return pl.DataFrame(rows, schema=["parameter", "in force"], orient="row")


def numbers(answer: WhatIf) -> pl.DataFrame:
    """Returns the counts of history beside those that other parameters would have given."""
    return pl.DataFrame(answer.numbers).with_columns(
        difference=pl.col("what_if").cast(pl.Int64) - pl.col("history").cast(pl.Int64)
    )

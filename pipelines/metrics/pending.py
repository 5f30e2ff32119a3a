"""The halves of a state, counted: pending ones by topic, and those that are given up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from checker.match.columns import truth, where


@dataclass(frozen=True)
class Pending:
    """How many halves wait, by real topic, and are given up; when the oldest were stored.

    Units: ms.
    """

    by_topic: Mapping[str, int]
    oldest_at: int | None
    given_up: int
    given_up_oldest_at: int | None


def pending_of(halves: pa.Table) -> Pending:
    """Returns the counts. Input: HALVES."""
    is_pending = truth(halves["discard_cause"].is_null())
    narrow = halves.select(["real_topic", "stored_at"])
    rows, given_up = where(narrow, is_pending), where(narrow, ~is_pending)
    counts = pc.value_counts(rows["real_topic"]).to_pylist()
    return Pending(
        {row["values"]: row["counts"] for row in counts},
        pc.min(rows["stored_at"]).as_py(),
        given_up.num_rows,
        pc.min(given_up["stored_at"]).as_py(),
    )

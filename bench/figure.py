"""A figure of the benchmark: a number, what it must be, and how it was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

MET, REACHED, MISSED, NOT_JUDGED = "must met", "aim reached", "missed", "not judged"
Better = Literal["more", "less"]


@dataclass(frozen=True)
class Plot:
    """A picture of a figure. `lines`: name -> points; bars are points whose x is a text."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, list[tuple[Any, float]]]
    kind: Literal["line", "dots", "bars"] = "line"


@dataclass(frozen=True)
class Figure:
    """One line of the report.

    `value` None: it could not be measured, `details` say why. `samples` are what the value was made
    of. `must` and `aim` are None where nothing is asked.
    """

    name: str
    value: float | None
    unit: str
    how: str
    better: Better = "more"
    must: float | None = None
    aim: float | None = None
    samples: Sequence[float] = ()
    details: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    plots: Sequence[Plot] = ()

    @property
    def verdict(self) -> str:
        """Returns the verdict on the value."""
        if self.value is None:
            return MISSED if self.must is not None else NOT_JUDGED
        if self.aim is not None and self._is_at_least_as_good_as(self.aim):
            return REACHED
        if self.must is None:
            return NOT_JUDGED
        return MET if self._is_at_least_as_good_as(self.must) else MISSED

    def _is_at_least_as_good_as(self, wanted: float) -> bool:
        assert self.value is not None
        return self.value >= wanted if self.better == "more" else self.value <= wanted


def percentile(samples: Sequence[float], per_cent: float) -> float:
    """Return the smallest sample that so many of all do not exceed (nearest rank).

    Errors: ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples: nothing was measured")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(per_cent / 100 * len(ordered)) - 1)]


def summary(samples: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Describe many samples by a few numbers."""
    found = {f"p{p}": round(percentile(samples, p), digits) for p in (50, 90, 99)}
    return {"count": len(samples), **found, "max": round(max(samples), digits)}

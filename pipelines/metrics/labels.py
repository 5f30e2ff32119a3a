"""A bounded number of label values: the first names have their own, the rest share one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from pipelines.metrics.catalog import LABELS_MAX, OTHER

_FOLDED_MAX: Final = 10_000  # names without a label that are remembered, to count them once

N = TypeVar("N", int, float)


class Labels:
    """The label values of one label, given to names in the order in which they come."""

    def __init__(self, limit: int = LABELS_MAX) -> None:
        self._limit = limit
        self._own: set[str] = set()
        self._folded: set[str] = set()

    @property
    def folded(self) -> int:
        """Returns how many names share `other`; no more than 10,000 are counted."""
        return len(self._folded)

    def of(self, name: str | None) -> str:
        """Returns the label value of a name. A record without one counts as `other`."""
        if name is None or name in self._own:
            return OTHER if name is None else name
        if name != OTHER and len(self._own) < self._limit:
            self._own.add(name)
            return name
        if len(self._folded) < _FOLDED_MAX:
            self._folded.add(name)
        return OTHER

    def summed(self, values: Mapping[str, N]) -> dict[str, N]:
        """Returns values by label value; those that share one are added up."""
        return self._by_label(values.items(), is_sum=True)

    def largest(self, values: Mapping[str, N]) -> dict[str, N]:
        """Returns values by label value; of those that share one the largest."""
        return self._by_label(values.items(), is_sum=False)

    def _by_label(self, items: Iterable[tuple[str, N]], *, is_sum: bool) -> dict[str, N]:
        found: dict[str, N] = {}
        for name, value in items:
            label = self.of(name)
            there = found.get(label)
            if there is None:
                found[label] = value
            else:
                found[label] = there + value if is_sum else max(there, value)
        return found

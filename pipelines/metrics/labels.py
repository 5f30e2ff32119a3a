"""A bounded number of label values: the first names have their own, the rest share one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from pipelines.metrics.catalog import LABELS_MAX, OTHER

_FOLDED_MAX: Final = 10_000  # names without a label that are remembered, to count them once

N = TypeVar("N", int, float)


class Labels:
    """The label values of one label, given to names in the order in which they come."""

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._folded: set[str] = set()

    @property
    def overflowed(self) -> int:
        """Returns how many names share `other`; no more than 10,000 are counted."""
        return len(self._folded)

    def of(self, name: str | None) -> str:
        """Returns the label value of a name; a missing name counts as `other`."""
        if name is None:
            return OTHER
        if name in self._own:
            return name

        if name != OTHER and len(self._own) < LABELS_MAX:
            self._own.add(name)
            return name

        if len(self._folded) < _FOLDED_MAX:
            self._folded.add(name)
        return OTHER

    def by_label(self, values: Mapping[str, N], join: Callable[[N, N], N]) -> dict[str, N]:
        """Returns values by label value. Input: `join` combines two values that share a label."""
        joined: dict[str, N] = {}
        for name, value in values.items():
            label = self.of(name)
            joined[label] = join(joined[label], value) if label in joined else value
        return joined

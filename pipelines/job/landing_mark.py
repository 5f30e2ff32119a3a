"""The mark of a landing that runs: a start that finds one knows that the run before died of it.

It stands in the checkpoint's folder while records are landed. A JVM that dies, for lack of memory
say, leaves it behind. The next start lands a quarter of the records at once. It goes back to the
usual steps when it has landed those that the run before could not land.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipelines.kafka_client.connection import Partition

_NAME: Final = "landing.json"
_SMALLER: Final = 4


@dataclass(frozen=True)
class DiedLanding:
    """A landing that its run did not survive: its end offsets, and the divisor of smaller steps."""

    ends: Mapping[Partition, int]
    divisor: int

    def is_landed(self, landed: Mapping[Partition, int]) -> bool:
        """Returns whether all of it is landed. Input: the committed ends, by partition."""
        return all(landed.get(partition, 0) >= end for partition, end in self.ends.items())


class LandingMark:
    """The mark in a checkpoint's folder, which exists."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._is_ours = False

    def died(self) -> DiedLanding | None:
        """Returns the landing that an earlier run died of; None if it ended otherwise."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            ends = {(topic, int(partition)): int(end) for topic, partition, end in content["ends"]}
            return DiedLanding(ends, int(content["divisor"]) * _SMALLER)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @contextmanager
    def over(self, ends: Mapping[Partition, int], divisor: int) -> Iterator[None]:
        """Marks a landing: the mark goes when the landing succeeds, and stays when it fails.

        Input: its end offsets; the divisor of this run's limits.
        """
        content = {
            "divisor": divisor,
            "ends": [[*partition, end] for partition, end in ends.items()],
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(content), encoding="utf-8")
        os.replace(new, self._path)
        self._is_ours = True

        yield

        self.clear()

    def clear(self) -> None:
        """Removes the mark of a landing of this run; that of an earlier run stays."""
        if not self._is_ours:
            return
        with suppress(OSError):
            self._path.unlink()

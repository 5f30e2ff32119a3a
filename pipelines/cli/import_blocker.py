"""A light start: commands that run no Spark do without pandas.

Arrow imports pandas, if it is installed, with the first array of Python values: 400 modules, half
the time of a short command. Spark's Python needs pandas; nothing else of ours does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

# The commands that start a Spark of their own, or print what one would need.
WITH_SPARK: Final = frozenset(
    {"run", "replay", "backfill", "spark-submit", "environment", "doctor", "jars"}
)


class PandasBlocker:
    """A finder of modules that finds no pandas. Errors: ModuleNotFoundError."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns None: the next finders look for any other module."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is hidden from commands without Spark", name=name)
        return None


def block_pandas(arguments: Sequence[str]) -> None:
    """Hides pandas from this process, unless its command can need it.

    Input: the arguments of `txlake` on the command line.
    """
    if WITH_SPARK.isdisjoint(arguments[:1]):
        sys.meta_path.insert(0, PandasBlocker())

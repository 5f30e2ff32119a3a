"""The libraries that only a reader of a lake needs: Arrow and Delta, the extra `consumer`.

ImportError    one of them is missing; the sentence says what to install
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_NEEDED: Final = ("pyarrow", "deltalake", "numpy")

_missing = [name for name in _NEEDED if find_spec(name) is None]
if _missing:
    raise ImportError(
        f"reading a lake needs {', '.join(_missing)}: install txlake with its extra, "
        "txlake[consumer]; in a clone: pip install './client[consumer]'"
    )

import pyarrow as pa  # noqa: E402 - it is there

__all__ = ["pa"]

"""Python's garbage collector as programs that send or read many messages a second set it."""

from __future__ import annotations

import gc

_OBJECTS = 50_000  # new ones between two looks; 700 by default


def look_rarely() -> None:
    """Leaves out what is there now, and looks at new objects seldom.

    Messages hold no cycles. With the defaults the collector takes a tenth of a producer's time, and
    a sixth of a consumer's.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, 20, 100)

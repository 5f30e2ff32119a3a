"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Long enough for a machine that others load: it is never what a test asserts.
DEADLINE_S = 240.0
# Between two looks. A long one, as at a lake, is followed by a longer pause: what is waited for
# needs the processor, too.
_PAUSE_S = 0.02
_PAUSES_A_LOOK = 3
_PAUSE_MAX_S = 0.5


def wait_until(
    is_met: Callable[[], Any],
    what: str,
    deadline_s: float = DEADLINE_S,
    seen: Callable[[], Any] = lambda: "",
) -> Any:
    """Wait for a condition and give what it gave; say what was seen last when time is up."""
    end = time.monotonic() + deadline_s
    while True:
        began = time.monotonic()
        found = is_met()
        if found:
            return found

        now = time.monotonic()
        if now > end:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}; seen last: {seen()!r}")
        time.sleep(min(max(_PAUSE_S, _PAUSES_A_LOOK * (now - began)), _PAUSE_MAX_S))

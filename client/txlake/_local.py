"""An application's code, called so that whatever it does is one of three answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from txlake.listener import LocalTransactionState

log = logging.getLogger("txlake.listener")

_REMARK_CHARACTERS_MAX = 300  # enough for an exception's first line


def run_guarded(call: Callable[..., Any], *args: Any) -> tuple[LocalTransactionState, str]:
    """Returns the state that a call gives, and a remark that says why it counts as UNKNOWN.

    Errors: an Exception counts as UNKNOWN; others (KeyboardInterrupt) are raised.
    """
    try:
        state = call(*args)
    except Exception as error:
        log.exception("a listener failed; its answer counts as UNKNOWN")
        text = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
        return LocalTransactionState.UNKNOWN, text[:_REMARK_CHARACTERS_MAX]
    if not isinstance(state, LocalTransactionState):
        log.error("a listener answered %r; it counts as UNKNOWN", state)
        return LocalTransactionState.UNKNOWN, f"not a LocalTransactionState: {type(state).__name__}"
    return state, ""

"""Listeners of a consumer group, run until a test has seen what it waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.wait import wait_until
from txlake import ConsumedMessage, Consumer

Listener = Callable[[Sequence[ConsumedMessage]], Any]


def run_until(
    lake_path: str,
    listener: Listener,
    is_met: Callable[[], bool],
    seen: Callable[[], Any] = lambda: "",
    **options: Any,
) -> None:
    """Run a listener of the group points on topic orders until something is so."""
    with Consumer(lake_path, "points", ["orders"]) as consumer:
        thread = threading.Thread(
            target=consumer.run, args=(listener,), kwargs={"commit_interval_ms": 100, **options}
        )
        thread.start()
        try:
            wait_until(is_met, "what the listener was run for", seen=seen)
        finally:
            consumer.stop()
            thread.join()


def refuse(messages: Sequence[ConsumedMessage]) -> None:
    """Refuse messages, as a listener that expects JSON."""
    raise ValueError(f"no JSON: {messages[0].keys}")

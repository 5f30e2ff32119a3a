"""The time limit of a stop: a command that has not ended by itself by then is ended."""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

STOP_S: Final = 10.0


class StopLimit:
    """Ends this process with exit code 0 if it has not ended `STOP_S` after a stop.

    Input: `given_up`: what is given up, for the log. That is as kill -9, which whatever runs here
    must survive anyway.
    """

    def __init__(self, given_up: str) -> None:
        self._given_up = given_up
        self._is_begun = threading.Lock()
        self._is_over = threading.Event()

    def begin(self) -> bool:
        """Begins the time limit. Output: whether this was the first call; others do nothing.

        Signals interrupt each other, and one comes in a thread, or when all is over.
        """
        is_first = self._is_begun.acquire(blocking=False)
        if is_first:
            threading.Thread(target=self._run, name="txlake-stop-limit", daemon=True).start()
        return is_first

    def end(self) -> None:
        """Takes the time limit back: the command ends by itself."""
        self._is_over.set()

    def _run(self) -> None:
        if self._is_over.wait(STOP_S):
            return
        logging.getLogger("txlake").warning("not stopped within %.0f s: %s", STOP_S, self._given_up)
        logging.shutdown()
        os._exit(0)

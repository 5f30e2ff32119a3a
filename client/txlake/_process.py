"""The process of a client's object: its threads and handles do not survive a fork.

After fork() a child has the memory of its parent and none of its threads: a Kafka client there
waits for reports that never come, and two consumers own the same queues.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable

from txlake.errors import ClosedError

log = logging.getLogger("txlake.process")


class ProcessGuard:
    """The process that an object was made in. `name`: of the object, for errors and warnings."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process_id = os.getpid()

    @property
    def is_here(self) -> bool:
        """Returns whether this is the process that the object was made in."""
        return os.getpid() == self._process_id

    def check(self) -> None:
        """Checks that an object can be used here. Errors: ClosedError in a process that forked."""
        if not self.is_here:
            raise ClosedError(
                f"the {self._name} was made before a fork: make a {self._name} in each process"
            )

    def close_when_dropped(
        self, owner: object, close: Callable[[], None]
    ) -> weakref.finalize[..., object]:
        """Lets `close` run, with a ResourceWarning, when nothing refers to the owner any more.

        Input: `close` must not refer to the owner.
        Output: the finalizer; an owner that is closed detaches it.
        """
        finalizer = weakref.finalize(owner, self._close_dropped, close)
        finalizer.atexit = False  # at the end of a process its threads end with it
        return finalizer

    def _close_dropped(self, close: Callable[[], None]) -> None:
        if not self.is_here:
            return

        # The garbage collector runs on any thread, one that closing waits for among them.
        threading.Thread(
            target=_close, args=(self._name, close), name="txlake-close", daemon=True
        ).start()
        warnings.warn(
            f"a {self._name} was not closed: use `with`, or call close()",
            ResourceWarning,
            stacklevel=2,
        )


def _close(name: str, close: Callable[[], None]) -> None:
    try:
        close()
    except Exception as error:  # halves that were not stored, say
        log.warning("a %s that was not closed: %s", name, error)


_forked_after_use = False
_is_delta_used = False


def note_delta_is_used() -> None:
    """Notes that this process has used Delta's library, whose threads do not survive a fork.

    Errors: ClosedError in a child whose parent had used it before it forked: the library would end
    with a panic, or wait for ever.
    """
    global _is_delta_used

    if _forked_after_use:
        raise ClosedError(
            "Delta's library was used in this process before it forked, and does not work after "
            "that: start the process with spawn or forkserver, or fork before the first Consumer"
        )
    _is_delta_used = True


def _after_fork_in_child() -> None:
    global _forked_after_use
    _forked_after_use = _forked_after_use or _is_delta_used


os.register_at_fork(after_in_child=_after_fork_in_child)

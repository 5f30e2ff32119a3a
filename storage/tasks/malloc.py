"""Settings of glibc's malloc for memory that numpy and Python free; Arrow has its own allocator.

With another C library nothing happens.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, Final

_M_TRIM_THRESHOLD = -1  # of glibc's malloc.h, like the next one
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BYTES: Final = 4 * 1024 * 1024
_KEPT_ARRAY_BYTES: Final = 32 * 1024 * 1024  # the most that glibc takes
_KEPT_BYTES: Final = 64 * 1024 * 1024


def give_back_large_arrays() -> None:
    """Lets each array of 4 MiB or more go back to the system when it is freed: in the driver.

    By itself glibc raises that threshold up to 32 MiB and keeps smaller arrays. The decision of an
    epoch of two million records makes and frees dozens of arrays of 16 MB: 0.2 GB were kept.
    """
    _call("mallopt", _M_MMAP_THRESHOLD, _LARGE_BYTES)


def keep_free_arrays() -> None:
    """Keeps up to 64 MiB of freed arrays for the next task: in Spark's Python workers.

    By itself glibc keeps as many bytes as the largest array freed so far had; tasks with half of an
    epoch each then got new pages for theirs in every epoch (DECISIONS.md 3).
    """
    _call("mallopt", _M_MMAP_THRESHOLD, _KEPT_ARRAY_BYTES)
    _call("mallopt", _M_TRIM_THRESHOLD, _KEPT_BYTES)


def use_one_arena() -> None:
    """Lets all threads share one arena: in a publisher, before it starts any.

    By itself glibc gives threads arenas of their own, and each keeps what is freed in it.
    """
    _call("mallopt", _M_ARENA_MAX, 1)


def release_memory() -> None:
    """Gives all free memory back to the system."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function = getattr(_libc(), name, None)  # musl has none of them
    if function is not None:
        function(*arguments)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None) if sys.platform == "linux" else None

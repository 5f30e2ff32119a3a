"""The driver's memory, given back to the system as soon as it is free."""

from __future__ import annotations

import ctypes
import sys

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_LARGE_BYTES = 4 * 1024 * 1024


def give_back_large_arrays() -> None:
    """Lets glibc give each array of 4 MiB or more back when it is freed; elsewhere does nothing.

    By itself glibc raises that threshold up to 32 MiB and keeps what is smaller. The decision of an
    epoch of two million records makes and frees dozens of arrays of 16 MB: 0.2 GB were kept.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)

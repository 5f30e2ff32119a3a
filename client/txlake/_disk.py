"""The error of an operating system whose disk refuses, in any library's wrapping."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

# What a file of Parquet has besides its rows, and the log's entry.
_BESIDE_BYTES: Final = 65_536
_RIGHTS: Final = "give this user the right to read and write all below it"
# Its words | what helps. In none of these cases is anything of a lake damaged.
_HELP: Final = {
    "Permission denied": _RIGHTS,
    "Operation not permitted": _RIGHTS,
    "Read-only file system": "make it writable",
    "No space left on device": "make room",
    "Disk quota exceeded": "make room",
    "File too large": "raise the limit on the size of a file",
    "Too many open files": "raise the limit on open files (ulimit -n)",
    "Input/output error": "look at the disk",
    "Stale file handle": "mount it again",
}


def disk_refusal(error: BaseException) -> str | None:
    """Returns a disk's error and the remedy, as the end of a sentence; None for other errors."""
    text = str(error)
    for reason, remedy in _HELP.items():
        if reason in text:
            return f"refuses ({reason}): nothing is lost; {remedy}"
    return None


def require_room(folder: str, size_bytes: int) -> None:
    """Checks that a folder of a local disk has room for some bytes.

    delta-rs panics over a disk that is full while it writes rows: its thread writes the stack to
    stderr, also if Python catches the panic afterwards.
    Errors: OSError, as of a write to a full disk.
    """
    ancestors = (Path(folder), *Path(folder).parents)
    disk = os.statvfs(next(path for path in ancestors if path.exists()))

    if disk.f_bavail * disk.f_frsize < size_bytes + _BESIDE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)

"""One driver writes a lake.

A lake has a lock file beside its tables. The lock is a `flock` on a descriptor that the
driver's JVM inherits: it is free only when both processes are dead (after kill -9 of Python its
JVM lives on for half a second, or for as long as it is suspended, and its tasks still write files).
Where machines share the folder and the lock does not reach across them, Delta's transaction
identifiers decide (`LakeTable.commit_once`).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from storage.errors import LakeError, LakeLockedError
from storage.files.location import LakeLocation

LOCK_NAME: Final = "_driver.lock"


def lock_holder(location: LakeLocation) -> str | None:
    """Returns who holds the lock of a lake now; None if nobody does, or if it has none.

    A lock file names its last holder, which can be dead. So a shared lock is tried for a moment: it
    is refused while the holder lives.
    """
    if not location.is_local:
        return None

    try:
        fd = os.open(Path(location.path, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _holder_in(fd)
    else:
        return None
    finally:
        os.close(fd)


def _holder_in(fd: int) -> str | None:
    """Returns the holder that a lock file names."""
    return os.pread(fd, 200, 0).decode(errors="replace").strip() or None


class LakeLock:
    """The lock of one lake; taken when made. On a store there is none: the identifiers decide.

    Errors: LakeLockedError naming the process that has it; LakeError if the folder or the file
    cannot be made.
    """

    def __init__(self, location: LakeLocation, owner: str) -> None:
        self.fd: int | None = None
        if not location.is_local:
            return

        folder = Path(location.path)

        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LakeError(
                f"the lake {location.path} cannot be made or written: {error.strerror}; name a "
                "folder that the job may write into"
            ) from error

        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder_in(fd) or "another process"
            os.close(fd)
            raise LakeLockedError(
                f"the lake {location.path} is written by {holder}: one driver at a time; stop it "
                "first"
            ) from error

        os.ftruncate(fd, 0)
        os.pwrite(fd, owner.encode(), 0)
        self.fd = fd

    @property
    def fds(self) -> tuple[int, ...]:
        """Returns the descriptors that the JVM must inherit."""
        return () if self.fd is None else (self.fd,)

    def release(self) -> None:
        """Gives the lock back; a JVM that inherited it keeps it until it ends."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

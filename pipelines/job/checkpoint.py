"""The stream's checkpoint folder: made anew by each start, since it holds no truth."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from pipelines.errors import StartError
from storage.files.location import LakeLocation

_BELONGS_TO = "belongs-to-lake"
_LAKES_LOG = Path("lake", "_delta_log")  # of the table that makes a folder a lake
_RUN = re.compile("run-[0-9a-f]{12}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # reported as errors of the disk


def checkpoint_folder(configured: str, location: LakeLocation, lake_id: str) -> Path:
    """Returns the checkpoint's folder: the configured one, else in the lake or in TMPDIR.

    It is in TMPDIR if the lake is in a store.
    """
    if configured:
        return Path(configured)
    if location.is_local:
        return Path(location.path, "_checkpoint")
    return Path(tempfile.gettempdir(), f"txlake-checkpoint-{lake_id}")


def require_folder(configured: str, location: LakeLocation) -> None:
    """Makes the checkpoint's folder, if one is configured, and checks that it can be ours.

    Each start deletes the files in it, and a lake's maintenance those in the lake.
    Errors: StartError if it cannot be made, lies in a lake, or holds files of another program.
    """
    if not configured:
        return

    folder = Path(configured)
    lake = _lake_around(folder)
    if lake is not None and folder.resolve() != checkpoint_folder("", location, "").resolve():
        raise StartError(
            f"[stream] checkpoint = {configured!r} lies in the lake {lake}: name a folder outside, "
            "or leave the setting empty"
        )

    _make(folder)
    _require_ours(folder)


def take_folder(folder: Path, lake_id: str) -> None:
    """Makes the checkpoint's folder a lake's, if it is not yet.

    Errors: StartError if the folder belongs to another lake, holds files of another program, or
    cannot be made.
    """
    _make(folder)
    _require_ours(folder)

    mark = folder / _BELONGS_TO
    owner = mark.read_text() if mark.exists() else ""
    if owner == lake_id:
        return
    if owner:  # an empty mark is of a start whose disk was full
        raise StartError(
            f"[stream] checkpoint = {str(folder)!r} belongs to lake {owner}, not to {lake_id}: "
            "give each lake a checkpoint of its own"
        )

    mark.write_text(lake_id)


def fresh_checkpoint(folder: Path, lake_id: str) -> Path:
    """Returns an empty checkpoint folder for this run; those of runs before it are deleted.

    Errors: as `take_folder`.
    """
    take_folder(folder, lake_id)

    for run in folder.iterdir():
        if _RUN.fullmatch(run.name) and not run.is_symlink():
            shutil.rmtree(run, ignore_errors=True)

    return folder / f"run-{uuid.uuid4().hex[:12]}"


def keep_in_use(run: Path) -> None:
    """Marks the files of a running stream's checkpoint that are written once as in use.

    A system deletes files in TMPDIR that are days old; without the mark the folder is nobody's.
    """
    for file in (run.parent / _BELONGS_TO, run / "metadata"):
        with suppress(OSError):
            os.utime(file)


def _lake_around(folder: Path) -> Path | None:
    """Returns the lake that a folder is, or lies in."""
    resolved = folder.resolve()
    candidates = (resolved, *resolved.parents)
    return next((path for path in candidates if (path / _LAKES_LOG).is_dir()), None)


def _require_ours(folder: Path) -> None:
    """Checks that a folder is empty, or has our mark. Errors: StartError."""
    mark = folder / _BELONGS_TO
    is_ours = mark.is_file() and not mark.is_symlink()

    if not is_ours and any(folder.iterdir()):
        raise StartError(
            f"[stream] checkpoint = {str(folder)!r} holds files that are not of a checkpoint of "
            "txlake: an empty folder, or one that is not there yet, is needed"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise StartError(
            f"[stream] checkpoint = {str(folder)!r}: {error.strerror}; a folder that can be made "
            "is needed"
        ) from error

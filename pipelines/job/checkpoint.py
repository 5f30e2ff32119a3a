"""The stream's checkpoint folder: made anew by each start, since it holds no truth."""

from __future__ import annotations

import errno
import shutil
import tempfile
import uuid
from pathlib import Path

from pipelines.errors import StartError
from storage.files.place import LakePlace

_BELONGS_TO = "belongs-to-lake"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # told as what befalls a disk, not a setting


def checkpoint_folder(configured: str, place: LakePlace, lake_id: str) -> Path:
    """Returns where the checkpoint is: as configured, else in the lake; for a store, in TMPDIR."""
    if configured:
        return Path(configured)
    if place.is_local:
        return Path(place.path, "_checkpoint")
    return Path(tempfile.gettempdir(), f"txlake-checkpoint-{lake_id}")


def require_folder(configured: str) -> None:
    """Makes the checkpoint's folder, if one is configured. Errors: StartError if it cannot be."""
    if configured:
        _make(Path(configured))


def fresh_checkpoint(folder: Path, lake_id: str) -> Path:
    """Returns an empty checkpoint folder for this run.

    Errors: StartError if the folder belongs to another lake, or cannot be one.
    """
    mark = folder / _BELONGS_TO
    _make(folder)
    if mark.exists() and mark.read_text() != lake_id:
        raise StartError(
            f"[stream] checkpoint = {str(folder)!r} belongs to lake {mark.read_text()}, not to "
            f"{lake_id}: give each lake a checkpoint of its own"
        )
    mark.write_text(lake_id)
    for old in folder.glob("run-*"):
        shutil.rmtree(old, ignore_errors=True)
    return folder / f"run-{uuid.uuid4().hex[:12]}"


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

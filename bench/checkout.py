"""The files of an earlier commit, to run its job beside this one's in the same environment."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Checkout:
    """Where a commit's files are. They use this environment's packages, jars and Java."""

    commit: str
    folder: Path


def checked_out(commit: str, folder: Path) -> Checkout:
    """Write a commit's files into a new folder, without a worktree that git would remember.

    Errors: CalledProcessError for a commit that git does not know here; git says so.
    """
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    command = ["git", "archive", "--format", "tar", "--output", str(archive), commit]
    subprocess.run(command, cwd=_ROOT, check=True)
    with tarfile.open(archive) as files:
        files.extractall(folder)  # noqa: S202
    archive.unlink()
    return Checkout(commit, folder)

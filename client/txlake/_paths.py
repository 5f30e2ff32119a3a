"""Where a lake is, in a form that all libraries take: delta-rs, Arrow, DuckDB and Spark.

Each gets the path as it is, and none of our code turns one into a URI or back. delta-rs does so: it
decodes a folder's path, so that `a%20b` is read as `a b`, takes a backslash for a slash, does not
take control characters and names that are not UTF-8, and panics when it writes rows below a name
with `[`, `]`, `|` or `^`. A path with these is refused where it is first read. So is one whose
links lead to such a folder, as delta-rs follows them.

The names of files in a table's log are encoded as in a URI (Delta's protocol, "Add File").
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

STORES: Final = ("s3", "s3a", "abfss", "abfs", "az", "gs", "hdfs")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
# An escape, and some characters: delta-rs does not find the folder again, or panics.
_NOT_IN_A_FOLDER = re.compile(r"%[0-9A-Fa-f]{2}|[][\\|^\x00-\x1f\x7f\ud800-\udfff]")
# One that is meant for a store, or for a file's URI, and lacks a slash.
_NEARLY_A_SCHEME = re.compile(r"(s3a?|abfss?|az|gs|hdfs|file|https?):", re.IGNORECASE)
_NOT_IN_A_URI = "?#%[]\\|^"


def lake_path(path: str | os.PathLike[str]) -> str:
    """Returns a lake's folder, from the root on, or its URI in a store, without a slash at its end.

    Errors: ValueError, a sentence that begins with the path.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{path!r}: a folder, or a URI in a store")

    path = os.fspath(path)
    uri = _SCHEME.match(path)
    return _folder(path) if uri is None else _in_store(path, *uri.groups())


def is_in_store(path: str) -> bool:
    """Returns whether a lake, or a table of one, is in a store.

    Input: as `lake_path` returns it.
    """
    return "://" in path


def file_name(logged: str) -> str:
    """Returns the name of a file, given how a table's log, and delta-rs, name it."""
    return unquote(logged)


def _folder(path: str) -> str:
    if not path or "\0" in path:
        raise ValueError(f"{path!r}: no folder can have this name")
    folder = Path(path).absolute()
    _require_name(str(folder))
    require_meant(path)

    try:
        above = next((at for at in (folder, *folder.parents) if at.exists()), folder)
        is_file = above.exists() and not above.is_dir()
    except OSError as error:
        raise ValueError(f"{folder} cannot be read: {error.strerror}") from error

    if is_file:
        raise ValueError(f"{folder}: {above} is a file, not a folder")
    return str(folder)


def require_meant(path: str) -> None:
    """Checks that a folder of this name can be meant. Errors: ValueError, as of `lake_path`."""
    if path != path.strip():
        raise ValueError(f"{path!r}: it begins or ends with a blank; name a folder without it")
    if path.startswith("~"):
        raise ValueError(f"{path!r}: '~' is known to a shell alone; write the home folder out")
    if _NEARLY_A_SCHEME.match(path):
        raise ValueError(
            f"{path!r}: a store is named as s3://BUCKET/PREFIX, with two slashes; a folder of this "
            "name as './...'"
        )
    if not path.isprintable():
        raise ValueError(f"{path!r}: it has a character that cannot be printed")


def _require_name(folder: str) -> None:
    """Checks that delta-rs can use a folder of this name, whether it exists or not."""
    for path in (folder, os.path.realpath(folder)):
        forbidden = _NOT_IN_A_FOLDER.search(path)
        if forbidden is not None:
            leads = "" if path == folder else f", which leads to {path!r}"
            raise ValueError(f"{folder!r}{leads}: {_has(forbidden[0])}; name a folder without it")


def _in_store(path: str, scheme: str, below: str) -> str:
    if scheme not in STORES:
        known = ", ".join(f"{name}://" for name in STORES)
        raise ValueError(
            f"{path}: {scheme}:// is not a store that is known; a folder, or one of {known} is "
            "allowed"
        )

    forbidden = [letter for letter in below if letter in _NOT_IN_A_URI or not letter.isprintable()]
    if forbidden:
        raise ValueError(f"{path!r}: {_has(forbidden[0])}; name a prefix without it")

    bucket, *names = below.strip("/").split("/")
    if not bucket or "" in names or {".", ".."} & set(names):
        raise ValueError(
            f"{path!r}: {scheme}://BUCKET/PREFIX is allowed, without empty names, '.' and '..'"
        )
    if scheme in ("s3", "s3a") and not names:
        raise ValueError(f"{path}: name a prefix in the bucket, as in {scheme}://{bucket}/lake")

    return f"{scheme}://{'/'.join((bucket, *names))}"


def _has(forbidden: str) -> str:
    return f"it has {forbidden!r}, which not every library that reads a lake takes as it is"

"""The files of a local table that can be deleted: those of its own folder, nothing behind a link.

A user who may write a table's folder can put a link there. Delta's VACUUM lists the files behind
the link and deletes them: those of another table, or of any folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def files_of_table(names: Iterable[str], folder: str | None) -> list[str]:
    """Returns the names that are files in a table's own folder.

    A lake's tables have no partitions, so no file of theirs lies deeper.
    Input: names as Delta's log has them; the table's folder, None on a store: it has no links.
    """
    own = [name for name in names if "/" not in name and name.endswith(".parquet")]
    if folder is None:
        return own
    return [name for name in own if not Path(folder, name).is_symlink()]

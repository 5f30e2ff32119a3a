"""A Delta table's log, as the SDK and the job both read it: names, versions, the lake's id.

Source: Delta's protocol, "Delta Log Entries", "Checkpoints".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

LAKE_ID_PROPERTY: Final = "txlake.lakeId"  # of every table: which lake it belongs to
_VERSION_DIGITS: Final = 20


def entry_name(version: int) -> str:
    """Returns the name of the log's entry of a version."""
    return f"{version:0{_VERSION_DIGITS}}.json"


def version_of(name: str) -> int | None:
    """Returns the version of an entry or a checkpoint by its name; None for other files."""
    digits = name[:_VERSION_DIGITS]
    return int(digits) if digits.isdigit() else None


def has_entry(folder: str, version: int) -> bool:
    """Returns whether the log of a table in a local folder has the entry of a version."""
    return os.path.exists(os.path.join(folder, "_delta_log", entry_name(version)))


def is_newest(folder: str, version: int) -> bool:
    """Returns whether a version is surely the newest of a table in a local folder.

    Two looks for a file take less than a listing: delta-rs lists the log's folder, which takes
    0.6 us an entry. If a clean-up has deleted the entry of this version, the next one can be
    deleted, too: then it is not sure.
    """
    return has_entry(folder, version) and not has_entry(folder, version + 1)


def lake_id_of(handle: DeltaTable) -> str:
    """Returns the id of the lake that a table says it belongs to; empty if it has none."""
    return handle.metadata().configuration.get(LAKE_ID_PROPERTY) or ""


def files_of_table(names: Iterable[str], folder: str | None) -> list[str]:
    """Returns the names that are files in a table's own folder, and nothing behind a link.

    A user who may write the folder can put a link there. Delta's VACUUM lists the files behind the
    link and deletes them: those of another table, or of any folder. A lake's tables have no
    partitions, so no file of theirs lies deeper.
    Input: names as Delta's log has them; the table's folder, None on a store: it has no links.
    """
    own = [name for name in names if "/" not in name and name.endswith(".parquet")]
    if folder is None:
        return own
    return [name for name in own if not Path(folder, name).is_symlink()]

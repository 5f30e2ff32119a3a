"""A Delta table's log, as the SDK and the job both read it: names, versions, the lake's id.

Source: Delta's protocol, "Delta Log Entries", "Checkpoints", "Transaction Identifiers".
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from txlake._paths import file_name

LAKE_ID_PROPERTY: Final = "txlake.lakeId"  # of every table: which lake it belongs to
_VERSION_DIGITS: Final = 20
_APPEND_ACTIONS: Final = frozenset(("commitInfo", "txn", "add"))


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table: its size, its rows, and the smallest and largest values of columns.

    None: the log does not say.
    """

    path: str
    size_bytes: int
    row_count: int | None
    min_values: Mapping[str, Any]
    max_values: Mapping[str, Any]


def entry_name(version: int) -> str:
    """Returns the name of the log's entry of a version."""
    return f"{version:0{_VERSION_DIGITS}}.json"


def entry_path(folder: str, version: int) -> str:
    """Returns the path of the log's entry of a version, of a table in a local folder."""
    return os.path.join(folder, "_delta_log", entry_name(version))


def version_of(name: str) -> int | None:
    """Returns the version of an entry or a checkpoint by its name; None for other files."""
    digits = name[:_VERSION_DIGITS]
    return int(digits) if digits.isdigit() else None


def has_entry(folder: str, version: int) -> bool:
    """Returns whether the log of a table in a local folder has the entry of a version."""
    return os.path.exists(entry_path(folder, version))


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


def driver_id(lake_id: str) -> str:
    """Returns under which name the driver's transactions stand in the tables of a lake."""
    return f"txlake/{lake_id}"


def appended_files(
    folder: str, version: int, app_id: str, statistics: Sequence[str]
) -> list[TableFile] | None:
    """Returns the files that an entry adds, if it is an append under a transaction identifier.

    Input: the table's folder; `statistics`: columns of whole numbers.
    Output: None if there is no such entry, if it says anything else, or if it cannot be read: what
    it means is for delta-rs to say.
    """
    try:
        with open(entry_path(folder, version), "rb") as entry:
            actions = [json.loads(line) for line in entry]

        transactions = [action["txn"]["appId"] for action in actions if "txn" in action]
        kinds = {kind for action in actions for kind in action}
        if transactions != [app_id] or not kinds <= _APPEND_ACTIONS:
            return None

        return [_added_file(action["add"], statistics) for action in actions if "add" in action]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _added_file(add: Mapping[str, Any], statistics: Sequence[str]) -> TableFile:
    """Returns a file as its entry names it. Errors: ValueError, KeyError if it is no plain one."""
    if add["partitionValues"] or add.get("deletionVector") is not None:
        raise ValueError("it is not a plain file")

    stats = json.loads(add["stats"])
    bounds = [
        {name: stats[bound].get(name) for name in statistics}
        for bound in ("minValues", "maxValues")
    ]
    numbers = [stats["numRecords"], *bounds[0].values(), *bounds[1].values()]
    is_whole = all(number is None or type(number) is int for number in numbers)
    if not is_whole or type(add["size"]) is not int:
        raise ValueError("its size and its statistics are not whole numbers")

    return TableFile(file_name(add["path"]), add["size"], stats["numRecords"], *bounds)


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

"""Which lake it is, of which format, and whether it is one yet.

The table `lake` has one row, which makes the tables a lake. If that row is lost, the other
tables still say whose they are.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from storage.errors import (
    BrokenLakeError,
    MissingTableError,
    NewerLakeError,
    NotALakeError,
    OlderLakeError,
    UnfinishedLakeError,
)
from storage.lake.open_table import missing
from storage.schemas import (
    DIGEST_FORMAT,
    FORMAT_VERSION,
    GROUPS_FORMAT,
    LAKE,
    SIGNED_FORMAT,
    TABLES,
)

# Columns that the newest format added, with their tables.
_NEWEST_COLUMNS: Final = (("pending", "age_from_at"),)


class LakeTables(Protocol):
    """The tables of a lake, or of what is to become one; `Lake` is one of these."""

    path: str

    def is_table(self, table: str) -> bool:
        """Returns whether there is such a table."""

    def handle(self, table: str) -> DeltaTable:
        """Returns a table at its newest version."""

    def read(self, table: str) -> pa.Table:
        """Returns a table's rows."""

    def max_value(self, table: str, column: str) -> Any:
        """Returns the largest value of a column by the log."""

    def table_lake_id(self, table: str) -> str:
        """Returns the id of the lake that a table belongs to; empty if it cannot be read."""

    def majority_lake_id(self) -> str:
        """Returns the id of the lake that most tables belong to."""


def lake_row(lake_id: str, now: dt.datetime) -> pa.Table:
    """Returns the row that makes the tables a lake."""
    return pa.table([[lake_id], [FORMAT_VERSION], [now]], schema=LAKE)


def choose_lake_id(lake: LakeTables) -> str:
    """Returns the id of the lake that most tables belong to; a new one if no table says."""
    existing = filter(lake.is_table, TABLES)
    table_counts = Counter(filter(None, (lake.table_lake_id(table) for table in existing)))

    return max(table_counts, key=table_counts.__getitem__, default="") or uuid.uuid4().hex


def require_empty(lake: LakeTables) -> None:
    """Checks that nothing was written: a rebuild writes the `lake` row when it has ended.

    Errors: UnfinishedLakeError if the row is missing; MissingTableError if the table is: a rebuild
    makes that before any row.
    """
    if not lake.is_table("topics/1") and not any(_has_epochs(lake, table) for table in TABLES):
        return

    if not lake.is_table("lake"):
        raise missing(lake.path, "lake")

    raise UnfinishedLakeError(
        f"the table lake of {lake.path} has no row, and other tables have: either it is "
        "being rebuilt, or a rebuild was interrupted (run that `txlake replay --into` "
        "again), or the row was lost: name another place, or put the table back from a copy"
    )


def _has_epochs(lake: LakeTables, table: str) -> bool:
    try:
        return table != "lake" and lake.max_value(table, "epoch") is not None
    except MissingTableError:
        return False


def identity(lake: LakeTables, formats: Sequence[int] = (FORMAT_VERSION,)) -> tuple[str, int]:
    """Returns the lake's id and format, after checking that the caller can use it.

    Input: the formats that the caller can work with.
    Errors: NotALakeError, UnfinishedLakeError, NewerLakeError, OlderLakeError, BrokenLakeError.
    """
    rows = lake.read("lake").to_pylist() if lake.is_table("lake") else []
    if not rows:
        require_empty(lake)
        raise NotALakeError(f"{lake.path} is not a lake: `txlake run` makes one there")

    if not {"lake_id", "format_version"} <= rows[0].keys():
        raise NotALakeError(
            f"{lake.path} is not a lake: its table lake is none of txlake's, without the columns "
            "lake_id and format_version; name another place"
        )

    version = rows[0]["format_version"]
    if version > FORMAT_VERSION:
        raise NewerLakeError(
            f"the lake {lake.path} has format {version}; this txlake knows formats up to "
            f"{FORMAT_VERSION}: install the newer txlake that made it"
        )

    if version not in formats:
        raise OlderLakeError(
            f"the lake {lake.path} has format {version}, this txlake writes format "
            f"{FORMAT_VERSION}: `txlake replay --into NEW --lake {lake.path}` makes a lake of "
            "this format from it"
        )

    return str(rows[0]["lake_id"]), int(version)


def infer_identity(lake: LakeTables, formats: Sequence[int]) -> tuple[str, int]:
    """Returns the lake's id and format; if its row is lost, those that the other tables show.

    Input, Errors: as `identity`.
    """
    try:
        return identity(lake, formats)
    except (BrokenLakeError, UnfinishedLakeError):
        return lake.majority_lake_id(), _likely_format(lake)


def _likely_format(lake: LakeTables) -> int:
    """Returns the lake's format by the columns that its tables have."""
    if "digest" not in _columns(lake, "epochs"):
        return 1

    if any(name in _columns(lake, table) for table, name in _NEWEST_COLUMNS):
        return FORMAT_VERSION
    if any("producer_group" in _columns(lake, table) for table in ("catalog", "delayed")):
        return GROUPS_FORMAT
    if any("is_signed" in _columns(lake, table) for table in ("op", "waiting")):
        return SIGNED_FORMAT
    return DIGEST_FORMAT


def _columns(lake: LakeTables, table: str) -> set[str]:
    """Returns the columns that a table has; none if it is lost."""
    try:
        return {field.name for field in lake.handle(table).schema().fields}
    except BrokenLakeError:
        if table == "epochs":
            raise
        return set()

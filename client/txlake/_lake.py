"""A lake's own tables: its format, its topics and their tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txlake._committed import DIGEST_FORMAT
from txlake._delta_files import DeltaFiles, translating_errors
from txlake._integrity import TableChecks
from txlake._paths import lake_path
from txlake.errors import LakeError

FORMAT_VERSION_MAX = 5  # the newest lake format this SDK reads


@dataclass(frozen=True, slots=True)
class Topic:
    """A real topic: its table, how many queues it has, and the epoch that made it."""

    table_id: int
    queue_count: int
    epoch: int


class Lake:
    """A lake, as its own tables describe it.

    Errors: LakeError, in one sentence, when the path has no lake, or one that is newer or not
    whole.
    """

    def __init__(
        self, path: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
    ) -> None:
        try:
            self.path = lake_path(path)
        except ValueError as error:
            raise LakeError(str(error)) from error

        self.storage_options = dict(storage_options or {})
        self.lake_id, format_version = self._identity()

        self._checks: TableChecks | None = None
        if format_version >= DIGEST_FORMAT:
            self._checks = TableChecks(self.path, self.lake_id, self.storage_options)
            self._checks.require({"catalog": 0})

        self._catalog = DeltaFiles(self.uri("catalog"), self.storage_options)
        self._topics: dict[str, Topic] = {}
        self._is_catalog_read = False  # as it was at the last refresh

    def uri(self, table: str) -> str:
        """Returns the path of one of the lake's tables."""
        return f"{self.path}/{table}"

    def topics(self) -> dict[str, Topic]:
        """Returns the real topics by name; they are read again when the catalog has changed."""
        with translating_errors(self._catalog.uri):
            if self._catalog.refresh():
                self._is_catalog_read = False

        if not self._is_catalog_read:
            rows = read_all(self._catalog, ["topic", "table_id", "queue_count", "epoch"])

            # Of a topic's rows the oldest one says when it was made: it comes last, and stays.
            rows.sort(key=lambda row: -row["epoch"])
            made_in = {row["topic"]: row["epoch"] for row in rows}

            # Queue counts only grow, so of a topic's rows the one with the most queues holds.
            rows.sort(key=lambda row: row["queue_count"])
            self._topics = {
                row["topic"]: Topic(row["table_id"], row["queue_count"], made_in[row["topic"]])
                for row in rows
            }
            self._is_catalog_read = True

        return self._topics

    def has_catalog(self) -> bool:
        """Returns whether the catalog was there when `topics` last looked."""
        return self._catalog.exists

    def require_whole(self, names: Iterable[str]) -> None:
        """Checks that the tables of topics hold the committed rows, from format 2 on.

        Errors: LakeError.
        """
        if self._checks is not None:
            topics = self.topics()
            made_in = {f"topics/{topics[name].table_id}": topics[name].epoch for name in names}
            if made_in:
                self._checks.require(made_in)

    def epoch_from(self, at: datetime) -> int | None:
        """Returns the first epoch at or after an instant; None if all are before it.

        Output: 0 if it is before the oldest epoch that is still recorded. Errors: LakeError.
        """
        table = DeltaFiles(self.uri("epochs"), self.storage_options)
        with translating_errors(table.uri):
            table.refresh()

        rows = _read_all(table, ["epoch", "epoch_at"])
        later = rows.filter(
            pc.greater_equal(rows["epoch_at"], pa.scalar(at.astimezone(timezone.utc)))
        )
        if not later.num_rows:
            return None

        first: int = pc.min(later["epoch"]).as_py()
        return 0 if first == pc.min(rows["epoch"]).as_py() else first

    def _identity(self) -> tuple[str, int]:
        """Returns the lake's id and format."""
        table = DeltaFiles(self.uri("lake"), self.storage_options)
        with translating_errors(table.uri):
            table.refresh()

        rows = read_all(table, ["lake_id", "format_version"])
        if not rows:
            raise self._no_lake()

        version = max(row["format_version"] for row in rows)
        if version > FORMAT_VERSION_MAX:
            raise LakeError(
                f"{self.path}: the lake has format {version}, this SDK reads up to "
                f"{FORMAT_VERSION_MAX}; install a newer one"
            )

        return rows[0]["lake_id"], version

    def _no_lake(self) -> LakeError:
        epochs = DeltaFiles(self.uri("epochs"), self.storage_options)
        with translating_errors(epochs.uri):
            epochs.refresh()

        if epochs.files:
            return LakeError(
                f"{self.path}: the table lake has no row, and epochs has some: a rebuild of the "
                "lake has not ended, or the row was lost and must be put back from a copy"
            )
        return LakeError(f"{self.path}: there is no lake here; start the job first")


def read_all(table: DeltaFiles, columns: list[str]) -> list[dict[str, Any]]:
    """Returns all rows of a small table, with some columns. Errors: LakeError."""
    return _read_all(table, columns).to_pylist()  # type: ignore[no-any-return]


def _read_all(table: DeltaFiles, columns: list[str]) -> pa.Table:
    """Returns all rows of a table, with some columns. Errors: LakeError."""

    def read() -> pa.Table:
        if not table.files:
            return pa.table({name: [] for name in columns})
        return table.dataset(table.files).to_table(columns)

    return table.retry_stale(read)

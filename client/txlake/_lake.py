"""A lake's own tables: its format, its topics and their tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from txlake._delta_files import DeltaFiles, translating_errors
from txlake._integrity import TableChecks
from txlake._paths import lake_path
from txlake.errors import LakeError

FORMAT_VERSION_MAX = 5  # the newest lake format this SDK reads
_DIGEST_FORMAT = 2  # from this one on the rows of `epochs` name each table's version and rows


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
        if format_version >= _DIGEST_FORMAT:
            self._checks = TableChecks(self.path, self.lake_id, self.storage_options)
            self._checks.require("catalog")

        self._catalog = DeltaFiles(self.uri("catalog"), self.storage_options)
        self._topics: dict[str, Topic] = {}

    def uri(self, table: str) -> str:
        """Returns the path of one of the lake's tables."""
        return f"{self.path}/{table}"

    def topics(self) -> dict[str, Topic]:
        """Returns the real topics by name; they are read again when the catalog has changed."""
        with translating_errors(self._catalog.uri):
            is_changed = self._catalog.refresh()

        if is_changed:
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

        return self._topics

    def has_catalog(self) -> bool:
        """Returns whether the catalog was there when `topics` last looked."""
        return self._catalog.exists

    def require_whole(self, name: str) -> None:
        """Checks that a topic's table holds the committed rows, from format 2 on.

        Errors: LakeError.
        """
        if self._checks is not None:
            topic = self.topics()[name]
            self._checks.require(f"topics/{topic.table_id}", topic.epoch)

    def epoch_from(self, at: datetime) -> int | None:
        """Returns the first epoch at or after an instant; None if all are before it.

        Output: 0 if it is before the oldest epoch that is still recorded. Errors: LakeError.
        """
        table = DeltaFiles(self.uri("epochs"), self.storage_options)
        with translating_errors(table.uri):
            table.refresh()

        rows = read_all(table, ["epoch", "epoch_at"])
        later = [row["epoch"] for row in rows if row["epoch_at"] >= at]
        if not later:
            return None

        oldest = min(row["epoch"] for row in rows)
        return 0 if min(later) == oldest else min(later)

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
        return LakeError(f"{self.path}: there is no lake here; start the reconciler first")


def read_all(table: DeltaFiles, columns: list[str]) -> list[dict[str, Any]]:
    """Returns all rows of a small table, with some columns. Errors: LakeError."""

    def read() -> list[dict[str, Any]]:
        if not table.files:
            return []
        return table.dataset(table.files).to_table(columns).to_pylist()  # type: ignore[no-any-return]

    return table.retry_stale(read)

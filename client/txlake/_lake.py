"""Find one's way in a lake: its format, its topics and their tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txlake._delta_files import STALE_SNAPSHOT, DeltaFiles
from txlake.errors import LakeError

FORMAT_VERSION_MAX = 1  # the newest lake format this SDK reads
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Topic:
    """Be a real topic: its table and how many queues it has."""

    table_id: int
    queue_count: int


class Lake:
    """Read a lake's own tables.

    Errors: LakeError, in one sentence, for a path without a lake or with a newer one.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = path.rstrip("/")
        self.storage_options = dict(storage_options or {})
        self._check_format()
        self._catalog = DeltaFiles(self.uri("catalog"), self.storage_options)
        self._topics: dict[str, Topic] = {}

    def uri(self, table: str) -> str:
        """Name the place of one of the lake's tables."""
        return f"{self.path}/{table}"

    def topics(self) -> dict[str, Topic]:
        """Give the real topics there are now; read again only when the catalog has changed."""
        if self._catalog.refresh():
            rows = read_all(self._catalog, ["topic", "table_id", "queue_count"])
            # Queue counts only grow: of a topic's rows the one with the most queues holds.
            rows.sort(key=lambda row: row["queue_count"])
            self._topics = {
                row["topic"]: Topic(row["table_id"], row["queue_count"]) for row in rows
            }
        return self._topics

    def _check_format(self) -> None:
        table = DeltaFiles(self.uri("lake"), self.storage_options)
        table.refresh()
        versions = (
            [row["format_version"] for row in read_all(table, ["format_version"])]
            if table.files
            else []
        )
        if not versions:
            raise LakeError(f"{self.path}: there is no lake here; start the reconciler first")
        if max(versions) > FORMAT_VERSION_MAX:
            raise LakeError(
                f"{self.path}: the lake has format {max(versions)}, this SDK reads up to "
                f"{FORMAT_VERSION_MAX}; install a newer one"
            )


def read_all(table: DeltaFiles, columns: list[str]) -> list[dict[str, Any]]:
    """Read some columns of a small table whole."""
    for attempt in range(_TRIES):
        try:
            if not table.files:
                return []
            rows: list[dict[str, Any]] = table.dataset(table.files).to_table(columns).to_pylist()
            return rows
        except STALE_SNAPSHOT:
            if attempt == _TRIES - 1:
                raise
            table.refresh(is_afresh=True)
    raise AssertionError("unreachable")

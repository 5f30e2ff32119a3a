"""When maintenance takes a step, how long topics keep messages, and the result of a step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from storage.files.order import table_kind
from txlake.protocol import FOREVER


@dataclass(frozen=True)
class Retention:
    """How long a topic keeps its messages. Units: ms, bytes; -1: without a limit."""

    ms: int = FOREVER
    bytes: int = FOREVER


@dataclass(frozen=True)
class MaintenanceLimits:
    """When a table needs a step. Units: ms, bytes.

    `retention_ms` of 0: decided rows are kept for ever. `topics`: of topics without their own.
    """

    merge_files: int
    file_bytes_max: int
    checkpoint_commits: int
    log_retention_ms: int
    file_retention_ms: int
    stream_retention_ms: int
    retention_ms: int = 0
    topics: Retention = field(default_factory=Retention)

    def files_kept_ms(self, table: str) -> int:
        """Returns how long a table's files are kept, from when they were written."""
        return max(self.file_retention_ms, self._streamed_ms(table))

    def _streamed_ms(self, table: str) -> int:
        """Returns how long a stream can need a table's replaced files; 0: no stream reads it."""
        return self.stream_retention_ms if table_kind(table) == "topics" else 0

    def properties(self, table: str) -> dict[str, str]:
        """Returns a table's retentions as Delta's properties: of its log, and of tombstones."""
        log_ms = max(self.log_retention_ms, self._streamed_ms(table))

        return {
            "delta.logRetentionDuration": f"interval {log_ms // 1000} seconds",
            "delta.deletedFileRetentionDuration": (
                f"interval {self.file_retention_ms // 1000} seconds"
            ),
        }


@dataclass(frozen=True)
class StepResult:
    """What a step did, or would do."""

    merges: int = 0
    files_merged: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    checkpoints: int = 0
    files_deleted: int = 0
    rows_expired: int = 0

    def __add__(self, other: StepResult) -> StepResult:
        mine, theirs = asdict(self), asdict(other)
        return StepResult(**{name: mine[name] + theirs[name] for name in mine})

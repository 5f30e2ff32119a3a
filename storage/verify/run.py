"""The check of a lake by every invariant: numbers, and the rows that violate one."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from storage.errors import LakeError
from storage.lake.identity import infer_identity
from storage.lake.lake import Lake
from storage.schemas import DIGEST_FORMAT, FORMATS
from storage.verify import (
    commands,
    consumers,
    counts,
    delays,
    delivery,
    ends,
    epochs,
    operations,
    state,
    time_rules,
)
from storage.verify.frames import make_frames
from storage.verify.invariant import EPOCH_MAX, NAMED_MAX, Invariant
from storage.verify.reading import read_lake
from storage.verify.scope import TABLES

INVARIANTS: Final[tuple[Invariant, ...]] = (
    *epochs.INVARIANTS,
    *counts.INVARIANTS,
    *ends.INVARIANTS,
    *operations.INVARIANTS,
    *time_rules.INVARIANTS,
    *delivery.INVARIANTS,
    *delays.INVARIANTS,
    *commands.INVARIANTS,
    *consumers.INVARIANTS,
)
# These check rows that a lake of format 1 does not record.
RECORDED: Final[tuple[Invariant, ...]] = (
    *epochs.RECORDED,
    *counts.RECORDED,
    *state.RECORDED,
)
# The memory of DuckDB: a share of the machine's. It puts what does not fit into a temporary folder.
_MEMORY_SHARE = 4
_MEMORY_MIN_MB = 1_000

# On so few rows a query takes longer to plan than to run: one thread, no optimizer, and the rows in
# scope as tables, where every invariant would plan their views anew. On a lake of 14 epochs with a
# floor a check takes 1.2 s of processor with them, 1.9 s without.
_FEW_ROWS = 5_000
_FLOORS = """
SELECT e.epoch, s.floor_epoch, s.floor_deleted FROM all_epochs e
JOIN parameter_sets s ON e.parameters_id = s.id
WHERE e.state = 'planned' AND e.epoch IN (?, ?)
"""
_ROW_COUNT = "SELECT sum(estimated_size) FROM duckdb_tables()"

# Counts of what the lake holds.
_NUMBERS = """
SELECT (SELECT count(*) FROM plans) AS epochs,
  (SELECT count(*) FROM half) AS halves,
  (SELECT count(*) FROM half WHERE error IS NOT NULL) AS unreadable,
  (SELECT count(*) FROM halves WHERE end_epoch IS NULL) AS pending,
  (SELECT count(*) FROM halves WHERE outcome = 'COMMITTED') AS committed,
  (SELECT count(*) FROM halves WHERE outcome = 'ROLLED_BACK') AS rolled_back,
  (SELECT count(DISTINCT (queue_id, queue_offset)) FROM outcomes WHERE outcome = 'DISCARDED')
    AS discarded,
  (SELECT count(*) FROM op) AS operations,
  (SELECT count(*) FROM schedule) AS schedules,
  (SELECT count(*) FROM messages) AS messages
"""


@dataclass(frozen=True)
class Finding:
    """The result of one invariant. `rows`: the first that violate it; `problem` says how."""

    invariant: Invariant
    checked: int
    violations: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Report:
    """The result for a lake. `ignored`: by table, the count of rows of uncommitted epochs."""

    lake_id: str
    first_epoch: int
    last_epoch: int
    numbers: dict[str, int]
    ignored: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Returns whether no invariant is violated."""
        return not any(finding.violations for finding in self.findings)


def memory_mb() -> int:
    """Returns the memory that a check takes by default: a quarter of the machine's."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(_MEMORY_MIN_MB, machine // _MEMORY_SHARE // 1_000_000)


def verify(
    lake: Lake, first_epoch: int = 1, last_epoch: int = EPOCH_MAX, memory: int | None = None
) -> Report:
    """Checks every invariant of a lake.

    Input: rows of epochs after `last_epoch` are left out; rows of epochs before `first_epoch` are
    read, and not checked themselves. Rows that depend on others below the lake's floor are neither
    read nor checked (`storage/verify/scope.py`). `memory`: the most that it takes, in MB; None:
    `memory_mb`.
    Errors: NotALakeError, NewerLakeError; LakeError if the memory is too little.
    """
    memory = memory or memory_mb()
    try:
        return _check_all(lake, first_epoch, last_epoch, memory)
    except duckdb.OutOfMemoryException as error:
        raise LakeError(
            f"the check of {lake.path} does not fit into {memory} MB of memory: give it more, "
            "--memory-mb N, or check fewer epochs, --epochs FROM-TO"
        ) from error


def _check_all(lake: Lake, first_epoch: int, last_epoch: int, memory: int) -> Report:
    lake_id, format_version = infer_identity(lake, FORMATS)
    invariants = INVARIANTS if format_version < DIGEST_FORMAT else (*INVARIANTS, *RECORDED)

    with (
        tempfile.TemporaryDirectory(prefix="txlake-verify-") as folder,
        _connect(memory, folder) as connection,
    ):
        read_lake(connection, lake, format_version)
        committed = _number(
            connection, "SELECT max(epoch) FROM all_epochs WHERE state = 'committed'"
        )

        if first_epoch > max(1, committed):
            raise LakeError(
                f"the newest committed epoch of {lake.path} is {committed}: there is none from "
                f"{first_epoch} on"
            )

        has_few_rows = _number(connection, _ROW_COUNT) <= _FEW_ROWS
        if has_few_rows:
            connection.execute("SET threads = 1")
            connection.execute("PRAGMA disable_optimizer")

        last = min(last_epoch, committed)
        _require_undeleted(connection, lake, last, committed)
        base = make_frames(connection, last, has_few_rows)
        first_epoch = max(first_epoch, base + 1) if base else first_epoch

        for module in (operations, time_rules, delays, delivery, commands, state):
            connection.execute(module.FRAMES)

        return Report(
            lake_id=lake_id,
            first_epoch=first_epoch,
            last_epoch=last,
            numbers=_dicts(connection, _NUMBERS)[0],
            ignored=_ignored(connection, committed),
            findings=tuple(
                _check(connection, invariant, first_epoch, last_epoch) for invariant in invariants
            ),
        )


def _require_undeleted(
    connection: duckdb.DuckDBPyConnection, lake: Lake, last: int, committed: int
) -> None:
    """Checks that a lake as of its epoch `last` is there: later floors delete more rows.

    Errors: LakeError.
    """
    floors = connection.execute(_FLOORS, [last, committed]).fetchall()
    floor_of = {epoch: (floor, deleted) for epoch, floor, deleted in floors}
    floor, deleted = floor_of.get(committed, (0, 0))

    if last in floor_of and floor_of[last][0] < deleted:
        raise LakeError(
            f"{lake.path} as of epoch {last} cannot be checked: rows that landed up to epoch "
            f"{deleted} are deleted; --epochs can end at {floor} or later"
        )


def _connect(memory: int, folder: str) -> duckdb.DuckDBPyConnection:
    """Returns an engine that takes at most `memory` MB, and `folder` for what does not fit."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{memory}MB",
            "temp_directory": folder,
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _check(
    connection: duckdb.DuckDBPyConnection, invariant: Invariant, first: int, last: int
) -> Finding:
    scope = f"coalesce(epoch, {first}) BETWEEN {first} AND {last}"
    rows = f"SELECT * FROM ({invariant.rows}) WHERE {scope}"
    checked, violations = connection.execute(
        f"SELECT count(*), count(problem) FROM ({rows})"
    ).fetchall()[0]

    shown = []
    if violations:
        text = f"SELECT * FROM ({rows}) WHERE problem IS NOT NULL ORDER BY ALL LIMIT {NAMED_MAX}"
        shown = _dicts(connection, text)

    return Finding(invariant, checked, violations, shown)


def _ignored(connection: duckdb.DuckDBPyConnection, committed: int) -> dict[str, int]:
    counts = {
        table: _number(connection, f"SELECT count(*) FROM all_{table} WHERE epoch > {committed}")
        for table in TABLES
    }
    return {table: count for table, count in counts.items() if count}


def _number(connection: duckdb.DuckDBPyConnection, text: str) -> int:
    return int(connection.execute(text).fetchall()[0][0] or 0)


def _dicts(connection: duckdb.DuckDBPyConnection, text: str) -> list[dict[str, Any]]:
    result = connection.execute(text)
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

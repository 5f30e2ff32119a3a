"""The epoch protocol: an epoch is `planned`, then `committed`; each is one row, once.

`planned` pins all that the epoch depends on: its Kafka ranges, `epoch_at`, `known_at`, the floor,
parameters. From there on it can be run again and gives the same rows. `committed` is the one commit
point. An epoch that is planned and not committed is finished before anything else.

A committed row names what the epoch changed: the real queues that grew, the tables that it wrote.
From time to time a row names all of them: its counts have `snapshot`, 1 if a snapshot of the state
stands beside it, else 0. So the newest rows back to such a row cover everything, and a row does not
grow with the number of topics.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import RESTORE_HINT, BrokenLakeError
from storage.lake.floor import FLOOR, Floor
from storage.lake.snapshots import Snapshot, snapshot_of
from storage.rows import instant, milliseconds
from storage.schemas import EPOCHS, SNAPSHOT, STATE_TABLES

if TYPE_CHECKING:
    from storage.lake.lake import Lake

PLANNED, COMMITTED = "planned", "committed"
Place = tuple[str, int]


@dataclass(frozen=True)
class Range:
    """What an epoch lands of one Kafka partition; `to_offset` is exclusive.

    Kafka reported `end_offset` after T, and `asked_end_offset` after the plan's `asked_at`.
    """

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    end_offset: int
    asked_end_offset: int | None = None

    @property
    def place(self) -> Place:
        """Returns the Kafka partition."""
        return self.topic, self.partition


@dataclass(frozen=True)
class TableVersion:
    """A table after an epoch: at least this Delta version, exactly this number of rows."""

    version: int
    rows: int


@dataclass(frozen=True)
class Plan:
    """All that an epoch depends on. Units: ms.

    `asked_at`: when Kafka was asked for its ends before the micro-batch was cut, if it was.
    """

    epoch: int
    epoch_at: int
    known_at: Mapping[int, int]
    halves_known_at: Mapping[int, int]
    ranges: tuple[Range, ...]
    cluster_id: str
    topic_ids: Mapping[str, str]
    parameters: Mapping[str, Any]
    owner: str
    rule_version: int
    asked_at: int | None = None

    @property
    def floor(self) -> Floor:
        """Returns the floor that the epoch decides with; before retention came there was none."""
        recorded = self.parameters.get(FLOOR)
        if recorded is None:
            return Floor()

        return Floor(**{**recorded, "offsets": dict(recorded["offsets"])})

    @property
    def snapshot(self) -> Snapshot:
        """Returns the newest snapshot of the state up to this epoch."""
        return snapshot_of(self.parameters)

    @property
    def topics(self) -> dict[str, str]:
        """Returns the Kafka topics that it lands, by kind."""
        return dict(self.parameters["wire"]["topics"])

    def landed(self) -> dict[Place, int]:
        """Returns where landing stands after this epoch."""
        return {r.place: r.to_offset for r in self.ranges}

    def queue_ends(self, topic: str) -> dict[int, int]:
        """Returns where landing of one topic stands after this epoch, by queue."""
        return {r.partition: r.to_offset for r in self.ranges if r.topic == topic}


def _row(plan: Plan, state: str, now: dt.datetime, **values: Any) -> pa.Table:
    row = {
        "epoch": plan.epoch,
        "state": state,
        "epoch_at": instant(plan.epoch_at),
        "owner": plan.owner,
        "rule_version": plan.rule_version,
        "written_at": now,
        **values,
    }
    return pa.Table.from_pylist([row], schema=EPOCHS)


def offset_rows(next_offsets: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    """Returns the next offsets of real queues as rows, in order."""
    return [
        {"topic": topic, "queue_id": queue_id, "next_offset": offset}
        for (topic, queue_id), offset in sorted(next_offsets.items())
    ]


def planned_row(plan: Plan, now: dt.datetime) -> pa.Table:
    """Returns the row that pins an epoch."""
    return _row(
        plan,
        PLANNED,
        now,
        known_at=[(queue, instant(at)) for queue, at in sorted(plan.known_at.items())],
        halves_known_at=[
            (queue, instant(at)) for queue, at in sorted(plan.halves_known_at.items())
        ],
        asked_at=None if plan.asked_at is None else instant(plan.asked_at),
        ranges=[asdict(r) for r in plan.ranges],
        cluster_id=plan.cluster_id,
        topic_ids=sorted(plan.topic_ids.items()),
        parameters=[(key, json.dumps(value)) for key, value in sorted(plan.parameters.items())],
    )


def committed_row(
    plan: Plan,
    now: dt.datetime,
    counts: Mapping[str, int],
    step_ms: Mapping[str, int],
    next_offsets: Mapping[tuple[str, int], int],
    tables: Mapping[str, TableVersion],
    work: Mapping[str, int] | None = None,
) -> pa.Table:
    """Returns the commit point. Input: `next_offsets`, `tables`: those that the row names."""
    return _row(
        plan,
        COMMITTED,
        now,
        next_offsets=offset_rows(next_offsets),
        counts=sorted(counts.items()),
        step_ms=sorted(step_ms.items()),
        work=sorted((work or {}).items()),
        tables=[{"table": table, **asdict(at)} for table, at in sorted(tables.items())],
    )


def parse_plan(row: Mapping[str, Any]) -> Plan:
    """Returns the plan in a planned row. Errors: BrokenLakeError when it lacks something."""
    range_fields = [f.name for f in fields(Range)]

    try:
        return Plan(
            epoch=row["epoch"],
            epoch_at=milliseconds(row["epoch_at"]),
            known_at={queue: milliseconds(at) for queue, at in row["known_at"]},
            halves_known_at={queue: milliseconds(at) for queue, at in row["halves_known_at"]},
            ranges=tuple(Range(**{name: r[name] for name in range_fields}) for r in row["ranges"]),
            cluster_id=row["cluster_id"],
            topic_ids=dict(row["topic_ids"]),
            parameters={key: json.loads(value) for key, value in row["parameters"]},
            owner=row["owner"],
            rule_version=row["rule_version"],
            asked_at=None if row["asked_at"] is None else milliseconds(row["asked_at"]),
        )
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        problem = f"has a planned row of epoch {row['epoch']} that cannot be read ({error})"
        raise BrokenLakeError(f"the table epochs {problem}; {RESTORE_HINT}", problem) from error


def next_offsets_of(row: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Returns the next offsets that a committed row names, which hold after its epoch."""
    return {(o["topic"], o["queue_id"]): o["next_offset"] for o in row["next_offsets"] or ()}


def table_versions_of(row: Mapping[str, Any]) -> dict[str, TableVersion]:
    """Returns the tables that a committed row names, after its epoch; format 1 names none."""
    return {t["table"]: TableVersion(t["version"], t["rows"]) for t in row.get("tables") or ()}


def has_snapshot(row: Mapping[str, Any]) -> bool:
    """Returns whether a committed epoch took a snapshot of the state."""
    return dict(row["counts"] or ()).get(SNAPSHOT) == 1


@dataclass(frozen=True)
class Progress:
    """Where the epochs stand.

    `last`: the newest committed plan. `unfinished`: the plan to finish first. `next_offsets` and
    `tables`: after `last`. `recent`: the newest plans, for `known_at`. `full_epoch`: the newest
    epoch whose row names all queues and tables. `digest`: of the newest row. `changes`: how many
    rows `last` wrote into the tables of the state, those of a snapshot included.
    """

    last: Plan | None
    unfinished: Plan | None
    next_offsets: Mapping[tuple[str, int], int]
    recent: tuple[Plan, ...]
    full_epoch: int | None
    tables: Mapping[str, TableVersion] = field(default_factory=dict)
    digest: str = ""
    changes: int = 0

    @property
    def next_epoch(self) -> int:
        """Returns the number of the epoch to plan next."""
        return 1 if self.last is None else self.last.epoch + 1

    @property
    def newest_epoch(self) -> int:
        """Returns the number of the newest planned epoch; 0 before the first."""
        return self.next_epoch if self.unfinished is not None else self.next_epoch - 1


NAMED_EPOCHS_MAX: Final = 500  # the most epochs that settings allow between two rows that name all
_RECENT_EPOCHS = 1000  # a job needs older plans only if it lags by more epochs
NO_PROGRESS: Final = Progress(None, None, {}, (), None)


def read_progress(lake: Lake, until: int | None = None) -> Progress:
    """Returns where the epochs stand, from the newest rows.

    Input: `until`: the epoch that counts as the newest.
    Errors: BrokenLakeError when a planned row is missing.
    """
    newest = lake.max_value("epochs", "epoch")
    if newest is None:
        return NO_PROGRESS
    if until is not None:
        newest = min(newest, until)

    recent = (pc.field("epoch") > newest - _RECENT_EPOCHS) & (pc.field("epoch") <= newest)
    rows = lake.read("epochs", where=recent).to_pylist()
    committed = {row["epoch"]: row for row in rows if row["state"] == COMMITTED}
    plans = {row["epoch"]: row for row in rows if row["state"] == PLANNED}

    lacking = sorted((committed.keys() | {newest}) - plans.keys())
    if lacking:
        raise BrokenLakeError(
            f"the table epochs of the lake {lake.path} has no planned row of epoch {lacking[0]}: "
            f"{RESTORE_HINT}"
        )

    last_epoch = max(committed, default=None)
    unfinished = plans[newest] if newest not in committed else None
    newest_row = unfinished or committed[newest]

    full_epochs = (e for e, row in committed.items() if SNAPSHOT in dict(row["counts"] or ()))
    full_epoch = max(full_epochs, default=None)
    next_offsets: dict[Place, int] = {}
    tables: dict[str, TableVersion] = {}
    for row in _rows_since(lake, committed, full_epoch, min(plans)):
        next_offsets |= next_offsets_of(row)
        tables |= table_versions_of(row)

    return Progress(
        last=None if last_epoch is None else parse_plan(plans[last_epoch]),
        unfinished=None if unfinished is None else parse_plan(unfinished),
        next_offsets=next_offsets,
        recent=tuple(parse_plan(plans[epoch]) for epoch in sorted(committed)),
        full_epoch=full_epoch,
        tables=tables,
        digest=newest_row.get("digest") or "",
        changes=0 if last_epoch is None else changes_in(dict(committed[last_epoch]["counts"])),
    )


def changes_in(counts: Mapping[str, int]) -> int:
    """Returns how many rows an epoch wrote into the tables of the state."""
    return sum(counts.get(table, 0) for table in STATE_TABLES)


def _rows_since(
    lake: Lake, committed: Mapping[int, Mapping[str, Any]], full_epoch: int | None, first: int
) -> list[Mapping[str, Any]]:
    """Returns the committed rows from that of `full_epoch` on, in order; all if it is None.

    Input: `committed`: the rows from epoch `first` on, by epoch; earlier ones are read here.
    """
    rows = [row for epoch, row in committed.items() if epoch >= (full_epoch or 0)]

    if full_epoch is None and first > 1:
        before = (pc.field("epoch") < first) & (pc.field("state") == COMMITTED)
        columns = lake.dataset("epochs").schema.names
        names = [name for name in ("epoch", "next_offsets", "tables") if name in columns]
        rows += lake.read("epochs", names, before).to_pylist()

    return sorted(rows, key=lambda row: int(row["epoch"]))

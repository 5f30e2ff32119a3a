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
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage.errors import RESTORE_HINT, BrokenLakeError
from storage.lake.floor import FLOOR, Floor
from storage.lake.snapshots import Snapshot, snapshot_of
from storage.rows import instant, milliseconds
from storage.schemas import EPOCHS, SNAPSHOT, STATE_TABLES

PLANNED, COMMITTED = "planned", "committed"
Partition = tuple[str, int]  # Kafka topic, partition


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
    def topic_partition(self) -> Partition:
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

    def landed(self) -> dict[Partition, int]:
        """Returns where landing stands after this epoch."""
        return {r.topic_partition: r.to_offset for r in self.ranges}

    def has_unreached_ends(self, landed: Mapping[Partition, int]) -> bool:
        """Returns whether Kafka had more records for this epoch than have landed since.

        Input: the next offset to land of each partition.
        """
        return any(
            max(r.end_offset, r.asked_end_offset or 0) > landed.get(r.topic_partition, 0)
            for r in self.ranges
        )

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


def has_snapshot(counts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns for each committed row whether its epoch took a snapshot; null for most of the rest.

    Input: the column `counts` of the rows.
    """
    return pc.equal(pc.map_lookup(counts, SNAPSHOT, "first"), 1)


def changes_in(counts: Mapping[str, int]) -> int:
    """Returns how many rows an epoch wrote into the tables of the state."""
    return sum(counts.get(table, 0) for table in STATE_TABLES)

"""Where the epochs of a lake stand: one value, which each step of an epoch hands on.

A start reads it from the newest rows of `epochs`. From there on an epoch that is planned or
committed gives the next one (`storage/lake/epoch_log.py`), and nothing else keeps a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow.compute as pc

from storage.errors import RESTORE_HINT, BrokenLakeError
from storage.lake.epochs import (
    COMMITTED,
    PLANNED,
    Partition,
    Plan,
    TableVersion,
    changes_in,
    next_offsets_of,
    parse_plan,
    table_versions_of,
)
from storage.lake.lake import Lake
from storage.schemas import SNAPSHOT

_RECENT_EPOCHS: Final = 1000  # a start needs older plans only if the job lags by more epochs


@dataclass(frozen=True)
class Progress:
    """Where the epochs stand.

    `last`: the newest committed plan. `unfinished`: the plan to finish first. `next_offsets` and
    `tables`: after `last`. `recent`: the committed plans for which Kafka had more records than have
    landed by now; `known_at` needs them. `full_epoch`: the newest epoch whose row names all queues
    and tables. `digest`: of the newest row. `changes`: how many rows `last` wrote into the tables
    of the state, those of a snapshot included.
    """

    last: Plan | None = None
    unfinished: Plan | None = None
    next_offsets: Mapping[Partition, int] = field(default_factory=dict)
    recent: tuple[Plan, ...] = ()
    full_epoch: int | None = None
    tables: Mapping[str, TableVersion] = field(default_factory=dict)
    digest: str = ""
    changes: int = 0

    @property
    def next_epoch(self) -> int:
        """Returns the number of the epoch to plan next."""
        return 1 if self.last is None else self.last.epoch + 1

    @property
    def newest(self) -> Plan | None:
        """Returns the newest plan: the one to finish, else the newest committed one."""
        return self.unfinished or self.last

    @property
    def newest_epoch(self) -> int:
        """Returns the number of the newest planned epoch; 0 before the first."""
        return 0 if self.newest is None else self.newest.epoch

    def landed(self) -> dict[Partition, int]:
        """Returns the next offset to land of each partition, after the newest committed epoch."""
        return {} if self.last is None else self.last.landed()

    def planned(self, plan: Plan, digest: str) -> Progress:
        """Returns where the epochs stand after a plan. Input: the digest of its row."""
        return replace(self, unfinished=plan, digest=digest)

    def committed(
        self,
        plan: Plan,
        digest: str,
        counts: Mapping[str, int],
        next_offsets: Mapping[Partition, int],
        tables: Mapping[str, TableVersion],
    ) -> Progress:
        """Returns where the epochs stand after the commit of a plan.

        Input: the digest of its row; what it wrote; offsets and tables after it.
        """
        landed = plan.landed()
        recent = (*self.recent, plan)

        return Progress(
            last=plan,
            unfinished=None,
            next_offsets=next_offsets,
            recent=tuple(p for p in recent if p.has_unreached_ends(landed)),
            full_epoch=plan.epoch if SNAPSHOT in counts else self.full_epoch,
            tables=tables,
            digest=digest,
            changes=changes_in(counts),
        )


NO_PROGRESS: Final = Progress()


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

    is_recent = (pc.field("epoch") > newest - _RECENT_EPOCHS) & (pc.field("epoch") <= newest)
    rows = lake.read("epochs", where=is_recent).to_pylist()
    committed = {row["epoch"]: row for row in rows if row["state"] == COMMITTED}
    plans = {row["epoch"]: row for row in rows if row["state"] == PLANNED}

    lacking = sorted((committed.keys() | {newest}) - plans.keys())
    if lacking:
        raise BrokenLakeError(
            f"the table epochs of the lake {lake.path} has no planned row of epoch {lacking[0]}: "
            f"{RESTORE_HINT}"
        )

    last_epoch = max(committed, default=None)
    last = None if last_epoch is None else parse_plan(plans[last_epoch])
    landed = {} if last is None else last.landed()
    recent = (parse_plan(plans[epoch]) for epoch in sorted(committed))

    unfinished = plans[newest] if newest not in committed else None
    newest_row = unfinished or committed[newest]

    full_epochs = (e for e, row in committed.items() if SNAPSHOT in dict(row["counts"] or ()))
    full_epoch = max(full_epochs, default=None)
    next_offsets: dict[Partition, int] = {}
    tables: dict[str, TableVersion] = {}
    for row in _rows_since(lake, committed, full_epoch, min(plans)):
        next_offsets |= next_offsets_of(row)
        tables |= table_versions_of(row)

    return Progress(
        last=last,
        unfinished=None if unfinished is None else parse_plan(unfinished),
        next_offsets=next_offsets,
        recent=tuple(plan for plan in recent if plan.has_unreached_ends(landed)),
        full_epoch=full_epoch,
        tables=tables,
        digest=newest_row.get("digest") or "",
        changes=0 if last_epoch is None else changes_in(dict(committed[last_epoch]["counts"])),
    )


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

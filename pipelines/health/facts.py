"""The facts of a lake, of Kafka and of the settings: few rows and columns at any size.

Facts from Kafka are None if Kafka was not queried.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import DISCARDED
from checker.frames_ops.sql import run
from pipelines.epoch.recorded_state import read_state
from pipelines.explain.rows import Row
from pipelines.health.consumer_retries import count_refused
from pipelines.health.consumers import read_unread
from pipelines.health.dead_letters import count_undeliverable
from pipelines.health.groups import read_groups
from pipelines.settings import HealthSettings
from storage.lake.aging import snapshot_before
from storage.lake.epochs import COMMITTED, PLANNED, Plan, parse_plan
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.rows import instant, milliseconds

if TYPE_CHECKING:
    from pipelines.publish.status import PublisherStatus

HOUR_MS: Final = 3_600_000
_EPOCHS = 100  # the newest epochs, of which `steps` tells the times

_STEPS = """
WITH times AS (
  SELECT u.key AS step, u.value AS ms FROM rows r,
    unnest(map_entries(r.step_ms)) AS t(u) WHERE r.state = $committed
)
SELECT step, quantile_disc(ms, 0.5) AS p50_ms, quantile_disc(ms, 0.99) AS p99_ms, count(*) AS epochs
FROM times GROUP BY step ORDER BY p99_ms DESC, step
"""
_DISCARDED = """
SELECT count(*) AS halves, min(stored_at) AS oldest_at FROM state WHERE discard_cause IS NOT NULL
"""


@dataclass(frozen=True)
class TopicLag:
    """How far the job is behind one topic. Units: ms.

    `oldest_at`: when the broker stored the first record that is not landed; None if there is none,
    or if Kafka did not return it in time. `makes_epochs`: whether its records make an epoch; the
    job's own PINGs in the admin topic do not.
    """

    topic: str
    records: int
    oldest_at: int | None
    makes_epochs: bool


@dataclass(frozen=True)
class Drivers:
    """The drivers that Kafka counts: the active one, and those that stand by."""

    active: str | None = None
    standby: Sequence[str] = ()


@dataclass(frozen=True)
class KafkaFacts:
    """The facts from Kafka: the fields of `Facts` of these names."""

    start_error: str | None
    lags: Sequence[TopicLag] | None
    drivers: Drivers
    groups_without_topic: Sequence[str]
    publishers: Sequence[PublisherStatus]


@dataclass(frozen=True)
class LakeFacts:
    """The facts from the lake's tables. Units: ms, bytes.

    `epoch_at`: of the newest committed epoch; None before the first. `owner`: its planner.
    `groups`: rows of `groups.COLUMNS`; `unread`: of `consumers.UNREAD_COLUMNS`; `refused`: of
    `consumer_retries.COUNT_COLUMNS`. `given_up`: halves discarded in the last hour.
    `discarded`: halves that a late end or RESUME can still end, the oldest stored at
    `discarded_oldest_at`. `steps`: step, p50_ms, p99_ms of the newest epochs. `state_rows`,
    `state_bytes`: the job's state in memory, as its newest epoch counted it; None if it did not.
    `free_bytes`: None in an object store. `floor_at`: `epoch_at` of the floor; None before the
    first.
    """

    path: str
    now_ms: int
    epoch: int = 0
    epoch_at: int | None = None
    owner: str | None = None
    groups: Sequence[Row] = ()
    unread: Sequence[Row] = ()
    refused: Sequence[Row] = ()
    given_up: int = 0
    undeliverable: int = 0
    delayed: int = 0
    next_delayed_at: int | None = None
    discarded: int = 0
    discarded_oldest_at: int | None = None
    steps: Sequence[Row] = ()
    state_rows: int | None = None
    state_bytes: int | None = None
    free_bytes: int | None = None
    disk_bytes: int | None = None
    floor_epoch: int = 0
    floor_at: int | None = None
    plan: Plan | None = field(default=None, repr=False)

    @property
    def pending(self) -> int:
        """Returns how many halves wait for their end."""
        return sum(group["pending"] for group in self.groups)

    @property
    def oldest_at(self) -> int | None:
        """Returns when the oldest half that waits was stored."""
        instants = [group["oldest_at"] for group in self.groups if group["oldest_at"] is not None]
        return min(instants, default=None)


@dataclass(frozen=True)
class Facts:
    """All that is known: of the lake, of Kafka, of the settings. Units: ms.

    `lags`, `drivers`, `groups_without_topic`: None if Kafka was not queried, or did not answer;
    `kafka_error` says why it did not. `publishers`: likewise; empty if the settings have none.
    `is_kafka_away`: Kafka is known not to answer. `start_error`: why a start is refused, as
    Kafka's topics are now. `groups_without_topic`: those of the lake that have halves pending and
    no check topic. `retention_ms`: the settings' [lake] retention_ms; None without settings.
    `limits`: the settings' [health]; their defaults without settings.
    """

    lake: LakeFacts
    lags: Sequence[TopicLag] | None = None
    drivers: Drivers | None = None
    kafka_error: str | None = None
    is_kafka_away: bool = False
    start_error: str | None = None
    groups_without_topic: Sequence[str] | None = None
    publishers: Sequence[PublisherStatus] | None = None
    retention_ms: int | None = None
    limits: HealthSettings = field(default_factory=HealthSettings)

    @property
    def records_waiting(self) -> int | None:
        """Returns how many records wait in Kafka that make an epoch; None: not known."""
        if self.lags is None:
            return None
        return sum(lag.records for lag in self.lags if lag.makes_epochs)

    @property
    def lag_ms(self) -> int | None:
        """Returns how long the oldest of these records has waited; None: not known."""
        if self.lags is None:
            return None

        waiting = [lag for lag in self.lags if lag.makes_epochs and lag.records]
        known = [lag.oldest_at for lag in waiting if lag.oldest_at is not None]

        if waiting and not known:
            return None

        return max(0, self.lake.now_ms - min(known)) if known else 0


def lake_facts(lake: Lake, now_ms: int) -> LakeFacts:
    """Returns the facts from the lake's tables at the newest committed epoch.

    Errors: BrokenLakeError.
    """
    free, disk = _disk(lake)
    empty = LakeFacts(lake.path, now_ms, free_bytes=free, disk_bytes=disk)

    newest = lake.max_value("epochs", "epoch")
    if newest is None:
        return empty

    columns = ["epoch", "state", "epoch_at", "owner", "step_ms", "work"]
    rows = read_rows(lake, "epochs", columns, {"epoch": (newest - _EPOCHS, newest)})
    committed = rows.filter(pc.equal(rows["state"], COMMITTED)).sort_by("epoch")
    if committed.num_rows == 0:
        return empty

    last = committed.slice(committed.num_rows - 1).to_pylist()[0]
    epoch = last["epoch"]
    work = dict(last["work"] or ())
    plan = _plan(lake, epoch)
    snapshot = snapshot_before(lake, epoch)
    state = read_state(lake, "pending", epoch, snapshot)
    delayed = read_state(lake, "delayed", epoch, snapshot)

    (discarded,) = run(_DISCARDED, state=state).to_pylist()

    return LakeFacts(
        path=lake.path,
        now_ms=now_ms,
        epoch=epoch,
        epoch_at=milliseconds(last["epoch_at"]),
        owner=last["owner"],
        groups=read_groups(lake, state, now_ms),
        unread=read_unread(lake, now_ms),
        refused=count_refused(lake),
        given_up=_recent_discards(lake, epoch, now_ms),
        undeliverable=count_undeliverable(lake),
        delayed=delayed.num_rows,
        next_delayed_at=pc.min(delayed["deliver_at"]).as_py(),
        discarded=discarded["halves"],
        discarded_oldest_at=discarded["oldest_at"],
        steps=run(_STEPS, {"committed": COMMITTED}, rows=committed).to_pylist(),
        state_rows=work.get("state_rows"),
        state_bytes=work.get("state_bytes"),
        free_bytes=free,
        disk_bytes=disk,
        floor_epoch=plan.floor.epoch,
        floor_at=_epoch_at(lake, plan.floor.epoch),
        plan=plan,
    )


def _plan(lake: Lake, epoch: int) -> Plan:
    where: Bounds = {"epoch": [epoch], "state": [PLANNED]}
    (row,) = read_rows(lake, "epochs", lake.schema("epochs").names, where).to_pylist()
    return parse_plan(row)


def _epoch_at(lake: Lake, epoch: int) -> int | None:
    """Returns `epoch_at` of an epoch; None if the lake has no such epoch."""
    rows: pa.Table = read_rows(lake, "epochs", ["epoch_at"], {"epoch": [epoch]})
    return milliseconds(rows["epoch_at"][0].as_py()) if rows.num_rows else None


def _recent_discards(lake: Lake, epoch: int, now_ms: int) -> int:
    """Returns how many halves were discarded in the last hour, as the epochs' rows count them.

    `outcomes` has a row for each transaction of that hour, `epochs` one for each epoch.
    """
    lately: Bounds = {
        "epoch_at": (instant(now_ms - HOUR_MS), None),
        "epoch": (None, epoch),
        "state": [COMMITTED],
    }
    rows = read_rows(lake, "epochs", ["counts"], lately)["counts"].to_pylist()
    return sum(dict(counts or ()).get(DISCARDED.lower(), 0) for counts in rows)


def _disk(lake: Lake) -> tuple[int | None, int | None]:
    """Returns the free bytes and all bytes of the lake's disk; None if they are not known."""
    if not lake.location.is_local:
        return None, None

    try:
        usage = shutil.disk_usage(lake.path)
    except OSError:
        return None, None
    return usage.free, usage.total

"""An epoch that another run had begun: what that run has written is not decided anew."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from checker.frames import ATTEMPTS, RULE_VERSION, Parameters
from pipelines.epoch import runner
from pipelines.epoch.delivery import MessageDelivery
from pipelines.epoch.parameters import EpochSettings
from pipelines.epoch.recorded_state import restore
from pipelines.epoch.recover import next_offsets, reload_batch
from pipelines.epoch.runner import EpochCommitter, PlannedEpoch, StepTimer
from pipelines.epoch.task_sizing import TaskSizing
from pipelines.kafka_client import source_log
from pipelines.kafka_client.source_log import SourceLog
from storage.lake.epochs import Plan, Range
from storage.lake.floor import Floor
from storage.lake.lake import Lake
from storage.lake.loss import Loss, as_parameter, planned_losses
from storage.lake.progress import read_progress
from storage.lake.snapshots import Snapshot
from storage.tasks.land import Landing
from storage.verify.run import verify
from tests.support.damage import NOTHING
from tests.support.kafka_records import LIMITS, as_read, half
from tests.support.local_landing import landed_here
from txlake.protocol import HALF_TOPIC

AT = 1_767_323_055_000
SETTINGS = EpochSettings(
    Parameters(ages_from_known_at=True),
    LIMITS,
    100,
    10**9,
    NOTHING,
    "driver",
    TaskSizing(1),
    NOTHING,
)


class Died(Exception):
    """The driver is gone."""


class Asker:
    """A sender of checks. Input: whether Kafka takes them."""

    def __init__(self, *, is_there: bool) -> None:
        self.is_there = is_there

    def ask(self, _lake: Lake, due: pa.Table) -> pa.Table:
        """Returns an acknowledged attempt of each check, or none."""
        rows = due.to_pylist() if self.is_there else []
        return pa.Table.from_pylist(
            [row | {"check_id": "3-0-0-1", "acknowledged": True} for row in rows], schema=ATTEMPTS
        )


def committer(lake: Lake, asker: Asker) -> EpochCommitter:
    resumed = EpochCommitter(lake, asker, TaskSizing(1), MessageDelivery(None))
    resumed.resume_from(read_progress(lake))
    return resumed


def die(*_: Any) -> Any:
    raise Died


def test_checks_that_were_not_sent_before_a_crash_are_not_sent_behind_the_written_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path), is_driver=True)
    lake.create(dt.datetime.now(dt.timezone.utc))
    ranges = (Range("halves", 3, 0, 1, 1), Range("ops", 3, 0, 0, 0))
    parameters = SETTINGS.plan_parameters(Floor(), Snapshot())
    plan = Plan(1, AT, {3: AT}, {3: AT}, ranges, "c", {}, parameters, "driver", RULE_VERSION)
    records = as_read([("halves", b"body", half())]).to_batches()

    dying = committer(lake, Asker(is_there=False))
    dying.plan(plan)
    with monkeypatch.context() as crash:
        crash.setattr(runner, "write_commit", die)
        with pytest.raises(Died):
            batch = landed_here(records, Landing(lake.location, 1, LIMITS), 0)
            dying.finish(PlannedEpoch(plan, batch, StepTimer()))
    dying.close()

    lake = Lake(str(tmp_path), is_driver=True)
    resumed = committer(lake, Asker(is_there=True))
    unfinished = resumed.progress.unfinished
    assert unfinished is not None
    batch = reload_batch(Any, lake, unfinished, SETTINGS, dict)  # type: ignore[arg-type]
    resumed.finish(PlannedEpoch(unfinished, batch, StepTimer(), is_resumed=True))
    resumed.close()

    lake = Lake(str(tmp_path))
    assert lake.read("checks").num_rows == 0
    assert restore(lake, read_progress(lake)).halves.equals(resumed.state.halves)
    assert [f.invariant.name for f in verify(lake).findings if f.violations] == []


class OneLog:
    """Kafka's log: it begins and ends at some offsets, and has no command any more."""

    settings: Any = None

    def __init__(self, begins: Mapping[tuple[str, int], int], ends: int) -> None:
        self.names = {"admin": "admin"}
        self._begins = dict(begins)
        self._end = ends

    def partitions(self) -> list[tuple[str, int]]:
        return list(self._begins)

    def beginning_offsets(self, _: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return self._begins

    def end_offsets(self, _: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(self._begins, self._end)


def test_a_loss_that_the_plan_goes_past_is_accepted_though_its_command_is_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_log, "_read_accepted_losses", lambda *_: [])
    lake = Lake(str(tmp_path), is_driver=True)
    lake.create(dt.datetime.now(dt.timezone.utc))
    loss = Loss(HALF_TOPIC, 0, 1, 3, 0)
    plan = Plan(
        2,
        AT,
        {0: AT},
        {0: AT},
        (Range(HALF_TOPIC, 0, 1, 4, 4),),
        "c",
        {"half": HALF_TOPIC},
        {"losses": as_parameter([loss])},
        "driver",
        RULE_VERSION,
    )
    log = SourceLog(OneLog({(HALF_TOPIC, 0): 4, ("admin", 0): 0}, 9))  # type: ignore[arg-type]

    starts = log.start_offsets(next_offsets(lake, plan), planned_losses(plan))
    assert starts[HALF_TOPIC, 0] == 4
    assert log.accepted == {(HALF_TOPIC, 0): loss}

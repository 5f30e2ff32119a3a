"""Maintenance beside the stream: small steps between two epochs, in the job's own driver.

Every `merge_files` epochs, and whenever an operator asks (MAINTAIN), a round begins: each table
gets the steps that it needs. Steps run when an epoch has ended, until the next one; under constant
load for `slice_ms`, so that a round goes on over several epochs. Under load only small files are
merged, and another round merges the rest as soon as there is time. Nothing appends meanwhile: local
commits of Spark and of delta-rs never meet.

An error here stops no epoch: it is logged, and the next round tries again. But a driver that
another has replaced deletes nothing and stops.

A round is in memory only. A round that an operator asked for begins again after a crash, and, when
`_RETRY_S` has passed, if a table failed: a property of the table `admin` says up to which epoch
requests were served, with no table that failed.

ALTER_TOPIC sets the retention of a topic, a property of its table. It is set when the epoch of the
command is committed, before the next step. Where that fails it is tried again after
`_LOOK_AGAIN_S`; other topics and rounds do not wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow.compute as pc

from pipelines.job.refused_retention import RefusedRetention
from storage.errors import OwnerError
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.maintenance.limits import MaintenanceLimits, StepResult
from storage.maintenance.maintenance import Maintenance
from storage.maintenance.topic_retention import set_properties
from txlake._counted import counted
from txlake._retries import TABLE as RETRIES
from txlake.protocol import ALTER_TOPIC, MAINTAIN, ConfigTarget, command_target

log = logging.getLogger("txlake.maintain")

# A property of the table `admin`: the epoch of the newest request that was served.
_SERVED_EPOCH = "txlake.maintainedEpoch"
# Waits before a full round that failed begins again: a damaged table fails each time.
_RETRY_S: Final = (60.0, 300.0, 900.0, 3_600.0)
_LOOK_AGAIN_S: Final = 30.0
_REQUEST_COLUMNS = ["epoch", "queue_offset", "command", "target", "actor", "reason"]


class MaintenanceScheduler:
    """The scheduler of maintenance of one lake's files and logs between epochs.

    Input: `admin_topic`: the topic of the operators' commands; `is_stopping`: whether no further
    step may begin; `before_change`: called before a table is changed, or a file is deleted, raises
    OwnerError if the lake is another's; `published`: as of `Maintenance`.
    """

    def __init__(
        self,
        lake: Lake,
        limits: MaintenanceLimits,
        slice_ms: int,
        admin_topic: str,
        is_stopping: Callable[[], bool],
        before_change: Callable[[], None] = lambda: None,
        published: Callable[[str], Mapping[int, int] | None] = lambda _: None,
    ) -> None:
        self._maintenance = Maintenance(lake, limits, before_change, published)
        self._refused = RefusedRetention(lake, limits.topics.ms, before_change)
        self._lake = lake
        self._before_change = before_change
        self._slice_s = slice_ms / 1000
        self._round_epochs = limits.merge_files
        self._admin_topic = admin_topic
        self._is_stopping = is_stopping

        # The round that runs: its remaining steps, and what it has done.
        self._steps: Iterator[StepResult] | None = None
        self._is_full = False  # an operator asked for it: every table gets all steps
        self._has_failed = False  # a table of it
        self._round_result = StepResult()
        self._round_s = 0.0

        self._request_epoch = 0  # of the request that a full round serves
        self._retry_at: float | None = None  # monotonic s: it failed, and begins again
        self._tries = 0
        self._has_looked_back = False  # for requests before this start, or before a failure
        self._look_back_at = 0.0  # monotonic s; an epoch with requests does not wait for it
        self._unaltered_epoch: int | None = None  # the first whose ALTER_TOPIC failed
        self._rerun_when_idle = False  # the stream was busy in this round

    def after_batch(self, plan: Plan | None, idle_s: float) -> None:
        """Goes on with maintenance after a micro-batch.

        Input: the plan of its epoch, if there was one; the time for which the stream is idle.
        """
        is_busy = idle_s < self._slice_s
        if plan is not None:
            self._maintenance.resume_from(plan)
            self._refused.resume_from(plan)

        request_epoch = self._take_requests(plan)
        if request_epoch:
            self._request_epoch = request_epoch
            self._tries = 0
            self._begin(is_full=True)
        elif self._must_retry():
            self._begin(is_full=True)
        elif plan is not None and plan.epoch % self._round_epochs == 0 and self._steps is None:
            self._begin(is_full=False)  # by its number: in a job that often starts anew, too

        if self._rerun_when_idle and not is_busy and self._steps is None:
            self._rerun_when_idle = False
            self._begin(is_full=False)

        if self._steps is not None:
            self._rerun_when_idle |= is_busy
            self._maintenance.is_busy = is_busy
            self._go_on(max(idle_s, self._slice_s))

    def _take_requests(self, plan: Plan | None) -> int:
        """Alters topics as operators ask. Output: the newest epoch that asks for a round, or 0."""
        try:
            bounds = self._bounds_of_requests(plan)
            if bounds is None:
                return 0
            requests = self._read_requests(bounds)
        except OwnerError:
            raise
        except Exception as error:
            self._log_failure("admin", error)
            self._maintenance.knows_requests = False
            self._look_back_later()
            return 0

        self._maintenance.knows_requests = True
        self._has_looked_back = True
        self._alter_topics(requests)

        rounds = [
            row
            for row in requests
            if row["command"] == MAINTAIN and row["epoch"] > self._request_epoch
        ]
        for row in rounds:
            log.info("maintenance asked for by %s: %s", row["actor"], row["reason"])
        return max((row["epoch"] for row in rounds), default=0)

    def _alter_topics(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Alters topics as ALTER_TOPIC asks; where that fails, it is looked for again later."""
        failed_epochs = []
        for topic, (configs, first_epoch) in _configs(requests).items():
            try:
                if self._maintenance.alter(topic, configs):
                    log.info("topic %s is altered, as an operator asked", topic)
            except OwnerError:
                raise
            except Exception as error:
                self._log_failure(f"topic {topic}", error)
                failed_epochs.append(first_epoch)

        self._unaltered_epoch = min(failed_epochs, default=None)
        if failed_epochs:
            self._look_back_later()

    def _look_back_later(self) -> None:
        self._has_looked_back = False
        self._look_back_at = time.monotonic() + _LOOK_AGAIN_S

    def _bounds_of_requests(self, plan: Plan | None) -> Bounds | None:
        """Returns the epochs whose requests are to be read; None if they hold none.

        The first look after a start, or after a failure, goes back to the request that was served
        last.
        """
        is_new = plan is not None and self._has_commands(plan)
        if not self._has_looked_back and (is_new or time.monotonic() >= self._look_back_at):
            served = self._lake.handle("admin").metadata().configuration.get(_SERVED_EPOCH)
            return {"epoch": (int(served or 0) + 1, None)}

        return {"epoch": [plan.epoch]} if plan is not None and is_new else None

    def _read_requests(self, bounds: Bounds) -> list[dict[str, Any]]:
        """Returns the operators' accepted requests to the maintenance, in their order."""
        command = pc.field("command")
        result = pc.field("result")
        is_round = (command == MAINTAIN) & (result == "accepted")
        is_alteration = (command == ALTER_TOPIC) & (result == "altered")

        rows = read_rows(self._lake, "admin", _REQUEST_COLUMNS, bounds, is_round | is_alteration)
        requests: list[dict[str, Any]] = rows.sort_by("queue_offset").to_pylist()
        return requests

    def _has_commands(self, plan: Plan) -> bool:
        return any(
            r.topic == self._admin_topic and r.to_offset > r.from_offset for r in plan.ranges
        )

    def look_back(self) -> None:
        """Looks for requests since the last that was served: an epoch with some can have ended.

        It ended in a recovery, so no micro-batch of it comes.
        """
        self._has_looked_back = False
        self._look_back_at = 0.0

    def _mark_request_done(self) -> None:
        """Records in the table `admin` up to which epoch all requests are served."""
        served = self._request_epoch
        if self._unaltered_epoch is not None:
            served = min(served, self._unaltered_epoch - 1)

        properties = {_SERVED_EPOCH: str(served)}
        try:
            set_properties(self._lake, "admin", properties, self._before_change)
        except OwnerError:
            raise
        except Exception as error:
            self._log_failure("admin", error)

    def _must_retry(self) -> bool:
        """Returns whether a full round that failed is to begin again now."""
        is_due = self._retry_at is not None and time.monotonic() >= self._retry_at
        return is_due and self._steps is None

    def _retry_later(self) -> None:
        """Sets when a full round that failed begins again."""
        delay_s = _RETRY_S[min(self._tries, len(_RETRY_S) - 1)]
        self._retry_at = time.monotonic() + delay_s
        self._tries += 1
        log.warning(
            "the maintenance that was asked for is not complete; it begins again in %.0f s", delay_s
        )

    def _begin(self, is_full: bool) -> None:
        self._is_full = is_full
        self._has_failed = False
        if is_full:
            self._retry_at = None

        self._steps = None
        try:
            self._steps = self._round(self._maintenance.tables(), is_full)
        except Exception as error:
            self._log_failure("the catalog", error)
            if is_full:
                self._retry_later()

    def _round(self, tables: Sequence[str], is_full: bool) -> Iterator[StepResult]:
        """Runs the steps of a round one by one; yields the result of each.

        The end of a table is an empty step: its check alone can take as long as a small one.
        """
        steps = {table: self._maintenance.steps(table, is_full=is_full) for table in tables}
        steps[RETRIES] = self._refused.steps(is_full=is_full)

        for table, steps_of_table in steps.items():
            try:
                yield from steps_of_table
            except OwnerError:
                raise
            except Exception as error:
                self._log_failure(table, error)
                self._has_failed = True

            yield StepResult()

    def _go_on(self, budget_s: float) -> None:
        """Runs steps until the time is up; one that has begun runs to its end."""
        began = time.monotonic()

        while self._steps is not None and not self._is_stopping():
            steps = self._steps
            self._steps = None  # unless a step follows: an OwnerError ends the round, too
            result = next(steps, None)
            if result is not None:
                self._steps = steps
                self._round_result += result

            if time.monotonic() - began >= budget_s:
                break

        self._round_s += time.monotonic() - began
        if self._steps is None:
            self._end()

    def _log_failure(self, table: str, error: Exception) -> None:
        self._lake.reset()
        log.warning(
            "maintenance of %s failed, nothing is lost; it will be tried again: %s", table, error
        )

    def _end(self) -> None:
        if self._round_result != StepResult() or self._is_full:
            done = summary(self._round_result)
            log.info("maintenance: %s, %.2f s in all", done, self._round_s)

        if self._is_full and self._has_failed:
            self._retry_later()
        elif self._is_full:
            self._mark_request_done()

        self._is_full = False
        self._round_result = StepResult()
        self._round_s = 0.0


def _configs(
    requests: Sequence[Mapping[str, Any]],
) -> dict[str, tuple[dict[str, int], int]]:
    """Returns by topic the configs in ALTER_TOPIC commands, and the epoch of the first command.

    Of two values of one config the later one holds.
    """
    configs: dict[str, tuple[dict[str, int], int]] = {}
    for row in requests:
        target = command_target(row["command"], row["target"])
        if isinstance(target, ConfigTarget):
            of_topic, _ = configs.setdefault(target.topic, ({}, row["epoch"]))
            of_topic[target.name] = target.value
    return configs


def summary(result: StepResult) -> str:
    """Returns the result of maintenance in words."""
    return (
        f"{counted(result.files_merged, 'file')} of {result.bytes_before / 1e6:.1f} MB became "
        f"{result.merges} of {result.bytes_after / 1e6:.1f} MB, "
        f"{counted(result.rows_expired, 'old row')} deleted, "
        f"{counted(result.checkpoints, 'log')} cut, {counted(result.files_deleted, 'file')} deleted"
    )

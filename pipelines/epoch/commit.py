"""A planned epoch, run to its commit: decide, apply, ask, commit (ARCHITECTURE.md, steps 3 to 6).

If a step fails, the epoch stays planned, and the next start runs it again from here; tables that
hold it are skipped. The epochs of the job end here, and those of a replay.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checker.decide import decide
from checker.frames import OUTCOMES, STATE_KEYS, Decision, State
from checker.rules.timing import record_attempts
from pipelines.epoch.batch import Batch
from pipelines.epoch.checks import CheckSender, send_checks_once
from pipelines.epoch.delivery import MessageDelivery
from pipelines.epoch.listener import EpochListener
from pipelines.epoch.lookups import build_inputs
from pipelines.epoch.memory import release_memory
from pipelines.epoch.parameters import plan_limits, plan_parameters, planned_snapshot
from pipelines.epoch.plan import to_instants
from pipelines.epoch.recorded_state import FRAMES, restore, state_log_rows
from pipelines.epoch.task_sizing import TaskSizing
from pipelines.epoch.write import EpochWriter
from storage.files.row_groups import Bounds
from storage.lake.epoch_log import EpochLog
from storage.lake.epochs import Plan, Progress, changes_in
from storage.lake.lake import Lake
from storage.schemas import SNAPSHOT
from storage.wire.record_kinds import HALF, KINDS

_WRITERS: Final = 4


class StepTimer:
    """A stopwatch for the steps of an epoch, in ms."""

    def __init__(self) -> None:
        self.step_ms: dict[str, int] = {}
        self._since = time.monotonic()

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self.step_ms[step] = round((now - self._since) * 1000)
        self._since = now


class EpochCommitter:
    """The runner of planned epochs on one lake; it keeps the state between them, and the writers.

    `state`: what holds after the last committed epoch; `last`: that epoch's plan; `changes`: rows
    that it wrote into the tables of the state.
    """

    def __init__(
        self,
        lake: Lake,
        asker: CheckSender,
        sizes: TaskSizing,
        deliverer: MessageDelivery,
        watch: EpochListener | None = None,
    ) -> None:
        self.state = State()
        self.last: Plan | None = None
        self.changes = 0
        self.log = EpochLog(lake)
        self._lake = lake
        self._asker = asker
        self._sizes = sizes
        self._deliverer = deliverer
        self._watch = watch or EpochListener()
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="txlake-writer")

    def resume_from(self, progress: Progress, lake: Lake | None = None) -> None:
        """Takes the state after the last committed epoch. Input: the lake, if it is another one."""
        self.state = restore(lake or self._lake, progress)
        self.log.take_up(progress)
        self.last, self.changes = progress.last, progress.changes
        self._watch.on_start(lake or self._lake, self.last, self.state)

    def finish(self, plan: Plan, batch: Batch, steps: StepTimer) -> None:
        """Runs a planned epoch to its commit. Input: its records."""
        applier, counts = self._applier(plan, batch), landed_counts(batch)
        records = batch.records
        futures: list[Future[Any]] = [*applier.land(self._pool)]
        verdicts = applier.write_signed_operations(self._pool)
        try:
            decision = self._decide(plan, batch)
            batch.drop_written()
            release_memory(records)
            steps.lap("decide")
            _raise_first(verdicts)  # before anything that depends on them
            applier.create_topics(decision)
            landed = list(futures)
            counts |= decided_counts(decision)
            is_large = self._sizes.delivery_tasks(decision.placements.num_rows) > 0
            if not is_large:  # few messages are delivered beside all that is recorded and asked
                futures.append(self._pool.submit(applier.deliver, decision, landed, self._pool))
            recorded, writes = applier.write_decided_rows(decision, self._pool)
            counts |= recorded
            futures += writes
            decision = replace(decision, outcomes=OUTCOMES.empty_table())  # a write has them
            _raise_first(landed)
            attempts = send_checks_once(self._lake, self._asker, plan, decision.due)
            counts["checks"] = attempts.num_rows
            decision = record_attempts(decision, attempts, plan.epoch_at)
            steps.lap("ask")
            futures += self._record_state(applier, decision, counts)
            if is_large:  # many are delivered last: tasks need the memory
                wait(writes)
                release_memory(records)
                futures += applier.deliver(decision, landed, self._pool)
        finally:
            written = _wait_all([*verdicts, *futures])
        _raise_first(written)
        steps.lap("apply")
        work = {**applier.work, **state_size(decision.state)}
        self.log.commit(plan, advanced_offsets(decision.placements), counts, steps.step_ms, work)
        # Only now the state in memory changes.
        self.state, self.last, self.changes = decision.state, plan, changes_in(counts)
        self._watch.on_committed(plan, self.state, attempts, counts, steps.step_ms)

    def _applier(self, plan: Plan, batch: Batch) -> EpochWriter:
        return EpochWriter(self._lake, plan, batch, self._deliverer, self._sizes, self._due(plan))

    def _due(self, plan: Plan) -> Bounds | None:
        """Returns between which instants messages of the epoch are due: since the first waits."""
        earliest = pc.min(self.state.delayed["deliver_at"]).as_py()
        return None if earliest is None else (earliest, plan.epoch_at)

    def _decide(self, plan: Plan, batch: Batch) -> Decision:
        limits = plan_limits(plan)
        inputs = build_inputs(batch, self._lake, self.state, plan, limits)
        instants = to_instants(plan, self.last, limits.topics[HALF])
        decision = decide(
            self.state,
            inputs,
            instants,
            plan_parameters(plan),
            after_step=lambda: release_memory(batch.records),
        )
        self._watch.on_decided(plan, self.state, inputs, decision)
        return decision

    def _record_state(
        self, applier: EpochWriter, decision: Decision, counts: dict[str, int]
    ) -> list[Future[None]]:
        """Starts writing the changes of the state, in some epochs with a snapshot of it."""
        snapshot = self._snapshot(applier.plan)
        tables = state_rows(applier.plan, decision, snapshot == 1)
        counts |= {table: rows.num_rows for table, rows in tables.items()}
        if snapshot is not None:
            counts[SNAPSHOT] = snapshot
        return [
            self._pool.submit(applier.append, table, rows)
            for table, rows in tables.items()
            if rows.num_rows
        ]

    def _snapshot(self, plan: Plan) -> int | None:
        return planned_snapshot(plan)

    def close(self) -> None:
        """Waits for running writes and gives the threads back."""
        self._pool.shutdown(wait=True)


def state_rows(plan: Plan, decision: Decision, is_snapshot: bool) -> dict[str, pa.Table]:
    """Returns the changes of the state by table, with all rows of the state in a snapshot."""
    state = decision.state if is_snapshot else None
    return {
        table: state_log_rows(table, decision.changes[frame], state, plan.epoch)
        for table, frame in FRAMES.items()
    }


def state_size(state: State) -> dict[str, int]:
    """Returns how many rows and bytes of halves, namings and delayed messages the driver holds."""
    frames = [getattr(state, name) for name in STATE_KEYS]
    return {
        "state_rows": sum(frame.num_rows for frame in frames),
        "state_bytes": sum(frame.nbytes for frame in frames),
    }


def landed_counts(batch: Batch) -> dict[str, int]:
    """Returns the numbers of landed records; `verify` counts them again."""
    counts = {f"landed_{kind}": batch.rows(kind).num_rows for kind in KINDS}
    halves = batch.rows(HALF)
    return counts | {"unreadable_half": halves.num_rows - halves["error"].null_count}


def decided_counts(decision: Decision) -> dict[str, int]:
    """Returns the numbers of decided rows; `verify` counts them again."""
    outcomes = pc.value_counts(decision.outcomes["outcome"]).to_pylist()
    counts = {row["values"].lower(): row["counts"] for row in outcomes}
    return counts | {"placed": decision.placements.num_rows, "due": decision.due.num_rows}


def advanced_offsets(placements: pa.Table) -> dict[tuple[str, int], int]:
    """Returns the next offset of each real queue that an epoch delivers to. Input: PLACEMENTS."""
    queues = placements.group_by(["topic", "real_queue_id"])
    rows = queues.aggregate([("real_queue_offset", "max")]).to_pylist()
    return {(row["topic"], row["real_queue_id"]): row["real_queue_offset_max"] + 1 for row in rows}


def _wait_all(futures: list[Future[Any]]) -> list[Future[Any]]:
    """Waits for writes. Output: with those that they have begun."""
    found = list(futures)
    for future in found:  # it grows on the way
        wait([future])
        if future.exception() is None:
            found += future.result() or ()
    return found


def _raise_first(futures: list[Future[Any]]) -> None:
    for future in futures:
        future.result()

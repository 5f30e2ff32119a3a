"""How long a start takes to read its state: many pending halves, many small epochs since.

    python -m bench.restore_speed FOLDER 1000000 1000

Writes a lake whose last snapshot has so many pending halves and after which so many epochs changed
a few each, looked after as the job does, then times what a start does without a JVM: where the
epochs stand, whether the lake is whole, the state.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from checker.frames import HALVES, State
from checker.frames_ops.changes import changes
from pipelines.epoch.recorded_state import FRAMES, restore, state_log_rows
from storage.lake.epoch_log import EpochLog
from storage.lake.epochs import NO_PROGRESS, Plan, read_progress
from storage.lake.integrity import require_intact
from storage.lake.lake import Lake
from storage.lake.snapshots import Snapshot
from storage.maintenance.limits import MaintenanceLimits
from storage.maintenance.maintenance import Maintenance
from storage.rows import instant
from storage.schemas import SNAPSHOT

_AT = 1_767_225_600_000
_CHANGED = 20  # halves that come and go in an epoch
_QUEUES = 4
# The defaults of the settings.
_LIMITS = MaintenanceLimits(16, 32 << 20, 32, 600_000, 3_600_000, 604_800_000)


def halves(first: int, count: int) -> pa.Table:
    """Return so many halves that wait. Output: HALVES."""
    number = np.arange(first, first + count)
    values = {
        "queue_id": pa.array(number % _QUEUES, pa.int32()),
        "queue_offset": pa.array(number // _QUEUES),
        "unit_offset": pa.array(number // _QUEUES),
        "producer_group": pa.repeat("orders", count),
        "transaction_id": pa.array([f"{n:032x}" for n in number]),
        "real_topic": pa.repeat("orders", count),
        "stored_at": pa.array(_AT + number),
        "age_from_at": pa.array(_AT + number),
        **{name: pa.repeat(pa.scalar(0, pa.int32()), count)
           for name in ("arm", "check_times", "unacknowledged", "discards")},
    }  # fmt: skip
    return pa.table([values.get(f.name, pa.nulls(count, f.type)) for f in HALVES], schema=HALVES)


# The first epoch took the only snapshot.
_FIRST = {SNAPSHOT: Snapshot(1, _AT).as_parameter()}


def write(path: str, pending: int, epochs: int) -> State:
    """Write the lake. Output: the state after its last epoch."""
    lake = Lake(path, is_driver=True)
    lake.create(instant(_AT))
    maintenance = Maintenance(lake, _LIMITS)
    log = EpochLog(lake)
    log.take_up(NO_PROGRESS)
    state = State()
    for epoch in range(1, epochs + 2):
        first = pending + (epoch - 2) * _CHANGED
        after = (
            halves(0, pending)
            if epoch == 1
            else pa.concat_tables([state.halves.slice(_CHANGED), halves(first, _CHANGED)])
        )
        is_snapshot = epoch == 1
        near = state.halves.slice(0, _CHANGED), after.slice(after.num_rows - _CHANGED)
        changed = changes(
            State() if is_snapshot else State(halves=near[0]),
            State(halves=after if is_snapshot else near[1]),
        )
        state = State(halves=after)
        plan = Plan(epoch, _AT + epoch * 1_000, {}, {}, (), "cluster", {}, _FIRST, "bench", 2)
        log.plan(plan)
        for table, name in FRAMES.items():
            rows = state_log_rows(table, changed[name], state if is_snapshot else None, epoch)
            lake.append(table, rows, epoch)
        log.commit(plan, {}, {"snapshot": 1} if is_snapshot else {}, {})
        if epoch % _LIMITS.merge_files == 0:
            for table in ("pending", "epochs"):
                deque(maintenance.steps(table), maxlen=0)
    return state


@dataclass(frozen=True)
class Start:
    """What a start without a JVM has read, and how long each part took. Units: s."""

    state: State
    epochs_s: float
    whole_s: float
    state_s: float
    processor_s: float

    @property
    def seconds(self) -> float:
        """Returns how long all of it took."""
        return self.epochs_s + self.whole_s + self.state_s


def start(path: str) -> Start:
    """Do what a start does with a lake: where do the epochs stand, is it whole, the state."""
    began, used = time.perf_counter(), time.process_time()
    lake = Lake(path, is_driver=True)
    progress = read_progress(lake)
    stood = time.perf_counter()
    require_intact(lake, progress, is_exclusive=True)
    whole = time.perf_counter()
    state = restore(lake, progress)
    ended = time.perf_counter()
    processor_s = time.process_time() - used
    return Start(state, stood - began, whole - stood, ended - whole, processor_s)


def main(folder: str, pending: str, epochs: str) -> None:
    """Write the lake, read it three times, and say how long that took."""
    path = str(Path(folder) / "lake")
    state = write(path, int(pending), int(epochs))
    for _ in range(3):
        found = start(path)
        print(
            f"{found.seconds:.2f} s ({found.processor_s:.2f} s of processor): epochs "
            f"{found.epochs_s:.2f}, whole {found.whole_s:.2f}, state {found.state_s:.2f}"
        )
    order = [("queue_id", "ascending"), ("queue_offset", "ascending")]
    restored = found.state
    same = restored.halves.sort_by(order).equals(state.halves.sort_by(order))
    print(f"{restored.halves.num_rows} halves restored, equal to those in memory: {same}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Looks at a lake while it ages: what is on the disk, how many rows, how long a start takes."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.soak.job import SoakJob
from bench.soak.memory_job import Spent, mean
from bench.soak.reference import Reference
from bench.usage import own_resident_bytes
from pipelines.epoch.recorded_state import restore
from storage.lake.integrity import require_intact
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.maintenance.merge import files_of

_LOG = "_delta_log"


@dataclass
class Look:
    """What was found after an epoch. `spent`: the mean since the look before.

    `reference`: what the same epochs of a new lake took at this moment. `data_files`: also those
    that wait to be deleted. `start_s`: processor time of what a start does with the lake before its
    first epoch.
    """

    epoch: int
    spent: Spent
    reference: Spent
    start_s: float
    resident_bytes: int
    state_rows: int
    data_bytes: Counter[str] = field(default_factory=Counter)  # by table, as all below
    data_files: Counter[str] = field(default_factory=Counter)
    log_bytes: Counter[str] = field(default_factory=Counter)
    log_files: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)


def look(job: SoakJob, spent: Sequence[Spent], reference: Reference) -> Look:
    """Looks at the lake between two epochs. Input: what the epochs since the last look took."""
    state = job.epochs.state
    found = Look(
        job.last.epoch,
        mean(spent),
        reference.run(),
        _start_s(job.lake.path),
        own_resident_bytes(),
        sum(rows.num_rows for rows in (state.halves, state.waiting, state.delayed)),
    )

    for table, is_log, size in _files(Path(job.lake.path)):
        (found.log_bytes if is_log else found.data_bytes)[table] += size
        (found.log_files if is_log else found.data_files)[table] += 1

    reader = Lake(job.lake.path)
    for table in found.data_files:
        if table:  # not the files beside the tables
            found.rows[table] = sum(file.row_count for file in files_of(reader, table))

    return found


def _start_s(path: str) -> float:
    """Returns how long a start needs for a lake, as `EpochRunner.resume` does it."""
    began = time.process_time()
    lake = Lake(path)
    progress = read_progress(lake)
    require_intact(lake, progress, is_exclusive=True)
    restore(lake, progress)
    return time.process_time() - began


def _files(root: Path) -> Iterator[tuple[str, bool, int]]:
    """Returns of each file its table, whether it belongs to the log, and its size."""
    for folder, _, names in os.walk(root):
        table, log, _ = Path(folder).relative_to(root).as_posix().partition(f"/{_LOG}")
        for name in names:
            yield table.removeprefix("."), bool(log), Path(folder, name).stat().st_size

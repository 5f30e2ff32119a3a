"""The times at which the halves of delivered messages were stored, from `half` and `schedule`.

A topic's row has the instant of its delivery. The look-up opens the files whose statistics say that
they can hold a wanted offset, and keeps some of them: messages are delivered about in the order of
their halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txlake._delta_files import DeltaFiles, translating_errors
from txlake._lake import Lake

_KEPT_ROWS_MAX: Final = 400_000  # two epochs of the largest size by default; 16 bytes each
_QUEUE_BITS: Final = 44  # of a place as one number: the queue stands above them
_MISSING: Final = -1
Array = Any


class StoredTimes:
    """The look-up of one lake."""

    def __init__(self, lake: Lake) -> None:
        self._tables = {
            source: _Table(lake.uri(source), lake.storage_options)
            for source in ("half", "schedule")
        }

    def refresh(self) -> None:
        """Takes the newest versions; to be called before rows of a newer epoch are looked up."""
        for table in self._tables.values():
            table.is_fresh = False

    def at_ms(self, rows: pa.Table) -> pa.Array:
        """Returns when the half, or schedule record, of each row was stored.

        Units: epoch ms. Null where the lake no longer has it. Errors: LakeError; StoreAwayError.
        """
        queues, offsets = (
            pc.fill_null(rows[name], 0).to_numpy().astype(np.int64)
            for name in ("half_queue_id", "half_queue_offset")
        )
        places = (queues << _QUEUE_BITS) | offsets
        times = np.full(len(places), _MISSING, np.int64)

        for source, table in self._tables.items():
            matching = np.flatnonzero(pc.equal(rows["source"], source).to_numpy())
            if len(matching):
                times[matching] = table.times(places[matching])

        return pa.array(times, mask=times == _MISSING)


class _Table:
    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self._files = DeltaFiles(uri, storage_options, ("queue_id", "queue_offset"))
        self._kept: dict[str, tuple[Array, Array]] = {}  # by file: places in order, times
        self.is_fresh = False

    def times(self, places: Array) -> Array:
        """Returns the time of each place; _MISSING if no file has it."""
        times = np.full(len(places), _MISSING, np.int64)
        self._fill(places, times, list(reversed(self._kept)))  # most wanted are in the newest

        if (times == _MISSING).any():
            if not self.is_fresh:
                with translating_errors(self._files.uri):
                    self._files.refresh()
                self.is_fresh = True
            self._files.retry_stale(lambda: self._fill(places, times, list(self._files.files)))

        return times

    def _fill(self, places: Array, times: Array, paths: list[str]) -> None:
        """Fills in the times that files have, file by file, until none is missing."""
        for path in paths:
            missing = np.flatnonzero(times == _MISSING)
            if not len(missing):
                return

            wanted = places[missing]
            if path in self._files.files and not self._can_hold(path, wanted):
                continue

            file_places, file_times = self._kept.get(path) or self._read(path)
            index = np.minimum(np.searchsorted(file_places, wanted), max(len(file_places) - 1, 0))
            if len(file_places):
                is_found = file_places[index] == wanted
            else:
                is_found = np.zeros(len(wanted), bool)
            times[missing[is_found]] = file_times[index[is_found]]

    def _can_hold(self, path: str, places: Array) -> bool:
        file = self._files.files[path]
        minimum, maximum = file.min_values, file.max_values
        if None in (*minimum.values(), *maximum.values()):
            return True

        offsets = places & ((1 << _QUEUE_BITS) - 1)
        queues = places >> _QUEUE_BITS
        return bool(
            (
                (offsets >= minimum["queue_offset"])
                & (offsets <= maximum["queue_offset"])
                & (queues >= minimum["queue_id"])
                & (queues <= maximum["queue_id"])
            ).any()
        )

    def _read(self, path: str) -> tuple[Array, Array]:
        rows = self._files.dataset([path]).to_table(["queue_id", "queue_offset", "stored_at"])
        queues, offsets = (
            rows[name].to_numpy().astype(np.int64) for name in ("queue_id", "queue_offset")
        )
        places = (queues << _QUEUE_BITS) | offsets

        order = np.argsort(places, kind="stable")
        milliseconds = rows["stored_at"].cast(pa.timestamp("ms", "UTC"), safe=False)
        times = pc.fill_null(milliseconds.cast(pa.int64()), _MISSING).to_numpy()

        self._kept[path] = places[order], times[order]
        while len(self._kept) > 1 and self._kept_rows() > _KEPT_ROWS_MAX:
            self._kept.pop(next(iter(self._kept)))
        return self._kept[path]

    def _kept_rows(self) -> int:
        return sum(len(places) for places, _ in self._kept.values())

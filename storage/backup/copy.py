"""The copy of a lake at one epoch: data files first, then the logs, the table `lake` as the last.

Until the last log is written the target is no lake, and the same command goes on with it. What is
there already with the size that it has in the lake is not copied again: data files never change.

In a folder one run holds the lock of a lake's driver: each deletes the logs that it finds.

The lake keeps files that are replaced meanwhile for `[maintenance] file_retention_ms`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.fs as pa_fs

from storage.backup.pinned import PinnedLake, PinnedTable, pin
from storage.errors import BrokenLakeError, LakeError
from storage.files.location import LakeLocation
from storage.lake.integrity import find_faults
from storage.lake.lake import Lake
from storage.lake.lock import LOCK_NAME, LakeLock
from storage.lake.open_table import changing, disk_error
from storage.lake.progress import read_progress
from storage.lake.store_error import store_error

Meter = Callable[[int, int], None]
Logs = dict[str, dict[str, bytes]]  # by table, the newest entry of each last
_THREADS: Final = 8
_CHUNK_BYTES: Final = 4 << 20
_MARK: Final = "_backup"  # in a target that is not done: of which lake


@dataclass(frozen=True)
class Backup:
    """A copy of a lake: the epoch that it ends with, its tables and data files.

    `copied_files`, `copied_bytes`: without those that were there from an interrupted run.
    """

    lake_id: str
    epoch: int
    tables: int
    files: int
    size_bytes: int
    copied_files: int
    copied_bytes: int


@dataclass(frozen=True)
class _File:
    table: str
    name: str
    size_bytes: int


def back_up(
    lake: Lake, target: LakeLocation, progress: Meter = lambda _done, _total: None
) -> Backup:
    """Copies a lake, as it is at its newest committed epoch, to a place where nothing is.

    Replay: goes on with what an interrupted run has copied.
    Errors: LakeError: something else is there, the lake is not whole, or it has deleted a file
    meanwhile; LakeLockedError: another backup writes there.
    """
    with changing(target):
        copy = _Copy(lake, target)
        copy.require_free()
        pinned = copy.pin()  # a lake that cannot be read makes no folder
        with copy.locked():
            return copy.run(*pinned, progress)


class _Copy:
    """One run of a backup."""

    def __init__(self, lake: Lake, target: LakeLocation) -> None:
        self._lake = lake
        self._target = target
        self._files = target.filesystem("")

    def pin(self) -> tuple[PinnedLake, Logs]:
        """Step 1. Returns the epoch with the version of each table, and the logs of the tables.

        The logs are read at once: their entries go sooner than the data files that they name.
        """
        with self._reading():
            pinned = pin(self._lake)
            return pinned, {table.name: self._read_log(table) for table in pinned.tables}

    def run(self, pinned: PinnedLake, logs: Logs, progress: Meter) -> Backup:
        """Copies the lake, as it is pinned. Errors: as `back_up`."""
        lake_id = self.require_free()  # now that nobody else writes there
        files = list(_data_files(pinned))

        # 2. The data files. A log of an interrupted run can name others.
        self._begin(lake_id)
        missing = self._missing(pinned, files)
        self._copy_all(missing, progress)

        # 3. The logs, and a look at all tables, as at the start of a job.
        *tables, last = pinned.tables
        for table in tables:
            self._write_log(table.name, logs[table.name])
        self._require_whole([table.name for table in tables if table.name in pinned.own_tables])

        # 4. The log that makes it a lake.
        if self._target.is_local:
            os.sync()
        self._write_log(last.name, logs[last.name])
        self._files.delete_file(_MARK)

        return Backup(
            lake_id,
            pinned.epoch,
            len(pinned.tables),
            len(files),
            sum(file.size_bytes for file in files),
            len(missing),
            sum(file.size_bytes for file in missing),
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the target, and holds its lock. Errors: LakeLockedError; LakeError."""
        if self._target.is_local:
            try:
                os.makedirs(self._target.path, exist_ok=True)
            except OSError as error:
                raise LakeError(
                    f"the folder {self._target.path} cannot be made: {error.strerror}"
                ) from error

        lock = LakeLock(self._target, f"{socket.gethostname()}:{os.getpid()}:backup")
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns an error of the lake's own disk or store into one sentence that names the lake."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            source = self._lake.location
            translated = disk_error(source, error) or store_error(source, error)
            if translated is None:
                raise
            raise translated from error

    def require_free(self) -> str:
        """Checks that the target is empty, or an unfinished backup of this lake.

        Output: the lake's id.
        """
        lake_id = self._lake.lake_id()
        source, target = self._lake.path, self._target.path
        if self._target.overlaps(self._lake.location):
            raise LakeError(f"{target} and the lake {source} lie in each other: name another place")

        names = {info.base_name for info in _listed(self._files, "")} - {LOCK_NAME}
        if not names:
            return lake_id

        if self._is_lake():
            raise LakeError(f"{target} is a lake already: a backup needs a place of its own")
        if _MARK not in names or self._mark() != lake_id:
            raise LakeError(
                f"{target} holds files that are no unfinished backup of this lake: name an empty "
                "place"
            )
        return lake_id

    def _is_lake(self) -> bool:
        """Returns whether the target is a lake; what was interrupted in its last log is none."""
        copy = Lake(self._target)
        if not copy.is_table("lake"):
            return False
        try:
            copy.lake_id()
        except LakeError:
            return bool(self._files.get_file_info(_MARK).type != pa_fs.FileType.File)
        return True

    def _mark(self) -> str:
        with self._files.open_input_stream(_MARK) as stream:
            return bytes(stream.read()).decode("utf-8", "replace")

    def _begin(self, lake_id: str) -> None:
        with self._files.open_output_stream(_MARK) as stream:
            stream.write(lake_id.encode())

    def _missing(self, pinned: PinnedLake, files: Sequence[_File]) -> list[_File]:
        """Returns the files to copy; deletes the logs of an interrupted run."""
        copied: set[_File] = set()
        for table in pinned.tables:
            infos = _listed(self._files, table.name)
            copied |= {
                _File(table.name, info.base_name, info.size) for info in infos if info.is_file
            }

            log = f"{table.name}/_delta_log"
            for info in _listed(self._files, log):
                self._files.delete_file(f"{log}/{info.base_name}")
            if self._target.is_local:
                self._files.create_dir(log, recursive=True)

        return [file for file in files if file not in copied]

    def _copy_all(self, files: Sequence[_File], progress: Meter) -> None:
        total = sum(file.size_bytes for file in files)
        done = 0

        with ThreadPoolExecutor(_THREADS) as pool:
            for size in pool.map(self._copy_data, files):
                done += size
                progress(done, total)

    def _copy_data(self, file: _File) -> int:
        try:
            size = self._copy_file(file.table, file.name)
        except FileNotFoundError as error:
            raise BrokenLakeError(
                f"the lake {self._lake.path} has no file {file.table}/{file.name} any more: it was "
                "lost, or deleted while the backup ran; raise [maintenance] file_retention_ms, and "
                "run the command again: it goes on"
            ) from error

        if size != file.size_bytes:
            raise BrokenLakeError(
                f"{file.table}/{file.name} of the lake {self._lake.path} has {size} bytes, and "
                f"{file.size_bytes} by the table's log"
            )
        return size

    def _copy_file(self, folder: str, name: str) -> int:
        """Copies one file. Output: its bytes."""
        size = 0
        with self._reading():
            source = self._lake.location.reading(folder).open_input_stream(name)

        with source, self._files.open_output_stream(f"{folder}/{name}") as sink:
            while chunk := self._read(source):
                sink.write(chunk)
                size += len(chunk)
        return size

    def _read(self, source: pa.NativeFile) -> bytes:
        with self._reading():
            return bytes(source.read(_CHUNK_BYTES))

    def _read_log(self, table: PinnedTable) -> dict[str, bytes]:
        """Returns the log of a version, the newest entry last."""
        log = {}
        with self._lake.translating_read_errors(table.name):
            folder = self._lake.location.reading(f"{table.name}/_delta_log")
            for name in table.log:
                with folder.open_input_stream(name) as stream:
                    log[name] = bytes(stream.read())
        return log

    def _write_log(self, table: str, log: Mapping[str, bytes]) -> None:
        """Writes the log of a version in the order of its entries."""
        for name, entry in log.items():
            with self._files.open_output_stream(f"{table}/_delta_log/{name}") as sink:
                sink.write(entry)

    def _require_whole(self, tables: Sequence[str]) -> None:
        copy = Lake(self._target)
        for fault in find_faults(copy, read_progress(copy), tables, is_exclusive=True):
            raise BrokenLakeError(
                f"the copy {self._target.path} is not whole: the table {fault.table} "
                f"{fault.problem}; does `txlake verify` find the same in the lake?"
            )


def _data_files(pinned: PinnedLake) -> Iterator[_File]:
    for table in pinned.tables:
        for name, size in table.files:
            yield _File(table.name, name, size)


def _listed(files: pa_fs.FileSystem, folder: str) -> list[pa_fs.FileInfo]:
    return list(files.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True)))

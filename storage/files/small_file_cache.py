"""Small files of a store, read whole with one request and cached: each read would be a request.

An epoch reads the files that the epochs before it have landed, each for a few messages: those that
only a check ended, and those that it checks. A name always stands for the same file.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import obstore
import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import BaseError

from storage.files.location import LakeLocation
from storage.files.s3_client import s3_client

# An epoch of 1,000 messages of 256 B lands 0.2 MB. A larger file is read by its row groups.
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024


class SmallFileCache(DeltaStorageHandler):
    """The files of one lake that were read last. Input: where it is, in a store."""

    def __init__(self, location: LakeLocation) -> None:
        super().__init__(location.path, dict(location.options))
        self._client = s3_client(location)
        self._lock = threading.Lock()
        self._contents: dict[str, pa.Buffer] = {}
        self._bytes = 0
        self._sizes: dict[str, dict[str, int]] = {}  # by table, from their logs

    def of(self, table: str, files: pa.Table) -> pa_fs.FileSystem:
        """Returns a file system for reading, in which these files of a table have their paths."""
        names = files["path"].to_pylist()
        sizes = files["size_bytes"].to_pylist()

        self._sizes[table] = dict(zip(names, sizes, strict=True))
        return pa_fs.SubTreeFileSystem(table, pa_fs.PyFileSystem(self))

    def open_input_file(self, path: str) -> Any:
        table, _, name = path.rpartition("/")
        size = self._sizes.get(table, {}).get(name, FILE_BYTES_MAX + 1)

        with self._lock:
            content = self._contents.pop(path, None)
            if content is not None:
                self._contents[path] = content  # now the newest

        if content is None:
            content = self._read(path) if size <= FILE_BYTES_MAX else None
            if content is None or content.size != size:
                return super().open_input_file(path)
            self._keep(path, content)

        return pa.BufferReader(content)

    def _read(self, path: str) -> pa.Buffer | None:
        """Returns a file with one request; None if that fails: delta-rs tries again."""
        if self._client is None:
            return None
        try:
            return pa.py_buffer(bytes(obstore.get(self._client, path).bytes()))
        except BaseError:
            return None

    def _keep(self, path: str, content: pa.Buffer) -> None:
        """Keeps a file, and drops the oldest ones beyond `KEPT_BYTES_MAX`."""
        with self._lock:
            if path not in self._contents:
                self._contents[path] = content
                self._bytes += content.size

            while self._bytes > KEPT_BYTES_MAX:
                oldest = next(iter(self._contents))
                self._bytes -= self._contents.pop(oldest).size

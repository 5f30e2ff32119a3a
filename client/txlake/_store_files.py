"""The files of one version of a table in a store, read with few requests: small ones whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

from txlake._store import store_trouble

# An epoch of 1,000 messages of 256 B makes a file of 0.2 MB. A larger one is read by row groups.
_WHOLE_BYTES_MAX = 4 << 20
_KEPT_MAX = 4  # files are read in the order of their offsets, each some times at once


class StoreFiles:
    """Input: the table's URI; the sizes of its files; the path of the log's next entry."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], sizes: Mapping[str, int], after: str
    ) -> None:
        self._uri, self._after = uri, after
        # delta-rs asks for no size that it knows, and holds Python's lock while it asks.
        self._handler = _Handler(uri, dict(storage_options), {**sizes, after: 1})
        self.filesystem = pa_fs.PyFileSystem(self._handler)

    def has_next(self) -> bool:
        """Returns whether the log has, or might have, the entry that follows this version.

        Errors: OSError when the store does not answer.
        """
        try:
            self._handler.open_whole(self._after).read(1)
        except FileNotFoundError:
            return False
        except OSError as error:
            if store_trouble(self._uri, self._uri, error) is not None:
                raise
        return True


class _Handler(DeltaStorageHandler):
    def __init__(self, uri: str, options: dict[str, str], sizes: dict[str, int]) -> None:
        super().__init__(uri, options, sizes)
        self._sizes = sizes
        self._kept: dict[str, pa.Buffer] = {}

    def open_whole(self, path: str) -> Any:
        """Returns a file as delta-rs opens it."""
        return super().open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        found = self._kept.get(path)
        if found is None:
            file = self.open_whole(path)
            size = self._sizes.get(path, _WHOLE_BYTES_MAX + 1)
            if size > _WHOLE_BYTES_MAX:
                return file
            found = file.read_buffer()
            if found.size != size:
                raise OSError(f"{path}: {found.size} of {size} bytes came")
            self._kept[path] = found
            while len(self._kept) > _KEPT_MAX:
                self._kept.pop(next(iter(self._kept)), None)
        return pa.BufferReader(found)

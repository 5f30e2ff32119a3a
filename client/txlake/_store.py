"""A lake on an object store: the errors of the store, and its files."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler

from txlake._paths import is_in_store
from txlake._store_error import StoreProblem, store_failure
from txlake.errors import LakeError, StoreAwayError

# An epoch of 1,000 messages of 256 B makes a file of 0.2 MB. A larger one is read by row groups.
_WHOLE_BYTES_MAX = 4 << 20
_KEPT_MAX = 4  # files are read in the order of their offsets, each some times at once


def pool_options(uri: str, storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """Returns storage options with which delta-rs keeps few connections of a table to S3.

    It opens one for each entry of a log, all at once, and would keep them for 90 s. A user's own
    option goes before this one.
    """
    own = {"pool_max_idle_per_host": "4"} if uri.startswith(("s3://", "s3a://")) else {}
    return {**own, **(storage_options or {})}


def store_error(uri: str, lake: str, error: BaseException) -> LakeError | None:
    """Returns the meaning of a store's error; None for other errors, and for a missing file."""
    failure = store_failure(error) if is_in_store(uri) else None
    if failure is None:
        return None

    if failure.problem is StoreProblem.AWAY:
        return StoreAwayError(f"{lake}: the store does not answer ({failure.summary}); try again")
    return LakeError(
        f"{lake}: the store refuses access ({failure.summary}): check storage_options, and what "
        "its credentials may do with this bucket"
    )


class StoreFiles(DeltaStorageHandler):
    """The files of one version of a table in a store, read with few requests: small ones whole.

    Input: the table's URI; the sizes of its files; the path of the log's next entry.
    """

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], sizes: Mapping[str, int], after: str
    ) -> None:
        # delta-rs asks for no size that it knows, and holds Python's lock while it asks.
        super().__init__(uri, dict(storage_options), {**sizes, after: 1})
        self._uri = uri
        self._after = after
        self._sizes = sizes
        self._contents: dict[str, pa.Buffer] = {}
        self._lock = threading.Lock()  # Arrow's threads call this

    def has_next(self) -> bool:
        """Returns whether the log has, or might have, the entry that follows this version.

        Errors: OSError when the store does not answer.
        """
        try:
            super().open_input_file(self._after).read(1)
        except FileNotFoundError:
            return False
        except OSError as error:
            if store_error(self._uri, self._uri, error) is not None:
                raise
        return True

    def open_input_file(self, path: str) -> Any:
        """Returns a file for Arrow, which calls this."""
        content = self._contents.get(path)
        if content is None:
            file = super().open_input_file(path)
            size = self._sizes.get(path, _WHOLE_BYTES_MAX + 1)
            if size > _WHOLE_BYTES_MAX:
                return file

            content = file.read_buffer()
            if content.size != size:
                raise OSError(f"{path}: {content.size} of {size} bytes came")

            with self._lock:
                self._contents[path] = content
                while len(self._contents) > _KEPT_MAX:
                    del self._contents[next(iter(self._contents))]

        return pa.BufferReader(content)

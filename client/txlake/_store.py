"""A lake on an object store: what it says when it does not answer, and its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler

from txlake._paths import is_in_store
from txlake.errors import LakeError, StoreAwayError

# The words of delta-rs, whose errors are an OSError or a DeltaError with a long, coloured text.
_OF_A_STORE = re.compile(
    r"Generic (S3|MicrosoftAzure|GCS|HDFS)|performing (GET|PUT|HEAD|POST|DELETE|list)|"
    r"lacked the necessary privileges|credential"
)
_REFUSED = re.compile(r"40[13] [A-Z]\w+|privileges|credential|NoSuchBucket|scheme is not allowed")
_GONE = re.compile(r"404 Not Found|not found")
_CODE = re.compile(r"<Code>(\w+)</Code>|(\d{3} [A-Z][a-z]+(?: [A-Z][a-z]+)*)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE = "↳"  # delta-rs writes each error's cause behind one, the innermost last
_SAID_MAX = 160
# An epoch of 1,000 messages of 256 B makes a file of 0.2 MB. A larger one is read by row groups.
_WHOLE_BYTES_MAX = 4 << 20
_KEPT_MAX = 4  # files are read in the order of their offsets, each some times at once


def pool_options(uri: str, storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """Returns storage options with which delta-rs keeps few connections of a table to S3.

    It opens one for each entry of a log, all at once, and would keep them for 90 s. A user's own
    option goes before this one.
    """
    kept = {"pool_max_idle_per_host": "4"} if uri.startswith(("s3://", "s3a://")) else {}
    return {**kept, **(storage_options or {})}


def store_trouble(uri: str, lake: str, error: BaseException) -> LakeError | None:
    """Returns what a store's error means, if it is one; None for an error about what is in it."""
    text = str(error)
    if not is_in_store(uri) or not _OF_A_STORE.search(text):
        return None
    said = _said(text)
    if _REFUSED.search(text):
        return LakeError(
            f"{lake}: the store refuses access ({said}): check storage_options, and what its "
            "credentials may do with this bucket"
        )
    if _GONE.search(text):
        return None
    return StoreAwayError(f"{lake}: the store does not answer ({said}); try again")


def _said(text: str) -> str:
    """Returns the shortest that says what was answered, without a URL: it can hold a secret."""
    found = _CODE.search(text)
    if found:
        return str(next(filter(None, found.groups())))
    innermost = re.sub(r"\S+://\S+", "", _COLOURS.sub("", text).rpartition(_CAUSE)[2])
    return innermost.strip().partition("\n")[0][:_SAID_MAX]


class StoreFiles(DeltaStorageHandler):
    """The files of one version of a table in a store, read with few requests: small ones whole.

    Input: the table's URI; the sizes of its files; the path of the log's next entry.
    """

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], sizes: Mapping[str, int], after: str
    ) -> None:
        # delta-rs asks for no size that it knows, and holds Python's lock while it asks.
        super().__init__(uri, dict(storage_options), {**sizes, after: 1})
        self._uri, self._after = uri, after
        self._sizes = sizes
        self._kept: dict[str, pa.Buffer] = {}

    def has_next(self) -> bool:
        """Returns whether the log has, or might have, the entry that follows this version.

        Errors: OSError when the store does not answer.
        """
        try:
            super().open_input_file(self._after).read(1)
        except FileNotFoundError:
            return False
        except OSError as error:
            if store_trouble(self._uri, self._uri, error) is not None:
                raise
        return True

    def open_input_file(self, path: str) -> Any:
        """Returns a file for Arrow, which calls this."""
        found = self._kept.get(path)
        if found is None:
            file = super().open_input_file(path)
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

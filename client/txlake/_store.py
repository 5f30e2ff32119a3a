"""A lake on an object store: the errors of the store, and its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler

from txlake._paths import is_in_store
from txlake.errors import LakeError, StoreAwayError

# The words of delta-rs, whose errors are an OSError or a DeltaError with a long, coloured text.
_STORE_ERROR = re.compile(
    r"Generic (S3|MicrosoftAzure|GCS|HDFS)|performing (GET|PUT|HEAD|POST|DELETE|list)|"
    r"lacked the necessary privileges|credential"
)
_REFUSED = re.compile(r"40[13] [A-Z]\w+|privileges|credential|NoSuchBucket|scheme is not allowed")
_GONE = re.compile(r"404 Not Found|not found")
_CODE = re.compile(r"<Code>(\w+)</Code>|(\d{3} [A-Z][a-z]+(?: [A-Z][a-z]+)*)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE = "↳"  # delta-rs writes each error's cause behind one, the innermost last
_MESSAGE_MAX = 160  # characters
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


def store_trouble(uri: str, lake: str, error: BaseException) -> LakeError | None:
    """Returns the meaning of a store's error; None for other errors, and for a missing file."""
    text = str(error)
    if not is_in_store(uri) or not _STORE_ERROR.search(text):
        return None

    summary = _summary(text)
    if _REFUSED.search(text):
        return LakeError(
            f"{lake}: the store refuses access ({summary}): check storage_options, and what its "
            "credentials may do with this bucket"
        )
    if _GONE.search(text):
        return None
    return StoreAwayError(f"{lake}: the store does not answer ({summary}); try again")


def _summary(text: str) -> str:
    """Returns the code of a store's answer, or its first line without URLs, which hold secrets."""
    code = _CODE.search(text)
    if code:
        return str(next(filter(None, code.groups())))

    innermost = re.sub(r"\S+://\S+", "", _COLOURS.sub("", text).rpartition(_CAUSE)[2])
    return innermost.strip().partition("\n")[0][:_MESSAGE_MAX]


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
        content = self._contents.get(path)
        if content is None:
            file = super().open_input_file(path)
            size = self._sizes.get(path, _WHOLE_BYTES_MAX + 1)
            if size > _WHOLE_BYTES_MAX:
                return file

            content = file.read_buffer()
            if content.size != size:
                raise OSError(f"{path}: {content.size} of {size} bytes came")

            self._contents[path] = content
            while len(self._contents) > _KEPT_MAX:
                self._contents.pop(next(iter(self._contents)), None)

        return pa.BufferReader(content)

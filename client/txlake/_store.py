"""A lake on an object store: what the store, or its client, says when it does not answer."""

from __future__ import annotations

import re
from collections.abc import Mapping

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


def few_idle(uri: str, storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """Returns storage options with which delta-rs keeps few connections of a table to S3.

    It opens one for each entry of a log, all at once, and would keep them for 90 s. A user's own
    option goes before this one.
    """
    kept = {"pool_max_idle_per_host": "4"} if uri.startswith(("s3://", "s3a://")) else {}
    return {**kept, **(storage_options or {})}


def store_trouble(uri: str, lake: str, error: BaseException) -> LakeError | None:
    """Returns what a store's error means, if it is one; None for an error about what is in it."""
    text = str(error)
    if "://" not in uri or not _OF_A_STORE.search(text):
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
